"""The metadata of a model as nothing was fitted to it."""

from fewtags.engine.model import ModelInfo
from fewtags.nets.spatial import HeadPlan

NO_CHANGE = ((0.0,) * 3, (1.0,) * 3)
"""Mean and standard deviation of photos that a net takes as they are."""


def plain_info(classes, normalisation=NO_CHANGE, *, backbone="none", head=None, size=64, policy="coco"):
    """Return the metadata of a net with a threshold of one half for each class."""
    mean, std = normalisation
    return ModelInfo(
        backbone=backbone,
        output_stride=0,
        head=head or HeadPlan(),
        size=size,
        policy=policy,
        class_ids=classes,
        class_names=classes,
        thresholds=(0.5,) * len(classes),
        threshold_rules=("half",) * len(classes),
        mean=mean,
        std=std,
        method={},
        selection="",
        version="",
    )
