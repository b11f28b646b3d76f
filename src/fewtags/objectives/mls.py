"""MLS: the nearest images in feature space are the labels of an image, several at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from fewtags.errors import ConfigError
from fewtags.labels import Batch
from fewtags.losses.contrastive import Reading, bce_pos, fingerprint, infonce, knn_softmax, mls_bce, similarity, top_k
from fewtags.nets.projection import unit
from fewtags.objectives.base import Derived, Part, Problem, Progress, RunFacts, Step
from fewtags.objectives.checks import INFINITY, Range
from fewtags.objectives.momentum import Keys, QueueObjective, default_queue_size, key_logs, make_queues, second_view
from fewtags.stores.neighbours import NO_NEIGHBOUR, Neighbours, agreement


class KeysAndNeighbours(NamedTuple):
    """Payload of a step: the keys to enqueue, and the numbers of each image's neighbours, nearest first."""

    keys: Keys
    neighbours: Tensor


class Slots(NamedTuple):
    """Queues Q_g [D, d] and Q_z [D, p], image numbers [D], and bool [b, D]: slots that count for each image."""

    features: Tensor
    projections: Tensor
    ids: Tensor
    counted: Tensor


@final
@dataclass(eq=False, kw_only=True)
class MLS(QueueObjective):
    """Multi-label self-supervised learning (Zhu, Fu, Wu, ICCV 2023): L = InfoNCE + lambda L_ml (main paper, eq. 10).

    InfoNCE is that of MoCo-v2. In addition to its queue Q_z of projections, a queue Q_g contains backbone features of
    the same images at the same slots. The k slots of Q_g nearest to an image's features g1 are its positive labels, all
    others its negative ones (eq. 7), and its logits are z1 . Q_z / tau (eq. 8). L_ml is their binary cross-entropy,
    the mean over D (eq. 9), or another loss by name. Labels have no gradient and are made in float32.

    Readings: both losses use the queues as they were before this step's keys are enqueued (the paper leaves it open;
    `include_self` is the other reading); z1 has unit length in eq. 8; labels and logits come from the same snapshot.
    Empty slots and an image's own older keys are ignored (the published code counts them). With the literal mean
    over D negatives outweigh positives by (D - k) / k, and small problems can collapse (docs/pretraining.md):
    `neighbour_from`, `reduction` and `logit_bias` are remedies, off as in the paper.

    Args:
        k: labels per image.
        weight: lambda.
        neighbour_loss: "bce" (eq. 9); "bce_pos": its positive part alone (supplement, eq. 15); "knn_eq10": a softmax
            over the queue, mean of logarithms (supplement, eq. 10); "knn_eq2": the denominator without the other
            positives (main paper, eq. 2); "knn_eq11": the logarithm of the sum (supplement, eq. 11).
        reduction: "mean" over D (the paper); "per_positive": over k; "balanced": positives and negatives weigh the
            same. For the two BCE losses.
        logit_bias: added to the logits of "bce"; log(k / (D - k)) lets it start from its base rate.
        neighbour_from: first epoch with L_ml; InfoNCE alone before (the paper's remedy 1, which it does not use).
        include_self: this step's keys of all images count as slots too, for L_ml.
        source: where labels and logits come from (table 7): "both": Q_g and Q_z; "projections": Q_z alone;
            "features": Q_g alone.
        temperature: tau, of both losses.
        momentum: m of the momentum encoder.
        queue_size: D; default: see `default_queue_size`.
        projection_dim: d_z.
        hidden_dim: width of the projector's hidden layer; default: that of the features.
        batchnorm_groups: see `MoCo`.
    """

    k: Annotated[int, Range(1)] = 20
    weight: Annotated[float, Range(1e-9)] = 0.5
    neighbour_loss: Literal["bce", "bce_pos", "knn_eq10", "knn_eq2", "knn_eq11"] = "bce"
    reduction: Literal["mean", "per_positive", "balanced"] = "mean"
    logit_bias: Annotated[float, Range(-INFINITY)] = 0.0
    neighbour_from: Annotated[int, Range()] = 0
    include_self: bool = False
    source: Literal["both", "projections", "features"] = "both"
    temperature: Annotated[float, Range(1e-3)] = 0.2
    momentum: Annotated[float, Range(0, 1)] = 0.995
    queue_size: Annotated[int | None, Range(1)] = None
    projection_dim: Annotated[int, Range(1)] = 256
    hidden_dim: Annotated[int | None, Range(1)] = None
    batchnorm_groups: Annotated[int, Range(1)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        idle = ["logit_bias"] if self.logit_bias and self.neighbour_loss != "bce" else []
        idle += ["reduction"] if self.reduction != "mean" and self.neighbour_loss.startswith("knn") else []
        if idle:
            raise ConfigError(
                f'{" and ".join(idle)} would do nothing with neighbour_loss = "{self.neighbour_loss}"; leave it out.'
            )

    def derived(self, facts: RunFacts) -> Mapping[str, Derived]:
        """Derive also `k`, `reduction` and a later `neighbour_from` if there are few images.

        They are those of the row "MLS balanced, warm-up" in docs/pretraining_benchmark.md: k 5 of 256 slots, a tenth of
        the epochs. Other numbers of images were not measured.
        """
        derived = dict(super().derived(facts))
        if facts.few_images:
            size = self.queue_size or derived["queue_size"].value
            derived["k"] = Derived(max(1, min(20, round(size * 5 / 256))))
            derived["neighbour_from"] = Derived(facts.epochs // 10)
            if self.neighbour_loss == "bce":
                derived["reduction"] = Derived("balanced")
        return derived

    def notes(self, facts: RunFacts) -> Iterator[str]:
        """Warn also of more labels than a twentieth of the queue."""
        yield from super().notes(facts)
        if self.queue_size and self.k > max(1, self.queue_size / 20):
            yield (
                f"warning: k = {self.k} of a queue of {self.queue_size:,}: more than a twentieth are positives; lower "
                "objective.k"
            )

    def collapsed_losses(self) -> Mapping[str, float]:
        """Return softplus(1 / tau) - (k / D) / tau for eq. (9)."""
        plain = self.neighbour_loss == "bce" and self.reduction == "mean" and not self.logit_bias
        if not plain or not self.queue_size:
            return {}
        return {"neighbour_loss": fingerprint(self.k, self.queue_size, self.temperature)}

    @property
    def collapse_remedy(self) -> str:
        """Return the remedies of eq. (9), whose mean over all slots can collapse."""
        if self.neighbour_loss != "bce":
            return super().collapse_remedy
        return (
            'Start again with objective.neighbour_loss = "knn_eq10" or objective.reduction = "balanced", a later '
            "objective.neighbour_from, a smaller objective.weight, or objective.momentum = 0.999."
        )

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Create the projector, the momentum encoder, the queues, and the list of neighbours."""
        samples = problem.labels.shape[0]
        self._pair = self.make_pair(net, problem)
        size = self.queue_size or default_queue_size(samples)
        if self.k >= size:
            raise ConfigError(f"k = {self.k} labels of a queue of {size} leave no negative; lower k.")
        if self.neighbour_from >= problem.epochs:
            raise ConfigError(
                f"neighbour_from = {self.neighbour_from} with {problem.epochs} epochs: the labels would never begin."
            )
        dims = {"features": problem.features_dim, "projections": self.projection_dim}
        self._queues = make_queues(size, problem, dims)
        self._neighbours = Neighbours(samples, self.k, shard=problem.shard, device=problem.device)
        return {**self._pair.parts(), "queues": self._queues, "neighbours": self._neighbours}

    def step(self, net: nn.Module, batch: Batch, at: Progress) -> Step:
        """Compute InfoNCE and, from `neighbour_from` on, the loss of neighbours; both before keys are enqueued."""
        features, query = self._pair.query(net, batch.images)
        keys = self._pair.keys(net, second_view(batch, "MLS"), batch.index, at)
        slots = self._slots(batch.index, query, keys, include=False)
        own = keys.own(len(query)).projections.to(query)
        filled = self._queues.counted()
        contrast = infonce(query, own, slots.projections, self.temperature, counted=slots.counted)
        if self.include_self:
            slots = self._slots(batch.index, query, keys, include=True)
        labels, nearest = self._labels(features, query, slots)
        logs = {"infonce": contrast.detach(), **key_logs(query, own, self._queues.read("projections"), filled)}
        met, kept = agreement(self._neighbours.read(batch.index), nearest, slots.ids)
        logs |= {"neighbours_met": met, "neighbours_kept": kept}
        loss = contrast
        if at.epoch >= self.neighbour_from:
            extra = self._loss(self._logits(features, query, slots), labels, slots.counted)
            loss, logs["neighbour_loss"] = contrast + self.weight * extra, extra.detach()
        return Step(loss, logs, KeysAndNeighbours(keys, nearest))

    @torch.no_grad()
    def commit(self, net: nn.Module, batch: Batch, out: Step) -> None:
        """Enqueue the keys of all processes, keep the neighbours, and move the momentum encoder."""
        found: KeysAndNeighbours = out.payload
        keys = found.keys
        self._queues.enqueue(keys.ids, {"features": keys.features, "projections": keys.projections})
        self._neighbours.write(batch.index, found.neighbours)
        self._pair.follow(net)

    def _slots(self, index: Tensor, like: Tensor, keys: Keys, *, include: bool) -> Slots:
        features, projections = (self._queues.read(name) for name in ("features", "projections"))
        ids, counted = self._queues.ids, self._queues.others(index)
        if include:
            features = torch.cat([features, keys.features.to(features)])
            projections = torch.cat([projections, keys.projections.to(projections)])
            ids = torch.cat([ids, keys.ids.to(ids)])
            counted = torch.cat([counted, counted.new_ones(len(index), len(keys.ids))], 1)
        return Slots(features.to(like.dtype), projections.to(like.dtype), ids, counted)

    @torch.no_grad()
    def _labels(self, features: Tensor, query: Tensor, slots: Slots) -> tuple[Tensor, Tensor]:
        """Return positive slots, bool [b, D], and their image numbers, int64 [b, k], -1 if fewer than k exist."""
        if self.source == "projections":
            near = similarity(query, slots.projections)
        else:
            near = similarity(unit(features), slots.features)
        labels = top_k(near, self.k, counted=slots.counted)
        values, places = near.masked_fill(~labels, -INFINITY).topk(self.k, dim=1)
        return labels, slots.ids[places].masked_fill(values == -INFINITY, NO_NEIGHBOUR)

    def _logits(self, features: Tensor, query: Tensor, slots: Slots) -> Tensor:
        if self.source == "features":
            return similarity(unit(features), slots.features) / self.temperature
        return similarity(query, slots.projections) / self.temperature

    def _loss(self, logits: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
        if self.neighbour_loss == "bce":
            return mls_bce(logits, labels, counted=counted, reduction=self.reduction, bias=self.logit_bias)
        if self.neighbour_loss == "bce_pos":
            return bce_pos(logits, labels, counted=counted, reduction=self.reduction)
        readings: dict[str, Reading] = {"knn_eq10": "eq10", "knn_eq2": "eq2", "knn_eq11": "eq11"}
        return knn_softmax(logits, labels, counted=counted, reading=readings[self.neighbour_loss])
