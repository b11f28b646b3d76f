"""Shared code of self-supervised methods: base classes, heads, and a momentum encoder with shuffled BatchNorm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, cast, final

import numpy as np
import torch
from torch import Tensor, nn

from fewtags.errors import ConfigError
from fewtags.labels import Batch, LabelMatrix
from fewtags.losses.contrastive import collapse
from fewtags.metrics.neighbours import neighbour_precision
from fewtags.nets.encoder import pooled
from fewtags.nets.precision import mixed_precision
from fewtags.nets.projection import MLP, Follower, parameters_of, unit
from fewtags.objectives.base import Derived, Objective, Part, Problem, Progress, RunFacts, Step
from fewtags.objectives.checks import check_settings
from fewtags.seeds import seed_of
from fewtags.stores.queue import AlignedQueues

# Streams of the random numbers that belong to a step or a run, apart from those of the loader.
SHUFFLE, PROJECTION, PREDICTION, DENSE = 101, 102, 103, 104

PURITY_K, PURITY_PHOTOS = 5, 2000
"""Neighbours of each key, and most keys, in `neighbour_purity`."""

PAPER_QUEUE = 4096
"""Length of the queue in the published code of MLS; the default except for few images."""


class Keys(NamedTuple):
    """Outputs of the momentum encoder for the batches of all processes, in the order of ranks.

    Attributes:
        features: g, unit rows [B, d].
        projections: z, unit rows [B, p].
        ids: image numbers, int64 [B].
        first: position of this process's first row.
    """

    features: Tensor
    projections: Tensor
    ids: Tensor
    first: int

    def own(self, rows: int) -> Keys:
        """Return the rows of this process."""
        here = slice(self.first, self.first + rows)
        return Keys(self.features[here], self.projections[here], self.ids[here], 0)


@final
class MomentumPair:
    """A query encoder with its projector, and the momentum encoder: a slowly following copy of both (MoCo).

    Args:
        net: the encoder.
        problem: of `Objective.setup`.
        widths: widths of the projector's hidden layers and output.
        momentum: m of the copy, which moves after every optimiser step.
        groups: number of parts in which BatchNorm sees the batch of a process. Keys are in other parts (and on other
            processes) than their queries: MoCo's shuffled BatchNorm, on several GPUs or on one.
        heads: further heads on the features; the copy follows them as well.
    """

    def __init__(
        self, net: nn.Module, problem: Problem, widths: Sequence[int], momentum: float, groups: int, **heads: nn.Module
    ) -> None:
        self.problem, self.momentum, self.groups = problem, momentum, groups
        projector = MLP((channels_of(problem), *widths), seed=seed_of(problem.seed, PROJECTION))
        self.heads = {name: head.to(problem.device) for name, head in {"projector": projector, **heads}.items()}
        self.projector = self.heads["projector"]
        self.follower = Follower(encoder=net, **self.heads).to(problem.device)

    def parts(self) -> dict[str, Part]:
        """Return the projector, the further heads, and the copy of all of them."""
        return {**self.heads, "follower": self.follower}

    def query(self, net: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return (g [b, d], z [b, p] of unit length) of a view, with gradients."""
        features = pooled(run(net, images, self.groups))
        return features, unit(self.projector(features))

    def keys(self, net: nn.Module, images: Tensor, index: Tensor, at: Progress) -> Keys:
        """Return the copy's features and projections of a view for the batches of all processes."""
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
        """Return outputs of the copy for a view, for the batches of all processes, in the order of the images.

        Args:
            net: the original; the copy's BatchNorm takes over its modes.
            images: this process's batch [b, 3, H, W].
            at: the position in training, from which the shuffled order is drawn.
            outputs: a function from the copy's features [b, d, h, w] to tensors with one row per image [b, ...].
            sizes: batch size of each process (`Shard.sizes`); None: they are exchanged here.

        Returns:
            The tensors [B, ...], and the position of this process's first row.
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
        features = pooled(encoded.float() if encoded.element_size() < 4 else encoded)
        return unit(features), unit(self.follower.get_submodule("projector")(features))

    def follow(self, net: nn.Module) -> None:
        """Update the copy after an optimiser step."""
        self.follower.follow(parameters_of(net, *self.heads.values()), self.momentum)

    def _order(self, total: int, at: Progress) -> Tensor | None:
        """Return the shuffled order of the global batch, equal on all processes; None if there is only one part."""
        if self.problem.shard.world * self.groups == 1:
            return None
        generator = torch.Generator().manual_seed(seed_of(self.problem.seed, SHUFFLE, at.epoch, at.step))
        order = torch.randperm(total, generator=generator)
        if self.problem.device.type == "cuda":
            order = order.pin_memory()  # else the copy would wait for the device
        return order.to(self.problem.device, non_blocking=True)


class TwoViewObjective(Objective):
    """Base of the pretraining methods: two views of every image, and settings that are checked."""

    needs_second_view: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_settings(cast("Any", self))


class QueueObjective(TwoViewObjective):
    """Base of MoCo-v2 and the methods built on it: a momentum encoder and queues of its outputs.

    Subclasses set `_pair` and `_queues` in `setup`, and return the arguments of `AlignedQueues.enqueue` as payload.
    """

    queue_size: int | None
    projection_dim: int
    hidden_dim: int | None
    momentum: float
    batchnorm_groups: int
    _pair: MomentumPair
    _queues: AlignedQueues

    def derived(self, facts: RunFacts) -> Mapping[str, Derived]:
        """Derive the queue size and, with few images, the momentum."""
        return derived_queue(facts) | derived_momentum(facts)

    def notes(self, facts: RunFacts) -> Iterator[str]:
        """Warn of a queue that is too long for the number of images."""
        return queue_notes(self.queue_size, facts)

    def on_epoch_start(self, epoch: int) -> Mapping[str, float]:
        """Return the purity of neighbours in the queue, if there are labels."""
        return neighbour_purity(self._queues, self._pair.problem.truth)

    @torch.no_grad()
    def commit(self, net: nn.Module, batch: Batch, out: Step) -> None:
        """Enqueue the keys of all processes, and move the momentum encoder."""
        self._queues.enqueue(*out.payload)
        self._pair.follow(net)

    def make_pair(self, net: nn.Module, problem: Problem, **heads: nn.Module) -> MomentumPair:
        """Return the encoder and its momentum encoder, with further heads."""
        widths = (self.hidden_dim or channels_of(problem), self.projection_dim)
        return MomentumPair(net, problem, widths, self.momentum, self.batchnorm_groups, **heads)


def neighbour_purity(queues: AlignedQueues, truth: LabelMatrix | None) -> dict[str, float]:
    """Return how many of the nearest keys in a queue share a class with a key, and the same by chance, if it is known.

    Keys are compared by features, or else by projections; a photo has one key, and at most `PURITY_PHOTOS` photos are
    compared. Which pairs count: `metrics.neighbours.neighbour_precision`. Waits for the device.
    """
    if truth is None or not truth.shape[1]:
        return {}
    rows = queues.rows.get("features", queues.rows["projections"])
    ids, places = np.unique(queues.ids[queues.counted()].cpu().numpy(), return_index=True)
    chosen = np.linspace(0, len(ids) - 1, min(len(ids), PURITY_PHOTOS)).astype(np.int64)
    if len(chosen) <= PURITY_K:
        return {}
    report = neighbour_precision(rows.cpu().float().numpy()[places[chosen]], truth.rows(ids[chosen]), PURITY_K)
    if not report.images:
        return {}
    return {"neighbour_purity": report.precision, "neighbour_chance": report.chance}


def make_queues(size: int | None, problem: Problem, dims: Mapping[str, int]) -> AlignedQueues:
    """Return queues of a size, or of the default size."""
    return AlignedQueues(size or default_queue_size(problem.labels.shape[0]), dims, device=problem.device)


def key_logs(query: Tensor, own: Tensor, queue: Tensor, filled: Tensor) -> dict[str, Tensor]:
    """Return diagnostics of queries [b, p], their keys [b, p], and the filled slots of a queue [D, p]."""
    return {
        "spread": collapse(query.detach()),
        "positive": (query.detach() * own).sum(1).mean(),
        "mean_key": mean_norm(queue, filled),
    }


def channels_of(problem: Problem) -> int:
    """Return d, the channels of the net's features; raise a `ConfigError` if the problem does not state them."""
    if problem.features_dim < 1:
        raise ConfigError("self-supervised methods need Problem.features_dim, the channels of the net's features.")
    return problem.features_dim


