"""What self-supervised methods share: heads, queries, a momentum encoder, keys whose BatchNorm gives nothing away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from fewtags.errors import ConfigError
from fewtags.labels import Batch
from fewtags.nets.precision import mixed_precision
from fewtags.nets.projection import MLP, Follower, parameters_of, unit
from fewtags.objectives.base import Part, Problem, Progress
from fewtags.seeds import seed_of

# Streams of the random numbers that belong to a step or a run, apart from those of the loader.
SHUFFLE, PROJECTION, PREDICTION, DENSE = 101, 102, 103, 104

INFINITY = float("inf")
RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (1e-3, INFINITY),
    "momentum": (0.0, 1.0),
    "queue_size": (1.0, INFINITY),
    "projection_dim": (1.0, INFINITY),
    "hidden_dim": (1.0, INFINITY),
    "batchnorm_groups": (1.0, INFINITY),
}
"""Of the settings that all methods with a momentum encoder and a queue have."""


class Keys(NamedTuple):
    """The momentum encoder's view of a global batch, every process's rows in the order of ranks.

    Attributes:
        features: g, unit rows [B, d].
        projections: z, unit rows [B, p].
        ids: global sample numbers, int64 [B].
        first: where this process's own rows begin.
    """

    features: Tensor
    projections: Tensor
    ids: Tensor
    first: int

    def own(self, rows: int) -> Keys:
        """This process's rows only."""
        here = slice(self.first, self.first + rows)
        return Keys(self.features[here], self.projections[here], self.ids[here], 0)


