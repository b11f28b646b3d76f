"""Whether a person has changed the model card of a run."""

from dataclasses import replace

import pytest
from tiny_model import make_model

from fewtags.engine.model_card import CARD_FILE, is_unedited, model_card, read_facts, write_card


@pytest.fixture
def info(tmp_path):
    """The metadata of a model whose card is in `tmp_path`."""
    found = make_model()[1]
    write_card(tmp_path, found)
    return found


def test_a_card_stays_unedited_while_its_model_and_evaluations_change(info, tmp_path):
    """An interrupted `calibrate --store` or `thresholds --store` has changed them, and not yet the card."""
    changed = replace(info, thresholds=(0.1, 0.2, 0.3))
    assert model_card(read_facts(tmp_path, changed)) != model_card(read_facts(tmp_path, info))
    assert is_unedited(tmp_path, info)
    assert is_unedited(tmp_path, changed)


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace("assume_negative", "mine", 1),
        lambda text: text + "More of mine.\n",
        lambda text: "\n".join(text.split("\n")[:-2]) + "\nMore of mine.\n",
        lambda text: text.replace("sha256 of the lines above: ", "sha256 of the lines above: 0"),
        lambda _: "",
        lambda _: "mine",
    ],
)
def test_any_change_is_one_of_a_person(info, tmp_path, edit):
    path = tmp_path / CARD_FILE
    path.write_text(edit(path.read_text("utf-8")), "utf-8")
    assert not is_unedited(tmp_path, info)


def test_a_card_of_an_older_version_has_no_mark(info, tmp_path):
    (tmp_path / CARD_FILE).write_text(model_card(read_facts(tmp_path, info)), "utf-8")
    assert is_unedited(tmp_path, info)
    assert not is_unedited(tmp_path, replace(info, thresholds=(0.1, 0.2, 0.3)))