def predicting_heads(
    problem: Problem, hidden: Sequence[int], out: int, narrow: int, *, normalised_output: bool = False
) -> tuple[MLP, MLP]:
    """Return a projector and a predictor, with BatchNorm on hidden layers (SimSiam, BYOL, NNCLR).

    Args:
        problem: of `Objective.setup`.
        hidden: widths of the projector's hidden layers.
        out: output width of both.
        narrow: width of the predictor's hidden layer.
        normalised_output: also add BatchNorm after the projector's last layer.
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
    """Return the features [b, d, h, w] of images that pass through the net in `groups` parts."""
    if groups == 1:
        features: tuple[Tensor, ...] = net(images)
        return features[0]
    parts: tuple[Tensor, ...] = net(*images.tensor_split(min(groups, len(images))))
    return torch.cat(parts)


def second_view(batch: Batch, method: str) -> Tensor:
    """Return the batch's second view; raise a `ConfigError` if it has none."""
    if batch.second_view is None:
        raise ConfigError(
            f"{method} needs two views of every image; load them from a TrainSet that has a `second_view`."
        )
    return batch.second_view.images


def default_queue_size(samples: int) -> int:
    """Return a power of two (16 to 65536): an eighth of the images, or 256, but at most half.

    At 3,520 images it is 256, the length in docs/pretraining_benchmark.md; others were not measured.

    >>> default_queue_size(118_287), default_queue_size(3_520), default_queue_size(1_000), default_queue_size(260)
    (8192, 256, 256, 128)
    """
    size, most = 16, min(samples / 2, max(samples / 8, 256))
    while size < 65536 and 2 * size <= most:
        size *= 2
    return size


