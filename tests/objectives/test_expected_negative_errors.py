"""Settings of expected negatives that are refused."""

import re

import pytest
from expected_cases import NET, P, U, int8, problem_of

from fewtags.errors import ConfigError
from fewtags.objectives.expected_negative import ExpectedNegative

ERRORS = [
    ({"positives_per_image": 0.0}, "positives_per_image must be above 0, got 0.0."),
    ({"positives_per_image": float("nan")}, "positives_per_image must be above 0, got nan."),
    ({"class_prior": (0.5, 1.5)}, "class_prior must contain numbers in 0..1, got (0.5, 1.5)."),
    ({"cl_weight": -1.0}, "cl_weight must be at least 0, got -1.0."),
    ({"ramp_epochs": -1}, "ramp_epochs must be at least 0, got -1."),
    ({"momentum": 1.1}, "momentum must be in 0..1, got 1.1."),
    (
        {"momentum": 0.999, "corrected_averages": True},
        "corrected_averages needs a momentum up to 0.996 (it counts only 255 visits), got 0.999.",
    ),
    ({"heatmap_top_k": 0}, "heatmap_top_k must be at least 1, got 0."),
    ({"prototype_weight": 1.5}, "prototype_weight must be in 0..1, got 1.5."),
    ({"heatmap_patch_weight": -1.0}, "heatmap_patch_weight must be at least 0, got -1.0."),
    ({"negative_gamma": -1.0}, "negative_gamma must be at least 0, got -1.0."),
    (
        {"negative_gamma": 1.0, "expected_positives": "positive"},
        "negative_gamma is for EN's loss, and expected_positives='positive' has another one. Leave one of them out.",
    ),
    (
        {"positives_interval": (0.5, 0.9)},
        "positives_interval is (low, high), with positives_per_image 1 in it; got (0.5, 0.9).",
    ),
    (
        {"positives_interval": (0.5, 2.0), "expected_positives": "positive"},
        "positives_interval is for expected_positives='ignore': its cells count half as negative. Leave it out for "
        "'positive'.",
    ),
    (
        {"heatmap_dtype": "float16", "heatmap_rounding": "stochastic"},
        "heatmap_rounding='stochastic' is for heatmap_dtype='uint8', got 'float16'.",
    ),
]


@pytest.mark.parametrize(("settings", "message"), ERRORS)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        ExpectedNegative(**{"positives_per_image": 1.0} | settings)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("reading", "top", "reading must be one of all_then_or, fill, unannotated_only, got 'top'."),
        ("heatmap_storage", "disc", "heatmap_storage must be one of memory, disk, got 'disc' (did you mean 'disk'?)."),
    ],
)
def test_words_outside_the_vocabulary_are_refused(name, value, message):
    """Set afterwards, because the type checker of the tests refuses them at the door, which users do not have."""
    method = ExpectedNegative(positives_per_image=1.0, scl_weight=0.0)
    setattr(method, name, value)
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        method.__post_init__()


MISFITS = [
    (
        {},
        "expected_negative needs positives_per_image, the mean number of classes in an image (2.9 on COCO, "
        "1.5 on VOC). Count the classes in twenty photos, or give a validation set with complete labels.",
    ),
    ({"positives_per_image": 4.0}, "positives_per_image is 4.0, but there are 3 classes."),
    ({"class_prior": (0.1, 0.2)}, "class_prior has 2 shares, but there are 3 classes."),
    (
        {"positives_per_image": 2.0, "positives_interval": (1.0, 3.5), "scl_weight": 0.0},
        "positives_interval has the limit 3.5, but there are 3 classes.",
    ),
    (
        {"positives_per_image": 2.0, "scl_weight": 1.0, "heatmap_top_k": 1},
        "heatmap_top_k=1 is less than the 2 annotated positives of training image 1, which all need a heatmap; "
        "use at least 2.",
    ),
    (
        {"positives_per_image": 2.0, "scl_weight": 1.0, "heatmap_storage": "disk"},
        "heatmap_storage='disk' needs a run folder to keep the file in; give one (out=...).",
    ),
]


def test_consistency_that_outweighs_the_labels_is_a_warning():
    """gamma 4 x .05 = .2 of a loss of .3: two thirds. At gamma 1 it is .05 of .15: a third."""
    heavy = ExpectedNegative(positives_per_image=1.0, scl_weight=4.0)
    assert [*heavy.remarks({"loss": 0.3, "en": 0.1, "scl": 0.05})] == [
        "consistency is 67 % of the loss, so labels have little influence; lower objective.scl_weight"
    ]
    assert not [*ExpectedNegative(positives_per_image=1.0, scl_weight=1.0).remarks({"loss": 0.15, "scl": 0.05})]
    (line,) = ExpectedNegative(positives_per_image=1.0, cl_weight=2.0).remarks({"loss": 0.3, "cl": 0.1, "scl": 0.0})
    assert line.endswith("lower objective.cl_weight")
    assert not [*heavy.remarks({"loss": 0.1, "en": 0.1})]


@pytest.mark.parametrize(("settings", "message"), MISFITS)
def test_settings_that_do_not_fit_the_problem_are_refused(settings, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        ExpectedNegative(**settings).setup(NET, problem_of(int8([[P, U, U], [P, P, U]])))
