"""The table of built-in methods. Importing it imports no method, so that command-line help stays fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Method:
    """A built-in method.

    Attributes:
        path: "module:Class", as for a method of your own.
        summary: one line of help.
    """

    path: str
    summary: str


METHODS: Mapping[str, Method] = {
    "bce": Method(
        "fewtags.objectives.assume_negative:BCE", "cross-entropy of known labels; unknown labels are ignored"
    ),
    "assume_negative": Method(
        "fewtags.objectives.assume_negative:AssumeNegative", "unknown labels count as negative (AN, AN-LS, WAN)"
    ),
    "expected_negative": Method(
        "fewtags.objectives.expected_negative:ExpectedNegative",
        "the best-scored unknown labels are ignored, the rest count as negative (EN, CL, SCL)",
    ),
    "patchml": Method(
        "fewtags.objectives.patchml:PatchML", "points and boxes as labels of patches, pseudo-labels from prototypes"
    ),
    "fixmatch": Method(
        "fewtags.objectives.fixmatch:FixMatch", "confident predictions on one view are labels of another view"
    ),
}
"""Methods of `fewtags train`."""

PRETRAIN_METHODS: Mapping[str, Method] = {
    "mls": Method("fewtags.objectives.mls:MLS", "the nearest images are an image's labels, several at once"),
    "moco": Method("fewtags.objectives.moco:MoCo", "MoCo-v2: match two views of an image against a queue of others"),
    "simsiam": Method("fewtags.objectives.simsiam:SimSiam", "each view predicts the other view's projection"),
    "byol": Method("fewtags.objectives.byol:BYOL", "each view predicts a moving average of the net on the other view"),
    "nnclr": Method(
        "fewtags.objectives.nnclr:NNCLR", "the positive of a view is its nearest neighbour among earlier images"
    ),
    "densecl": Method("fewtags.objectives.densecl:DenseCL", "MoCo-v2 for images and for single cells of the grid"),
}
"""Methods of `fewtags pretrain`; they use no labels."""

DEFAULT_METHOD, LOCATED_METHOD, DEFAULT_PRETRAIN_METHOD = "expected_negative", "patchml", "mls"
"""The methods for training with tags, for training with tags, points and boxes, and for pretraining."""

OWN_METHOD = "my_package.my_module:MyObjective"
"""How to name a method of your own."""


def method_help(methods: Mapping[str, Method], default: str) -> str:
    """Return the help of `--method`."""
    return f"{', '.join(methods)}, or a class of your own ({OWN_METHOD}); see `fewtags methods`. Default: {default}."
