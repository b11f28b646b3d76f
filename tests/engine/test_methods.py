"""The tables of methods: settings are the signature of the class, there and back."""

import dataclasses
import inspect

import pytest

from fewtags.engine.methods import (
    EVERY_METHOD,
    METHODS,
    PRETRAIN_METHODS,
    make_objective,
    method_class,
    pretrain_settings_models,
    settings_models,
    settings_of,
)
from fewtags.errors import ConfigError
from fewtags.objectives.assume_negative import BCE, AssumeNegative
from fewtags.objectives.base import Objective
from fewtags.objectives.byol import BYOL
from fewtags.objectives.densecl import DenseCL
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.objectives.fixmatch import FixMatch
from fewtags.objectives.mls import MLS
from fewtags.objectives.moco import MoCo
from fewtags.objectives.nnclr import NNCLR
from fewtags.objectives.patchml import PatchML
from fewtags.objectives.simsiam import SimSiam

EXAMPLES = [
    BCE(),
    AssumeNegative(),
    AssumeNegative(smoothing=0.1),
    AssumeNegative(negative_weight="weak"),
    AssumeNegative(negative_weight=0.25),
    ExpectedNegative(positives_per_image=2.9, scl_weight=1.0, heatmap_top_k=3, heatmap_storage="disk", ramp_epochs=2),
    ExpectedNegative(class_prior=(0.1, 0.2), warmup_loss="expected_negative", corrected_averages=True, distance="jsd"),
    PatchML(image_gammas=(0.0, 1.0, 4.0), patch_unknown="selective", pseudo_weight=0.5, near=0.2),
    FixMatch(positive_from=(0.9, 0.8), negative_to=0.1, uncertainty_views=4, pseudo_fill="unknown"),
    MoCo(queue_size=4096, batchnorm_groups=8),
    MLS(k=5, neighbour_loss="knn_eq10", source="features", include_self=True, hidden_dim=64),
    SimSiam(projection_dim=64, predictor_dim=16),
    BYOL(momentum=0.99, momentum_schedule="constant"),
    NNCLR(temperature=0.2, queue_size=512),
    DenseCL(weight=0.3),
]


@pytest.mark.parametrize("objective", EXAMPLES, ids=lambda o: type(o).__name__)
def test_an_objective_comes_back_from_its_settings(objective):
    again = make_objective(settings_of(objective))
    assert type(again) is type(objective)
    for field in dataclasses.fields(objective):
        assert getattr(again, field.name) == getattr(objective, field.name), field.name


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_settings_are_the_signature_of_the_class(name):
    """Nothing is said twice: the same names, in the same order, with the same defaults."""
    models = settings_models() if name in METHODS else pretrain_settings_models()
    fields = models[name].model_fields
    expected = {p: value.default for p, value in inspect.signature(EVERY_METHOD[name]).parameters.items()}
    assert [*fields] == ["name", *expected]
    assert {key: fields[key].default for key in expected} == expected
    assert not any(default is inspect.Parameter.empty for default in expected.values())


def test_what_was_left_to_derive_is_filled_in_and_nothing_else():
    models = settings_models()
    settings = models["expected_negative"](name="expected_negative", cl_weight=0.5)
    assert make_objective(settings, positives_per_image=1.7, cl_weight=9.0).positives_per_image == 1.7
    assert make_objective(settings, positives_per_image=1.7, cl_weight=9.0).cl_weight == 0.5
    said = models["expected_negative"](name="expected_negative", positives_per_image=2.0)
    assert make_objective(said, positives_per_image=1.7).positives_per_image == 2.0
    assert make_objective(models["bce"](name="bce"), positives_per_image=1.7) == BCE()


def test_the_methods_own_checks_hold():
    with pytest.raises(ConfigError, match=r"momentum must be in 0\.\.1, got 2"):
        make_objective(settings_models()["expected_negative"](name="expected_negative", momentum=2.0))


def test_a_setting_that_cannot_be_written_down():
    with pytest.raises(ConfigError) as error:
        settings_of(ExpectedNegative(scl_weight=float("inf")))
    assert str(error.value) == (
        "1 problem(s) in ExpectedNegative:\n  scl_weight = inf: input should be a finite number"
    )


def test_an_objective_of_ones_own_cannot_be_written_down():
    class Mine(Objective):
        def step(self, net, batch, at):
            raise NotImplementedError

    with pytest.raises(ConfigError) as error:
        settings_of(Mine())
    assert str(error.value) == (
        "Mine is not one of BCE, AssumeNegative, ExpectedNegative, PatchML, FixMatch, MLS, MoCo, SimSiam, BYOL, NNCLR, "
        "DenseCL; train it with fewtags.Fit, which takes any."
    )


def test_names():
    assert method_class("bce") is BCE
    assert method_class("moco") is MoCo
    assert not METHODS.keys() & PRETRAIN_METHODS.keys()
    with pytest.raises(ConfigError) as error:
        method_class("bec")
    assert str(error.value) == (
        "'bec' is not a method (did you mean 'bce'?). Known: bce, assume_negative, expected_negative, patchml, "
        "fixmatch, mls, moco, simsiam, byol, nnclr, densecl."
    )
