"""Shared parts of self-supervised methods: heads, queries, and a momentum encoder whose BatchNorm leaks nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from fewtags.errors import ConfigError
from fewtags.labels import Batch
from fewtags.nets.precision import mixed_precision
from fewtags.nets.projection import MLP, Follower, parameters_of, unit
from fewtags.objectives.base import Derived, Part, Problem, Progress, RunFacts
from fewtags.seeds import seed_of

# Streams of the random numbers that belong to a step or a run, apart from those of the loader.
SHUFFLE, PROJECTION, PREDICTION, DENSE = 101, 102, 103, 104

PAPER_QUEUE = 4096
"""Length of the queue in the published code of MLS; the default except for few images."""


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
        groups: number of parts in which BatchNorm sees the batch of a process. Keys are dealt out to other parts (and
            other processes) than their queries: MoCo's shuffled BatchNorm, on several GPUs or on one.
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
        """Return outputs of the copy for a view, for the batches of all processes.

        All tensors that `outputs` returns are put back into the order of the images.

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
        """Order in which the global batch is dealt out, equal on all processes; None if there is only one part."""
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


def default_queue_size(samples: int) -> int:
    """About a sixteenth of the images, so that an image rarely meets its own older key: a power of two, 16 to 65536.

    >>> default_queue_size(118_287), default_queue_size(5_000), default_queue_size(200)
    (4096, 256, 16)
    """
    size = 16
    while size < 65536 and 2 * size <= samples / 16:
        size *= 2
    return size


def derived_queue(facts: RunFacts) -> dict[str, Derived]:
    """Return the queue size for `Objective.derived`."""
    return {"queue_size": Derived(default_queue_size(facts.samples) if facts.few_images else PAPER_QUEUE)}


def derived_momentum(facts: RunFacts) -> dict[str, Derived]:
    """Return the momentum for `Objective.derived`: with few images, a run has few steps, and the copy must keep up."""
    return {"momentum": Derived(0.99)} if facts.few_images else {}


def queue_notes(queue_size: int | None, facts: RunFacts, role: str = "negative") -> Iterator[str]:
    """Yield warnings about a queue that is too long for the number of images, for `Objective.notes`.

    Args:
        queue_size: D.
        facts: of the run.
        role: what an image's own older key becomes when the queue still contains it.
    """
    if not queue_size:
        return
    if queue_size > facts.samples / 4:
        # The share of queries that meet their own older key if every epoch is a new permutation.
        share = min(1.0, (queue_size / facts.samples) ** 2 / 2 if queue_size < facts.samples else 1.0)
        yield (
            f"warning: a queue of {queue_size:,} for {facts.samples:,} photos: {100 * share:.0f} % of the queries meet "
            f"an older key of their own image as a {role}; set objective.queue_size to {max(1, facts.samples // 16):,}"
        )
    if facts.steps_per_epoch == 1 and facts.epochs == 1:
        yield f"warning: {facts.samples:,} photos make a single step, and its queue is empty: nothing will be learned"


def mean_norm(rows: Tensor, counted: Tensor) -> Tensor:
    """Length of the mean of the counted rows: near 0 if they point in all directions, 1 if they are equal."""
    weight = counted.to(rows.dtype)
    mean = (rows * weight[:, None]).sum(0) / weight.sum().clamp(min=1)
    length: Tensor = mean.norm()
    return length
