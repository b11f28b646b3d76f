"""A tiny net with random weights and the metadata of a trained model that knows three classes."""

import torch

from fewtags.engine.model import ModelInfo
from fewtags.nets.backbones import create_net
from fewtags.nets.pool import Pool
from fewtags.nets.spatial import HeadPlan


def make_model(backbone="test_resnet", *, size=64, kernel=1, pool="mean", policy="coco"):
    """Return a net and its metadata; the head is scaled so that scores differ."""
    head = HeadPlan(kernel, Pool(pool))
    net = create_net(backbone, 3, weights="none", size=size, head=head, seed=3).eval()
    with torch.no_grad():
        net.head.weight.mul_(20)
    ids = ("n01", "n02", "größe")
    info = ModelInfo(
        backbone=backbone,
        output_stride=0,
        head=head,
        size=size,
        policy=policy,
        class_ids=ids,
        class_names=("bird", "crane", "crane"),
        thresholds=(0.25, 1 / 3, 0.5),
        threshold_rules=("class_f1", "pooled_f1", "half"),
        mean=net.preprocessing.mean,
        std=net.preprocessing.std,
        method={"name": "assume_negative"},
        selection="",
        version="0.1.0",
    )
    return net, info
