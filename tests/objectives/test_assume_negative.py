import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fewtags.errors import ConfigError
from fewtags.labels import Batch, Label, LabelMatrix
from fewtags.nets.spatial import Output
from fewtags.objectives.assume_negative import BCE, AssumeNegative
from fewtags.objectives.base import Problem, Progress

LOSSES = json.loads((Path(__file__).parents[1] / "golden" / "losses.json").read_text())
STATE = {1: Label.POSITIVE, 0: Label.NEGATIVE, -1: Label.UNKNOWN}  # the encoding of the golden files
P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN
AT = Progress(epoch=0, step=0, steps_per_epoch=1)


class Pass(nn.Module):
    """A net whose images are its logits."""

    def forward(self, images):
        return Output(images[:, :, 0, 0], images, images)


def problem(labels):
    return Problem(labels=LabelMatrix.from_dense(np.asarray(labels, np.int8)), grid=(1, 1))


def step(method, logits, labels):
    logits, labels = torch.as_tensor(logits, dtype=torch.float32), torch.as_tensor(labels, dtype=torch.int8)
    net = Pass()
    assert method.setup(net, problem(labels.numpy())) == {}
    views = torch.tensor([[1.0, 0, 0], [0, 1, 0]]).expand(len(logits), 2, 3)
    return method.step(
        net, Batch(images=logits[:, :, None, None], labels=labels, index=torch.arange(len(logits)), views=views), AT
    )


GOLDEN = [
    ("cole_iu_partial", BCE()),
    ("cole_bce_full", BCE()),
    ("ll_epoch1_partial", AssumeNegative()),
    ("cole_an_single_positive", AssumeNegative()),
    ("cole_an_ls0.1_single_positive", AssumeNegative(smoothing=0.1)),
    ("cole_an_ls0.2_multi_positive", AssumeNegative(smoothing=0.2)),
    ("cole_wan_single_positive", AssumeNegative(negative_weight="weak")),
    ("cole_wan_multi_positive", AssumeNegative(negative_weight=0.2)),
]


@pytest.mark.parametrize(("record", "method"), GOLDEN)
def test_golden(record, method):
    """Cole's code adds 1e-5 in the logarithm: a relative difference of 1e-4 at these logits (research, section 2.1)."""
    (record,) = [r for r in LOSSES["records"] if r["id"] == record]
    inputs = LOSSES["cases"][record["case"]]
    labels = [[STATE[v] for v in row] for row in inputs["labels"]]
    out = step(method, inputs["logits"], labels)
    assert out.loss.item() == pytest.approx(record["loss"], rel=2e-4)
    assert out.payload is None


def test_logs_by_hand():
    """Logits 0 and log 3 are probabilities 1/2 and 3/4: 1.25 classes in the first image, 1 in the second."""
    logits, labels = [[0.0, np.log(3)], [0.0, 0.0]], [[P, U], [U, N]]
    for method, name in ((BCE(), "bce"), (AssumeNegative(), "an")):
        out = step(method, logits, labels)
        assert set(out.logs) == {name, "sum_of_probabilities"}
        assert out.logs[name].item() == out.loss.item()
        assert out.logs["sum_of_probabilities"].item() == pytest.approx(1.125)
        assert not any(value.requires_grad for value in out.logs.values())


def test_a_given_weight_lies_between_ignoring_and_assuming_negative():
    """Logits 0: positive log 2, unknown w log 2, known negative log 2; w = .25 gives 2.25 log 2 / 3."""
    out = step(AssumeNegative(negative_weight=0.25), [[0.0, 0.0, 0.0]], [[P, U, N]])
    assert out.loss.item() == pytest.approx(2.25 * np.log(2) / 3)


def test_losses_are_float32_whatever_the_net_computes_in():
    class Half(Pass):
        def forward(self, images):
            return super().forward(images.bfloat16())

    batch = Batch(
        images=torch.zeros(1, 2, 1, 1),
        labels=torch.tensor([[P, N]], dtype=torch.int8),
        index=torch.tensor([0]),
        views=torch.eye(2, 3)[None],
    )
    for method in (BCE(), AssumeNegative(), AssumeNegative(negative_weight=0.5)):
        assert method.step(Half(), batch, AT).loss.dtype == torch.float32


def test_bce_without_any_known_negative_is_refused():
    message = (
        "objective 'bce' needs known negatives, and no training image has one: it would learn to predict every class "
        "everywhere. Use 'expected_negative' or 'assume_negative'; or, where what is not named is absent, read the "
        "labels with ReadOptions(complete=True)."
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        BCE().setup(Pass(), problem([[P, U], [U, P]]))
    BCE().setup(Pass(), problem([[P, U], [U, N]]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"smoothing": 0.5}, "smoothing must be in 0..0.5 (0.5 excluded: labels would say nothing), got 0.5."),
        ({"smoothing": -0.1}, "smoothing must be in 0..0.5 (0.5 excluded: labels would say nothing), got -0.1."),
        ({"negative_weight": 0.0}, "negative_weight must be a number above 0, or 'weak', got 0.0."),
        ({"negative_weight": float("nan")}, "negative_weight must be a number above 0, or 'weak', got nan."),
        (
            {"smoothing": 0.1, "negative_weight": "weak"},
            "smoothing=0.1 and negative_weight='weak' are two different baselines (AN-LS and WAN); give one of them.",
        ),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        AssumeNegative(**settings)


def test_weak_with_one_class_is_refused():
    message = "negative_weight='weak' is 1 / (classes - 1) and needs at least 2 classes; give a number."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        AssumeNegative(negative_weight="weak").setup(Pass(), problem([[P], [U]]))
