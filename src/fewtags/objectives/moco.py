"""MoCo-v2: match two views of an image against a queue of earlier keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from torch import nn

from fewtags.labels import Batch
from fewtags.losses.contrastive import collapse, infonce
from fewtags.nets.encoder import pooled
from fewtags.objectives.base import Derived, Objective, Part, Problem, Progress, RunFacts, Step
from fewtags.objectives.checks import Range, check_settings
from fewtags.objectives.momentum import (
    Keys,
    MomentumPair,
    default_queue_size,
    derived_momentum,
    derived_queue,
    mean_norm,
    queue_notes,
    second_view,
)
from fewtags.stores.queue import AlignedQueues


@final
@dataclass(eq=False, kw_only=True)
class MoCo(Objective):
    """MoCo-v2 (Chen et al., 2020): InfoNCE between the projections of two views, with a queue of earlier keys.

    The step is that of the published code: queries; keys by the momentum encoder, shuffled among the parts that
    BatchNorm sees; the loss against the queue as it was; then the keys are enqueued. Deviations: the queue starts
    empty, and empty slots are not negatives (the published queue starts with random vectors); any batch size can be
    combined with any queue size.

    Args:
        temperature: tau.
        momentum: m of the momentum encoder.
        queue_size: D, keys in the queue; default: about a sixteenth of the images, a power of two (16 to 65536).
        projection_dim: d_z.
        hidden_dim: width of the projector's hidden layer; default: that of the features.
        batchnorm_groups: number of parts in which BatchNorm sees a process's batch; keys are shuffled among the parts.
            1 with one process is plain BatchNorm, which lets the net recognise keys of its own batch.

    Raises:
        ConfigError: a value that is out of range.
    """

    needs_second_view: ClassVar[bool] = True

    temperature: Annotated[float, Range(1e-3)] = 0.2
    momentum: Annotated[float, Range(0, 1)] = 0.999
    queue_size: Annotated[int | None, Range(1)] = None
    projection_dim: Annotated[int, Range(1)] = 128
    hidden_dim: Annotated[int | None, Range(1)] = None
    batchnorm_groups: Annotated[int, Range(1)] = 1

    def __post_init__(self) -> None:
        check_settings(self)

    def derived(self, facts: RunFacts) -> Mapping[str, Derived]:
        """Queue size and, with few images, the momentum."""
        return derived_queue(facts) | derived_momentum(facts)

    def notes(self, facts: RunFacts) -> Iterator[str]:
        """Warn of a queue that is too long for the images."""
        return queue_notes(self.queue_size, facts)

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Make the projector, the momentum encoder and the queue."""
        widths = (self.hidden_dim or problem.features_dim, self.projection_dim)
        self._pair = MomentumPair(net, problem, widths, self.momentum, self.batchnorm_groups, pooled)
        size = self.queue_size or default_queue_size(problem.labels.shape[0])
        self._queue = AlignedQueues(size, {"projections": self.projection_dim}, device=problem.device)
        return {**self._pair.parts(), "queue": self._queue}

    def step(self, net: nn.Module, batch: Batch, at: Progress) -> Step:
        """InfoNCE of view 1's queries against view 2's keys and the queue.

        Raises:
            ConfigError: a batch without second views.
        """
        _, query = self._pair.query(net, batch.images)
        keys = self._pair.keys(net, second_view(batch, "MoCo"), batch.index, at)
        own, queue = keys.own(len(query)).projections.to(query), self._queue.read("projections").to(query)
        filled = self._queue.counted()
        loss = infonce(query, own, queue, self.temperature, counted=filled[None])
        logs = {
            "spread": collapse(query.detach()),
            "positive": (query.detach() * own).sum(1).mean(),
            "mean_key": mean_norm(queue, filled),
        }
        return Step(loss, logs, keys)

    @torch.no_grad()
    def commit(self, net: nn.Module, batch: Batch, out: Step) -> None:
        """Enqueue the keys of all processes, and move the momentum encoder."""
        keys: Keys = out.payload
        self._queue.enqueue(keys.ids, {"projections": keys.projections})
        self._pair.follow(net)
