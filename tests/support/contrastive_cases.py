"""Inputs of the tests of contrastive losses."""

import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from fewtags.losses.contrastive import (
    bce_pos,
    knn_softmax,
    mls_bce,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "mls.json").read_text())
INPUTS = GOLDEN["inputs"]
TAU = INPUTS["tau"]
READINGS = ["eq10", "eq2", "eq11"]
REDUCTIONS = ["mean", "per_positive", "balanced"]


def float64(rows):
    return torch.tensor(rows, dtype=torch.float64)


def boolean(rows):
    return torch.tensor(rows, dtype=torch.bool)


def unit(rows):
    return F.normalize(rows, dim=1)


def close(got, expected, tolerance=1e-10):
    got = got.detach() if isinstance(got, torch.Tensor) else got
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def losses_of_logits():
    for reading in READINGS:
        yield reading, lambda x, y, c, r=reading: knn_softmax(x, y, counted=c, reading=r)
    for reduction in REDUCTIONS:
        yield reduction, lambda x, y, c, r=reduction: mls_bce(x, y, counted=c, reduction=r, bias=0.3)
        yield f"{reduction} of positives", lambda x, y, c, r=reduction: bce_pos(x, y, counted=c, reduction=r)


ALL = dict(losses_of_logits())
