"""A head to solve on random features.

As a script, one of two processes that solve it: `solve_worker.py RANK FOLDER`.
"""

import numpy as np
import torch
from torch import nn
from two_processes import main

from fewtags.config.sections import StageConfig
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.evaluate import epoch_metrics
from fewtags.engine.events import Ended
from fewtags.engine.fit import Fit, FitConfig
from fewtags.engine.sources import StoredViews, ViewFeatures
from fewtags.labels import Label, LabelMatrix
from fewtags.nets.spatial import SpatialHead, SpatialNet
from fewtags.objectives.base import Problem
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.photos.loader import EpochSampler

SAMPLES, CLASSES, DIM = 23, 3, 6  # 12 of one process, 11 of the other
STAGES = (StageConfig(name="solve", epochs=3, logit_variances=(0.1, 1.0, 10.0), trainable="head"),)


def make_fit(out, shard, objective=None, *, stages=STAGES, val_unknown=False, val_empty=False, **options):
    """The first three photos are answered; answers count only in stages with `answer_weights`."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, DIM)) + 2.0
    truth = (x - 2.0) @ rng.normal(size=(DIM, CLASSES)) + 0.3 * rng.normal(size=(SAMPLES, CLASSES)) > 0
    dense = np.where(truth & (rng.random(truth.shape) < 0.6), Label.POSITIVE, Label.UNKNOWN).astype(np.int8)
    answers = np.zeros_like(dense)
    if stages[-1].answer_weights:
        answers[:3] = dense[:3] = np.where(truth[:3], Label.POSITIVE, Label.NEGATIVE)
    labels = LabelMatrix.from_dense(dense)
    other = Label.UNKNOWN if val_unknown else Label.NEGATIVE
    judged = np.where(truth & (not val_empty), Label.POSITIVE, other).astype(np.int8)
    own = torch.from_numpy(x).float()[shard.owned(SAMPLES)][None, :, :, None, None]
    identity = torch.eye(2, 3).expand(1, own.shape[1], 2, 3)
    sampler = EpochSampler(SAMPLES, 6, 0, shard.rank, shard.world)
    source = StoredViews(ViewFeatures(own, identity), sampler, labels, shard=shard)
    net = SpatialNet(nn.Identity(), SpatialHead(DIM, CLASSES))
    config = FitConfig(stages=stages, **options)
    device = torch.device("cpu")
    problem = Problem(
        labels=labels,
        grid=(1, 1),
        warmup_epochs=config.warmup_epochs,
        epochs=config.epochs,
        seed=0,
        shard=shard,
        device=device,
        answered=LabelMatrix.from_dense(answers),
        features_dim=DIM,
    )
    inputs = torch.from_numpy(x).float()[:, :, None, None]

    def validate(module):
        return epoch_metrics(module.head.predict_logits(inputs).numpy(), judged)

    return Fit(
        net,
        objective or ExpectedNegative(positives_per_image=1.5, scl_weight=0.0),
        source,
        config,
        problem,
        accelerator=make_accelerator(cpu=True),
        model=net.head,
        fixed=source,
        out=out,
        validate=validate,
    )


def with_prototypes():
    return ExpectedNegative(positives_per_image=1.5, scl_weight=0.0, prototype_weight=0.5)


def solve_both(folder, shard):
    fit, ranked = make_fit(folder / "run", shard), make_fit(folder / "ranked", shard, with_prototypes())
    for each in (fit, ranked):
        assert isinstance([*each.run()][-1], Ended)
    return {
        "head": fit.net.head.state_dict(),
        "scores": fit.parts["scores"].state_dict()["values"],
        "prototypes": ranked.parts["prototypes"].state_dict(),
        "cuts": ranked.parts["expected_positives"].state_dict(),
    }


if __name__ == "__main__":
    main(solve_both)
