"""MoCo-v2: match two views of an image against a queue of earlier keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, final

from torch import nn

from fewtags.labels import Batch
from fewtags.losses.contrastive import infonce
from fewtags.objectives.base import Part, Problem, Progress, Step
from fewtags.objectives.checks import Range
from fewtags.objectives.momentum import QueueObjective, key_logs, make_queues, second_view


@final
@dataclass(eq=False, kw_only=True)
class MoCo(QueueObjective):
    """MoCo-v2 (Chen et al., 2020): InfoNCE between the projections of two views, with a queue of earlier keys.

    The step is that of the published code: queries; keys by the momentum encoder, shuffled among the parts that
    BatchNorm sees; the loss against the queue as it was; then the keys are enqueued. Deviations: the queue starts
    empty, and empty slots are not negatives (the published queue starts with random vectors); an image's older keys
    are not its negatives, so that a queue can be long for few images; any batch size can be combined with any
    queue size.

    Args:
        temperature: tau.
        momentum: m of the momentum encoder.
        queue_size: D, keys in the queue; default: see `default_queue_size`.
        projection_dim: d_z.
        hidden_dim: width of the projector's hidden layer; default: that of the features.
        batchnorm_groups: number of parts in which BatchNorm sees a process's batch; keys are shuffled among the parts.
            1 with one process is plain BatchNorm, which lets the net recognise keys of its own batch.
    """

    temperature: Annotated[float, Range(1e-3)] = 0.2
    momentum: Annotated[float, Range(0, 1)] = 0.999
    queue_size: Annotated[int | None, Range(1)] = None
    projection_dim: Annotated[int, Range(1)] = 128
    hidden_dim: Annotated[int | None, Range(1)] = None
    batchnorm_groups: Annotated[int, Range(1)] = 1

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Create the projector, the momentum encoder and the queue."""
        self._pair = self.make_pair(net, problem)
        self._queues = make_queues(self.queue_size, problem, {"projections": self.projection_dim})
        return {**self._pair.parts(), "queue": self._queues}

    def step(self, net: nn.Module, batch: Batch, at: Progress) -> Step:
        """Compute InfoNCE of view 1's queries against view 2's keys and the queue."""
        _, query = self._pair.query(net, batch.images)
        keys = self._pair.keys(net, second_view(batch, "MoCo"), batch.index, at)
        own, queue = keys.own(len(query)).projections.to(query), self._queues.read("projections").to(query)
        filled = self._queues.counted()
        others = self._queues.others(batch.index)
        loss = infonce(query, own, queue, self.temperature, counted=others)
        return Step(loss, key_logs(query, own, queue, filled), (keys.ids, {"projections": keys.projections}))
