"""A loop small enough to be run many times, also until the process is killed."""

import os
import signal

import numpy as np
import torch
from torch import nn

from fewtags.batched_views import maps_to_crop, stack_views
from fewtags.config.sections import StageConfig
from fewtags.engine.checkpoint import CheckpointFolder
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.evaluate import epoch_metrics
from fewtags.engine.events import StepEnded
from fewtags.engine.fit import Fit, FitConfig
from fewtags.geometry import View
from fewtags.labels import Batch, Label, LabelMatrix
from fewtags.losses.partial import assume_negative
from fewtags.nets.spatial import SpatialHead, SpatialNet
from fewtags.objectives.base import Objective, Problem, Step
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.photos.loader import EpochSampler
from fewtags.seeds import rng
from fewtags.stores.shard import Shard

CLASSES, SIZE, BATCH = 4, 12, 4
SAMPLES = 22  # six batches of 4, 4, 4, 4, 3 and 3
STAGES = (
    StageConfig(name="warmup", epochs=1, lr=1e-2, trainable="head", schedule="constant", warmup=True),
    StageConfig(name="main", epochs=3, lr=1e-2, trainable="all"),
)


def make_net(seed=0, dropout=0.2):
    """12 x 12 pixels become maps of 3 x 3; with BatchNorm, and with dropout for want of randomness."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        body = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(dropout),
            nn.Conv2d(8, 12, 3, 2, 1), nn.BatchNorm2d(12), nn.ReLU(),
        )  # fmt: skip
        return SpatialNet(body, SpatialHead(12, CLASSES, generator=torch.Generator().manual_seed(seed)))


def make_scenes(samples, seed=0):
    """Images [n, 3, 12, 12] of one to three textures in quarters; one positive told per image; the truth."""
    generator, half = np.random.default_rng(seed), SIZE // 2
    textures = np.random.default_rng(99).normal(size=(CLASSES, 3, half, half))
    images = 0.3 * generator.normal(size=(samples, 3, SIZE, SIZE))
    labels = np.full((samples, CLASSES), Label.UNKNOWN, np.int8)
    truth = np.full((samples, CLASSES), Label.NEGATIVE, np.int8)
    for n in range(samples):
        present = generator.choice(CLASSES, generator.integers(1, 4), replace=False)
        for c in present:
            y, x = half * generator.integers(2, size=2)
            images[n, :, y : y + half, x : x + half] += textures[c]
        truth[n, present] = Label.POSITIVE
        labels[n, present[0]] = Label.POSITIVE
    return torch.from_numpy(images).float(), labels, truth


class Together:
    """Batches of several processes as one sees them: theirs in a row, one rank after the other."""

    def __init__(self, samples, batch_size, seed, world):
        self.ranks = [EpochSampler(samples, batch_size, seed, rank, world) for rank in range(world)]
        self.steps = self.ranks[0].steps

    def batches(self, epoch, start):
        for step in zip(*(rank.batches(epoch, start) for rank in self.ranks), strict=True):
            yield [pair for batch in step for pair in batch]


class Crops:
    """Batches of random crops, a function of (epoch, step); a `BatchSource`."""

    def __init__(self, images, labels, sampler):
        self.images, self.labels, self.sampler = images, torch.from_numpy(labels), sampler

    @property
    def steps_per_epoch(self):
        return self.sampler.steps

    def batches(self, epoch, start):
        for pairs in self.sampler.batches(epoch, start):
            index, views = torch.tensor([i for _, i in pairs]), []
            for _, i in pairs:
                random = rng(7, epoch, i)
                side = random.uniform(0.6, 1)
                x, y = random.uniform(0, 1 - side, 2)
                view = View.crop(x, y, x + side, y + side)
                views.append(view.then(View.flip()) if random.random() < 0.5 else view)
            views = stack_views(views)
            yield Batch(
                images=maps_to_crop(self.images[index], views, (SIZE, SIZE)),
                labels=self.labels[index],
                index=index,
                views=views,
            )


class OwnLayer(Objective):
    """AN behind a layer of its own, which starts from a seed."""

    def __init__(self, seed):
        self.seed = seed

    def setup(self, net, problem):
        self.layer = nn.Linear(CLASSES, CLASSES, device=problem.device)
        for parameter in self.layer.parameters():
            nn.init.normal_(parameter, 0, 0.5, generator=torch.Generator().manual_seed(self.seed))
        return {"layer": self.layer}

    def step(self, net, batch, at):
        return Step(assume_negative(self.layer(net(batch.images).logits), batch.labels), {})


def make_fit(
    out,
    *,
    net_seed=0,
    dropout=0.2,
    samples=SAMPLES,
    shard=None,
    seen_as=None,
    method=None,
    objective=None,
    stages=STAGES,
    validate=True,
    **config,
):
    """A `Fit` on random scenes: EN + CL + SCL unless told otherwise.

    `seen_as`: how many processes' batches one process sees together.
    """
    shard = shard or Shard()
    images, labels, truth = make_scenes(samples)
    sampler = EpochSampler(samples, BATCH, 3, shard.rank, shard.world)
    if seen_as is not None:
        sampler = Together(samples, BATCH, 3, seen_as)
    settings = FitConfig(stages=tuple(stages), seed=3, **config)
    problem = Problem(
        labels=LabelMatrix.from_dense(labels),
        grid=(3, 3),
        warmup_epochs=settings.warmup_epochs,
        epochs=settings.epochs,
        seed=3,
        shard=shard,
        state_dir=None if out is None else out / "state",
        truth=LabelMatrix.from_dense(truth),
    )
    method = {"positives_per_image": 1.8, "cl_weight": 0.3, "scl_weight": 1.0} | (method or {})
    seen, _, val = make_scenes(9, seed=1)

    def score(net):
        with torch.no_grad():
            logits = net.predict_logits(seen)
        return epoch_metrics(logits.numpy(), val)

    return Fit(
        make_net(net_seed, dropout),
        objective or ExpectedNegative(**method),
        Crops(images, labels, sampler),
        settings,
        problem,
        accelerator=make_accelerator(settings.precision, cpu=True),
        out=out,
        validate=score if validate is True else validate or None,
    )


def die():
    """Kill -9, without a chance to clean up."""
    os.kill(os.getpid(), signal.SIGKILL)


def run_until_death(out, *, die_after=None, die_saving=None, **options):
    """Train, and die after so many optimiser steps, or while so many checkpoints are being saved."""
    finish, saves = CheckpointFolder.finish, iter(range(1, 1000))

    def count(folder, step, progress):
        """Die when the files are written and the folder has not got its name."""
        return die() if next(saves) == die_saving else finish(folder, step, progress)

    CheckpointFolder.finish = count
    for event in make_fit(out, **options).run():
        if isinstance(event, StepEnded) and event.global_step == die_after:
            die()