@final
class MomentumPair:
    """A query encoder with its projector, and the slowly following copy of both that makes the keys (MoCo).

    Args:
        net: the encoder.
        problem: of `Objective.setup`.
        widths: of the projector's hidden layers and output.
        momentum: m; the copy moves after every optimiser step, which is before every key pass but the first, where
            both are still the same.
        groups: BatchNorm sees the batch of a process in so many parts. Keys are dealt out to other parts (and other
            processes) than their queries: MoCo's shuffled BatchNorm, on several GPUs or on one.
        pool: from features [b, d, h, w] to what the projector sees and the labels are made of [b, d].
        heads: further heads on the features, which are followed as well.

    Raises:
        ConfigError: the problem does not say how many channels the features have.
    """

    def __init__(
        self,
        net: nn.Module,
        problem: Problem,
        widths: Sequence[int],
        momentum: float,
        groups: int,
        pool: Callable[[Tensor], Tensor],
        **heads: nn.Module,
    ) -> None:
        self.problem, self.momentum, self.groups, self.pool = problem, momentum, groups, pool
        projector = MLP((channels_of(problem), *widths), seed=seed_of(problem.seed, PROJECTION))
        self.heads = {name: head.to(problem.device) for name, head in {"projector": projector, **heads}.items()}
        self.projector = self.heads["projector"]
        self.follower = Follower(encoder=net, **self.heads).to(problem.device)

    def parts(self) -> dict[str, Part]:
        """The projector and further heads, and the copy of all of it."""
        return {**self.heads, "follower": self.follower}

    def query(self, net: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
        """(g [b, d], z [b, p] of unit length) of a view, with gradients."""
        features = self.pool(run(net, images, self.groups))
        return features, unit(self.projector(features))

    def keys(self, net: nn.Module, images: Tensor, index: Tensor, at: Progress) -> Keys:
        """The copy's features and projections of a view, of the batches of all processes.

        BatchNorm follows the modes of `net`.
        """
        sizes = self.problem.shard.sizes(images)
        (features, projections), first = self.encode(net, images, at, self._outputs, sizes)
        return Keys(features, projections, self.problem.shard.concatenate(index, sizes)[0], first)

    @torch.no_grad()
    def encode(
        self,
        net: nn.Module,
        images: Tensor,
        at: Progress,
        outputs: Callable[[Tensor], Sequence[Tensor]],
        sizes: list[int] | None = None,
    ) -> tuple[list[Tensor], int]:
        """What the copy makes of a view, for the batches of all processes.

        Whatever `outputs` returns is put back in order alike: a second output that is not would be of other images.

        Args:
            net: the original.
            images: this process's batch [b, 3, H, W].
            at: decides how images are dealt out.
            outputs: from the copy's features [b, d, h, w] of some images to tensors with a row for each [b, ...].
            sizes: batch of each process, see `Shard.sizes`; None asks for them.

        Returns:
            The tensors [B, ...], processes in the order of ranks, and where this process's own rows begin.
        """
        shard = self.problem.shard
        self.follower.take_modes(net, *self.heads.values())
        sizes = shard.sizes(images) if sizes is None else sizes
        everything, first = shard.concatenate(images, sizes)
        order = self._order(len(everything), at)
        mine = everything if order is None else everything[order[first : first + len(images)]]
        with mixed_precision(images.device.type, self.problem.precision):
            encoded = run(self.follower.get_submodule("encoder"), mine, self.groups)
        found = [shard.concatenate(rows, sizes)[0] for rows in outputs(encoded)]
        if order is not None:
            back = order.argsort()
            found = [rows[back] for rows in found]
        return found, first

    def _outputs(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        features = self.pool(encoded.float() if encoded.element_size() < 4 else encoded)
        return unit(features), unit(self.follower.get_submodule("projector")(features))

    def follow(self, net: nn.Module) -> None:
        """Move the copy; called after an optimiser step."""
        self.follower.follow(parameters_of(net, *self.heads.values()), self.momentum)

    def _order(self, total: int, at: Progress) -> Tensor | None:
        """How the global batch is dealt out, the same on every process; None where there is but one part."""
        if self.problem.shard.world * self.groups == 1:
            return None
        generator = torch.Generator().manual_seed(seed_of(self.problem.seed, SHUFFLE, at.epoch, at.step))
        order = torch.randperm(total, generator=generator)
        if self.problem.device.type == "cuda":
            order = order.pin_memory()  # else the copy would wait for the device
        return order.to(self.problem.device, non_blocking=True)


def channels_of(problem: Problem) -> int:
    """d, the channels of the net's features.

    Raises:
        ConfigError: the problem does not say.
    """
    if problem.features_dim < 1:
        raise ConfigError("self-supervised methods need Problem.features_dim, the channels of the net's features.")
    return problem.features_dim


def predicting_heads(
    problem: Problem, hidden: Sequence[int], out: int, narrow: int, *, normalised_output: bool = False
) -> tuple[MLP, MLP]:
    """A projector and a predictor, with BatchNorm on hidden layers (SimSiam, BYOL, NNCLR).

    Args:
        problem: of `Objective.setup`.
        hidden: widths of the projector's hidden layers.
        out: width of what both return.
        narrow: width of the predictor's hidden layer.
        normalised_output: BatchNorm after the projector's last layer, too.

    Raises:
        ConfigError: the problem does not say how many channels the features have.
    """
    projector = MLP(
        (channels_of(problem), *hidden, out),
        normalised=True,
        normalised_output=normalised_output,
        seed=seed_of(problem.seed, PROJECTION),
    )
    predictor = MLP((out, narrow, out), normalised=True, seed=seed_of(problem.seed, PREDICTION))
    return projector.to(problem.device), predictor.to(problem.device)


def run(net: nn.Module, images: Tensor, groups: int = 1) -> Tensor:
    """Features [b, d, h, w] of images that go through the net in `groups` parts."""
    if groups == 1:
        features: tuple[Tensor, ...] = net(images)
        return features[0]
    parts: tuple[Tensor, ...] = net(*images.tensor_split(min(groups, len(images))))
    return torch.cat(parts)


def second_view(batch: Batch, method: str) -> Tensor:
    """The batch's second view.

    Raises:
        ConfigError: it has none.
    """
    if batch.second_view is None:
        raise ConfigError(
            f"{method} needs two views of every image; load them from a TrainSet that has a `second_view`."
        )
    return batch.second_view.images


def check_ranges(settings: object, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Refuse settings of an objective that are out of range; None passes.

    Raises:
        ConfigError: which, and what is allowed.
    """
    for name, (low, high) in ranges.items():
        value = getattr(settings, name)
        if value is not None and not low <= value <= high:
            bound = f"from {low:g} to {high:g}" if high < float("inf") else f"at least {low:g}"
            raise ConfigError(f"{name} must be {bound}, got {value}.")


def default_queue_size(samples: int) -> int:
    """About a sixteenth of the images, so that an image rarely meets its own older key: a power of two, 16 to 65536.

    >>> default_queue_size(118_287), default_queue_size(5_000), default_queue_size(200)
    (4096, 256, 16)
    """
    size = 16
    while size < 65536 and 2 * size <= samples / 16:
        size *= 2
    return size


def mean_norm(rows: Tensor, counted: Tensor) -> Tensor:
    """Length of the mean of the counted rows: near 0 where they lie all around, 1 where they are one vector."""
    weight = counted.to(rows.dtype)
    mean = (rows * weight[:, None]).sum(0) / weight.sum().clamp(min=1)
    length: Tensor = mean.norm()
    return length