def derived_queue(facts: RunFacts) -> dict[str, Derived]:
    """Derive the queue size, for `Objective.derived`."""
    return {"queue_size": Derived(default_queue_size(facts.samples) if facts.few_images else PAPER_QUEUE)}


def derived_momentum(facts: RunFacts) -> dict[str, Derived]:
    """Derive the momentum: with few images, a run has few steps, and the copy must follow faster."""
    return {"momentum": Derived(0.99)} if facts.few_images else {}


def queue_notes(queue_size: int | None, facts: RunFacts) -> Iterator[str]:
    """Warn of a queue that is longer than the number of images, and of a run that never uses its queue."""
    if not queue_size:
        return
    if queue_size > facts.samples:
        yield (
            f"warning: a queue of {queue_size:,} for {facts.samples:,} photos has several keys of the same photos; set "
            f"objective.queue_size to {max(1, facts.samples // 2):,} or less"
        )
    if facts.steps_per_epoch == 1 and facts.epochs == 1:
        yield f"warning: {facts.samples:,} photos make a single step, and its queue is empty: nothing will be learned"


def mean_norm(rows: Tensor, counted: Tensor) -> Tensor:
    """Return the length of the mean of the counted rows: near 0 for all directions, 1 for equal rows."""
    weight = counted.to(rows.dtype)
    length: Tensor = ((rows * weight[:, None]).sum(0) / weight.sum().clamp(min=1)).norm()
    return length
