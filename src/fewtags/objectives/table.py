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
    "epr": Method(
        "fewtags.objectives.counted:EPR", "known labels, and a penalty on the mean number of predicted classes"
    ),
    "role": Method(
        "fewtags.objectives.counted:ROLE", "the net and one learned label per image and class teach each other"
    ),
    "pairwise_ranking": Method(
        "fewtags.objectives.counted:PairwiseRanking", "positives should rank above the other classes of their image"
    ),
    "large_loss": Method(
        "fewtags.objectives.large_loss:LargeLoss",
        "unknown labels count as negative, but those with the largest losses do not (LL-R, LL-Ct, LL-Cp)",
    ),
    "focal": Method("fewtags.objectives.focusing:Focal", "assume-negative with less weight on easy labels"),
    "asl": Method(
        "fewtags.objectives.focusing:AsymmetricLoss", "focal loss with a stronger focus on negatives, which are clipped"
    ),
    "hill": Method("fewtags.objectives.focusing:Hill", "negatives with a high score have no gradient"),
    "splc": Method("fewtags.objectives.focusing:SPLC", "unknown labels with a high score count as positive"),
    "csl": Method(
        "fewtags.objectives.class_aware:ClassAwareSelective",
        "unknown labels count as negative, but not those of frequent classes or with high scores",
    ),
    "em": Method(
        "fewtags.objectives.uncertain:EntropyMaximisation",
        "the entropy of unknown labels is maximised; the lowest-scored get soft labels (EM, APL; VLPL with a teacher)",
    ),
    "gr": Method(
        "fewtags.objectives.uncertain:GeneralisedRobust",
        "unknown labels have soft labels and weights that depend on their scores (GR; GPR with a teacher)",
    ),
    "temporal_ensembling": Method(
        "fewtags.objectives.temporal:TemporalEnsembling",
        "assume-negative, and predictions agree with the mean of earlier ones",
    ),
    "curriculum": Method(
        "fewtags.objectives.curriculum:CurriculumLabelling",
        "between epochs, unknown labels with a clear prediction become labels",
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
    "moco": Method("fewtags.objectives.moco:MoCo", "MoCo-v2: match two views of an image against a queue of others"),
    "mls": Method(
        "fewtags.objectives.mls:MLS", "MoCo-v2, and the nearest images are an image's labels, several at once"
    ),
    "simsiam": Method("fewtags.objectives.simsiam:SimSiam", "each view predicts the other view's projection"),
    "byol": Method("fewtags.objectives.byol:BYOL", "each view predicts a moving average of the net on the other view"),
    "nnclr": Method(
        "fewtags.objectives.nnclr:NNCLR", "the positive of a view is its nearest neighbour among earlier images"
    ),
    "densecl": Method("fewtags.objectives.densecl:DenseCL", "MoCo-v2 for images and for single cells of the grid"),
}
"""Methods of `fewtags pretrain`; they use no labels."""

DEFAULT_METHOD, DEFAULT_PRETRAIN_METHOD = "expected_negative", "moco"
"""The methods for training and for pretraining, if none is named."""

OWN_METHOD = "my_package.my_module:MyObjective"
"""How to name a method of your own."""


def method_help(methods: Mapping[str, Method], default: str) -> str:
    """Return the help of `--method`."""
    return f"{', '.join(methods)}, or a class of your own ({OWN_METHOD}); see `fewtags methods`. Default: {default}."
