import pytest

from fewtags.config.sections import DataConfig
from fewtags.errors import ConfigError
from fewtags.formats.options import ReadOptions


def test_options_refuse_what_is_not_known():
    with pytest.raises(ConfigError) as error:
        ReadOptions(uncertain="one")
    assert str(error.value) == "uncertain = 'one' (did you mean 'ones'?): expected one of ignore, ones, zeros."
    with pytest.raises(ConfigError, match=r"blank = 'absent': expected one of unknown, negative\."):
        ReadOptions(blank="absent")


def test_points_are_pixels_fractions_or_not_said():
    assert [ReadOptions(points=p).points for p in (None, "pixels", "fractions")] == [None, "pixels", "fractions"]
    with pytest.raises(ConfigError) as error:
        ReadOptions(points="pixel")
    assert str(error.value) == "points = 'pixel' (did you mean 'pixels'?): expected one of pixels, fractions."


def test_options_refuse_a_word_with_two_meanings():
    with pytest.raises(ConfigError, match="the word 'x' has two meanings"):
        ReadOptions(positive_words=("X ",), unknown_words=("x",))
    assert ReadOptions(positive_words=("x", "X")).positive_words == ("x", "X")


def test_options_refuse_a_text_for_several_names():
    with pytest.raises(ConfigError, match=r"columns takes several names; write \('cat',\)\."):
        ReadOptions(columns="cat")


def test_options_refuse_other_places():
    with pytest.raises(ConfigError) as error:
        ReadOptions(places="point")
    assert (
        str(error.value) == "places = 'point' (did you mean 'points'?): expected one of boxes, points, outlines, none."
    )


def test_options_without_effect():
    options = ReadOptions(complete=True, difficult="positive", delimiter=";")
    assert options.without_effect(["complete", "delimiter"]) == ["difficult"]
    assert ReadOptions().without_effect([]) == []


def test_options_refuse_unknown_names():
    with pytest.raises(ConfigError) as error:
        ReadOptions(comlete=True)
    assert str(error.value) == "'comlete' is not an option (did you mean 'complete'?)."


def test_settings_of_a_run_report_a_word_with_two_meanings_as_settings_do():
    """All problems of a configuration are reported at once, so this one is a ValueError there (ConfigError is not)."""
    with pytest.raises(ValueError, match="the word 'x' has two meanings"):
        DataConfig(train="a.csv", positive_words="x, y", negative_words=("x",))
