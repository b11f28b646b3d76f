"""The smallest loop that keeps the contract of objectives, for those without labels; and, run as a script, one of two
processes that train in it.
"""

import copy
import dataclasses
import functools

import numpy as np
import torch
import torch.distributed as dist
from contract_loop import ContractLoop
from torch import nn
from two_processes import main

from fewtags.labels import Batch, LabelMatrix, SecondView
from fewtags.objectives.base import Problem
from fewtags.objectives.byol import BYOL
from fewtags.objectives.densecl import DenseCL
from fewtags.objectives.mls import MLS
from fewtags.objectives.moco import MoCo
from fewtags.objectives.nnclr import NNCLR
from fewtags.objectives.simsiam import SimSiam
from fewtags.stores.shard import SINGLE_PROCESS

SAMPLES, CLASSES, SIZE, STEPS, EPOCHS = 26, 3, 8, 3, 4
CHANNELS = 6


def moco(**options):
    return lambda: MoCo(**{"queue_size": 20, "projection_dim": 5, "momentum": 0.9, **options})


def mls(**options):
    return lambda: MLS(**{"k": 3, "queue_size": 20, "projection_dim": 5, "momentum": 0.9, **options})


def byol(**options):
    return lambda: BYOL(**{"projection_dim": 5, "hidden_dim": 8, "predictor_dim": 8, "momentum": 0.9, **options})


def nnclr(**options):
    return lambda: NNCLR(**{"queue_size": 20, "projection_dim": 5, "predictor_dim": 8, **options})


def densecl(**options):
    return lambda: DenseCL(**{"queue_size": 20, "projection_dim": 5, "momentum": 0.9, **options})


METHODS = {
    "moco": moco(),
    "moco-groups": moco(batchnorm_groups=3),
    "moco-small-queue": moco(queue_size=5),
    "mls": mls(),
    "mls-groups": mls(batchnorm_groups=3),
    "mls-per-positive": mls(reduction="per_positive", weight=0.1),
    "mls-balanced": mls(reduction="balanced"),
    "mls-bias": mls(logit_bias=-1.7),
    "mls-bce-pos": mls(neighbour_loss="bce_pos", reduction="per_positive"),
    "mls-knn-10": mls(neighbour_loss="knn_eq10"),
    "mls-knn-2": mls(neighbour_loss="knn_eq2"),
    "mls-knn-11": mls(neighbour_loss="knn_eq11"),
    "mls-self": mls(include_self=True),
    "mls-warm-up": mls(neighbour_from=2),
    "mls-projections": mls(source="projections"),
    "mls-features": mls(source="features"),
    "simsiam": lambda: SimSiam(projection_dim=8, predictor_dim=4),
    "byol": byol(),
    "byol-constant": byol(momentum_schedule="constant"),
    "nnclr": nnclr(),
    "densecl": densecl(),
    "densecl-groups": densecl(batchnorm_groups=3),
    "densecl-dense": densecl(weight=1.0),
}


class Net(nn.Module):
    """Convolutions with BatchNorm between them; 8 x 8 pixels become 2 x 2 cells. Several views in one call."""

    def __init__(self, seed):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layers = nn.Sequential(
                nn.Conv2d(3, 8, 2, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, CHANNELS, 2, 2), nn.ReLU()
            )

    def forward(self, *views):
        return tuple(self.layers(view) for view in views)


def images_of(index, key):
    """A view of images that have their own texture: the texture, a shift of it, noise."""
    rng = np.random.default_rng(key)
    made = [np.random.default_rng([5, i % 13]).normal(size=(3, SIZE, SIZE)) for i in index.tolist()]
    made = [np.roll(image, rng.integers(-1, 2), axis=2) + rng.normal(size=image.shape) * 0.3 for image in made]
    return torch.from_numpy(np.stack(made)).float()


def batch(epoch, step, ranks=(0, 1), labels=None):
    """What the given ones of two processes see together: of 26 images 13 each, in batches of 5, 5 and 3 or 4, 4, 5."""
    return copy.deepcopy(_batch(epoch, step, ranks, labels))


@functools.cache  # all methods see the same few batches
def _batch(epoch, step, ranks, labels):
    cuts = ((0, 5, 10, 13), (0, 4, 8, 13))
    index, views = [], ([], [])
    for rank in ranks:
        own = rank + 2 * np.random.default_rng([1, epoch, rank]).permutation(SAMPLES // 2)
        index.append(torch.from_numpy(own[cuts[rank][step] : cuts[rank][step + 1]]))
        for k, view in enumerate(views):
            view.append(images_of(index[-1], [k, epoch, step, rank]))
    index, (one, two) = torch.cat(index), (torch.cat(view) for view in views)
    labels = torch.zeros(SAMPLES, CLASSES, dtype=torch.int8) if labels is None else labels
    crops = torch.zeros(len(index), 2, 3)
    return Batch(
        images=one, labels=labels[index], index=index, views=crops, places=None, second_view=SecondView(two, crops)
    )


class Loop(ContractLoop):
    """The loop on two views of textures.

    With two processes gradients are averaged by the share of the images; with `eval_mode`, BatchNorm does not look at
    the batch; with `double`, all weights are in double precision.
    """

    steps, epochs = STEPS, EPOCHS

    def __init__(self, name, *, net=None, shard=SINGLE_PROCESS, eval_mode=False, double=False, labels=None, **options):
        self.net, self.shard, self.method, self.labels = net or Net(0), shard, METHODS[name](), labels
        self.ranks = (0, 1) if shard.world == 1 else (shard.rank,)
        matrix = np.zeros((SAMPLES, CLASSES), np.int8) if labels is None else labels.numpy()
        problem = Problem(
            labels=LabelMatrix.from_dense(matrix),
            grid=(2, 2),
            epochs=EPOCHS,
            seed=3,
            shard=shard,
            features_dim=CHANNELS,
            **options,
        )
        self.parts = self.method.setup(self.net, problem)
        self.modules = [self.net, *(part for part in self.parts.values() if isinstance(part, nn.Module))]
        if double:
            for module in self.modules:
                module.double()
        self.net.train(not eval_mode)
        self.double = double
        self.begin()
        weights = [p for module in self.modules for p in module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9)

    def batch(self):
        assert not any(self.diagnostics)
        made = batch(self.epoch, self.step, self.ranks, self.labels)
        if not self.double:
            return made
        second_view = made.second_view._replace(images=made.second_view.images.double())
        return dataclasses.replace(made, images=made.images.double(), second_view=second_view)

    def backward(self, loss, made):
        share = len(made.index) / self.shard.sum(torch.tensor(len(made.index))).item()
        (loss * share).backward()
        if self.shard.world > 1:
            gradients = [weight.grad for group in self.optimizer.param_groups for weight in group["params"]]
            flat = nn.utils.parameters_to_vector(gradients)
            dist.all_reduce(flat)
            nn.utils.vector_to_parameters(flat, gradients)
        return self.shard.sum(loss.detach() * share).item()


def ended(name, shard):
    """Losses and state after 7 steps whose BatchNorm does not look at the batch, in double precision."""
    loop = Loop(name, shard=shard, eval_mode=True, double=True).run(stop_after=7)
    return {"losses": loop.losses, "net": dict(loop.net.state_dict()), "parts": loop.state()["parts"]}


if __name__ == "__main__":
    main(lambda _, shard: {name: ended(name, shard) for name in METHODS})
