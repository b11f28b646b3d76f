"""Methods that treat unknown labels as uncertain: EM with APL or a teacher (VLPL), and GR with a teacher (GPR)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from fewtags.errors import ConfigError
from fewtags.labels import Batch, Label
from fewtags.losses.counted import count_penalty
from fewtags.losses.distillation import likely_negative, likely_positive
from fewtags.losses.uncertain import entropy_maximisation, generalised_robust
from fewtags.objectives.base import Derived, Part, Problem, Progress, RunFacts, Step, StoreMemory
from fewtags.objectives.checks import Range, check_settings
from fewtags.objectives.logits import ImageLoss, LogitObjective
from fewtags.objectives.taught import TaughtObjective, teacher_memory
from fewtags.stores.cells import SoftLabels, lowest
from fewtags.stores.rows import ScoreStore, score_bytes
from fewtags.stores.teacher import TeacherScores
from fewtags.stores.topk import class_blocks


@final
@dataclass(eq=False, kw_only=True)
class EntropyMaximisation(TaughtObjective, LogitObjective):
    """EM: the entropy of unknown labels is maximised. EM + APL: the lowest-scored ones get a soft label.

    With a teacher it is VLPL: unknown labels with a score of the teacher above `teacher_above` are positive, with a
    weight and smoothed (Xing et al., "Vision-Language Pseudo-Labels for Single-Positive Multi-Label Learning", CVPR
    workshops 2024).

    Zhou et al., "Acknowledging the Unknown for Multi-label Learning with Single Positive Labels" (ECCV 2022). An
    unknown label gets almost no gradient while its probability is near 0, 0.5 or 1, so that wrong negatives do little
    harm. With APL, before each epoch from `soft_from` on, an equal part of the `soft_share` of the unknown labels of
    every class, those with the lowest scores, keep their probability as a soft label.

    Scores need a threshold: the probabilities of EM are far too high; fewtags chooses thresholds on validation.

    Args:
        entropy_weight: alpha of the paper: 0.1 for COCO and NUS, 0.2 for VOC, 0.01 for CUB.
        soft_weight: beta of the paper, weight of the soft labels: 0.02 to 0.9 there; 0: no APL.
        soft_from: first epoch with soft labels. Default: half of the epochs, as in the paper.
        soft_share: share of the unknown labels of a class that have a soft label in the end.
        soft_scores: "running" averages of the scores of the training views, or predictions of a "pass" over all
            training images in eval mode, as in the paper, which costs as much as half an epoch.
        momentum: of the running averages.
        teacher_weight: weight of a teacher. Default: 0.7 (VLPL), or 1 for soft labels.
        teacher_as: what its scores are: "labels" (VLPL), or "soft" labels of all unknown cells that have a score, in
            addition to the entropy.
        teacher_above: a score above it makes a label; 0.3 in VLPL, whose scores are a softmax over the classes.
        teacher_smoothing: of these labels; 0.1 in VLPL.
    """

    entropy_weight: Annotated[float, Range()] = 0.1
    soft_weight: Annotated[float, Range()] = 0.0
    soft_from: Annotated[int | None, Range(1)] = None
    soft_share: Annotated[float, Range(0, 1)] = 0.9
    soft_scores: Literal["running", "pass"] = "running"
    momentum: Annotated[float, Range(0, 1)] = 0.8
    teacher_as: Literal["labels", "soft"] = "labels"
    teacher_above: Annotated[float, Range(0, 1)] = 0.3
    teacher_smoothing: Annotated[float, Range(0, 0.5)] = 0.1

    def __post_init__(self) -> None:
        check_settings(self)

    def derived(self, facts: RunFacts) -> Mapping[str, Derived]:
        """Start soft labels after half of the epochs, and use the teacher if there is one."""
        weight = facts.teacher * (0.7 if self.teacher_as == "labels" else 1.0)
        return {"soft_from": Derived(max(1, facts.epochs // 2)), "teacher_weight": Derived(weight)}

    def memory(self, facts: RunFacts) -> Sequence[StoreMemory]:
        """Return the memory of soft labels, of running scores and of a teacher."""
        if not self.soft_weight:
            return super().memory(facts)

        remedy = "objective.soft_weight = 0 is EM without soft labels, which keeps none."

        scores = self.soft_scores == "running"

        def size(images: int) -> int:
            return 2 * images * facts.classes + scores * score_bytes(images, facts.classes, "float32")

        return (StoreMemory(name="soft labels", size=size, remedy=lambda *_: remedy), *super().memory(facts))

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Make the soft labels and the running scores."""
        self._problem = problem
        self._soft: SoftLabels | None = None
        self._scores: ScoreStore | None = None
        self.meet_teacher(problem)
        if not self.soft_weight:
            return {}
        if self.soft_from is None or self.soft_from >= problem.epochs:
            raise ConfigError(
                f"soft labels would begin with epoch {(self.soft_from or 0) + 1}, but training has {problem.epochs}; "
                "lower objective.soft_from, or train longer."
            )
        (samples, classes), shard, device = problem.labels.shape, problem.shard, problem.device
        self._soft = SoftLabels(samples, classes, shard=shard, device=device)
        if self.soft_scores == "pass":
            return {"soft_labels": self._soft}
        self._scores = ScoreStore(samples, classes, momentum=self.momentum, corrected=True, shard=shard, device=device)
        return {"soft_labels": self._soft, "scores": self._scores}

    def needs_predictions(self, epoch: int) -> bool:
        """With `soft_scores` "pass", every epoch with new soft labels needs them."""
        return self._soft is not None and self._scores is None and epoch >= (self.soft_from or 0)

    def on_predictions(self, epoch: int, logits: Tensor) -> None:
        """Add soft labels from a pass over the training images."""
        self._add_soft_labels(logits.sigmoid(), None)

    def on_epoch_start(self, epoch: int) -> Mapping[str, float]:
        """Add soft labels from running scores, and count all soft labels."""
        if self._soft is None or epoch < (self.soft_from or 0):
            return {}
        if self._scores is not None:
            self._add_soft_labels(self._scores.values, self._scores.visits > 0)
        count = self._problem.shard.sum((self._soft.values > 0).sum())
        return {"soft_labels_per_image": float(count) / self._problem.labels.shape[0]}

    def _add_soft_labels(self, prob: Tensor, seen: Tensor | None) -> None:
        """Give a soft label to the lowest-scored cells of every class that are unknown and have none. Collective.

        `prob` [rows, C] and `seen` [rows] are those of this process's images.
        """
        problem, soft = self._problem, self._soft
        assert soft is not None
        samples, classes = problem.labels.shape
        epochs = problem.epochs - (self.soft_from or 0)
        owned = problem.shard.owned(samples).numpy()
        for first, last in class_blocks(samples, classes):
            labels = problem.labels.columns(first, last)
            # As in the public code: an equal number of cells in every epoch.
            counts = (self.soft_share * (labels == Label.UNKNOWN).sum(0) / epochs).astype(np.int64)
            block = slice(first, last)
            among = torch.from_numpy(labels[owned] == Label.UNKNOWN).to(soft.values.device)
            among &= soft.values[:, block] == 0
            if seen is not None:
                among &= seen.to(among.device)[:, None]
            scores = prob[:, block].to(among.device)
            soft.write(block, scores, lowest(scores, among, torch.from_numpy(counts), samples, problem.shard))

    def image_loss(self, logits: Tensor, batch: Batch, at: Progress) -> ImageLoss:
        """Compute EM, with soft labels where there are any; the payload is the probabilities."""
        soft = None if self._soft is None else self._soft.read(batch.index)
        weight: float | Tensor = self.soft_weight
        logs: dict[str, Tensor] = {}
        labelled = self._teacher is not None and self.teacher_as == "labels"
        if self._teacher is not None and labelled:
            soft, weight, taught = self._with_labels(self._teacher.read(batch.index), soft)
            logs["teacher_positives_per_image"] = (taught & (batch.labels == Label.UNKNOWN)).float().sum(1).mean()
        loss = entropy_maximisation(logits, batch.labels, weight=self.entropy_weight, soft=soft, soft_weight=weight)
        logs["em"] = loss.detach()
        if not labelled:
            loss = self.with_distillation(loss, logs, logits, batch)
        prob = None if self._scores is None else logits.detach().sigmoid()
        return ImageLoss(loss, logs, prob)

    def _with_labels(self, scores: Tensor, soft: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return soft labels with those of the teacher, which have priority, their weights, and where it has some."""
        taught = likely_positive(scores, self.teacher_above)
        soft = torch.full_like(scores, torch.nan) if soft is None else soft
        soft = soft.masked_fill(taught, 1 - self.teacher_smoothing)
        own = 0.7 if self.teacher_weight is None else self.teacher_weight
        return soft, torch.full_like(scores, self.soft_weight).masked_fill(taught, own), taught

    @torch.no_grad()
    def commit(self, net: nn.Module, batch: Batch, out: Step) -> None:
        """Update the running scores."""
        if self._scores is not None:
            self._scores.update(batch.index, out.payload, batch.labels)


Pair = tuple[float, float]


@final
@dataclass(eq=False, kw_only=True)
class GeneralisedRobust(LogitObjective):
    """GR: unknown labels have a soft label and a weight that depend on their score and move over the epochs.

    With a teacher it is GPR: the unknown labels with its best scores are positive, and those with its lowest scores
    negative, with a weight that depends on the score of the net; and the mean number of predicted classes has a penalty
    (Tran et al., "More Reliable Pseudo-labels, Better Performance", AEVLP, ICCV 2025). Defaults are those of its public
    code, in which the negative ones have no effect; objective.teacher_negatives = 0 is the same.

    Chen et al., "Boosting Single Positive Multi-label Classification with Generalized Robust Loss" (IJCAI 2024). All
    pairs are values in the first and in the last epoch, and linear in between. The defaults are those that the public
    code uses in its example; its paper searches them for every data set.

    Args:
        slope: of the soft label k = sigmoid(slope f + offset).
        offset: see `slope`.
        centre: of the weight v = exp(-((f - centre) / width)^2 / 2), with f the probability.
        width: see `centre`.
        positive_power: robustness of the loss of k, in (0, 1]: near 0 is cross-entropy, 1 is the absolute error.
        negative_power: robustness of the loss of 1 - k.
        teacher_above: a label of the teacher needs a score above it.
        teacher_top_k: and one of the so many best scores of its image; 3 in the public code, 32 for CUB.
        teacher_negatives: share of the classes of an image, with its lowest scores, that are negative.
        teacher_smoothing: of the positive labels.
        teacher_weights: lowest and highest weight of the positive labels.
        count_weight: weight of the count penalty (`losses.counted`). Default: 0.001 with a teacher, else 0.
        positives_per_image: K of the count penalty. Default: estimated from the labels.
    """

    uses_teacher: ClassVar[bool] = True

    slope: Pair = (0.0, 2.0)
    offset: Pair = (-2.0, -2.0)
    centre: Pair = (0.5, 0.8)
    width: Annotated[Pair, Range(0, above=True)] = (2.0, 0.5)
    positive_power: Annotated[float, Range(0, 1, above=True)] = 0.01
    negative_power: Annotated[float, Range(0, 1, above=True)] = 1.0
    teacher_above: Annotated[float, Range(0, 1)] = 0.5
    teacher_top_k: Annotated[int, Range(1)] = 3
    teacher_negatives: Annotated[float, Range(0, 1)] = 0.1
    teacher_smoothing: Annotated[float, Range(0, 0.5)] = 0.1
    teacher_weights: Annotated[Pair, Range(0, 1)] = (0.3, 0.8)
    count_weight: Annotated[float | None, Range()] = None
    positives_per_image: Annotated[float | None, Range(0, above=True)] = None

    def __post_init__(self) -> None:
        check_settings(self)
        if self.teacher_weights[0] > self.teacher_weights[1]:
            raise ConfigError(f"teacher_weights are the lowest and the highest weight, got {self.teacher_weights}.")

    def derived(self, facts: RunFacts) -> Mapping[str, Derived]:
        """Derive K, and the weight of the count penalty."""
        note = facts.positives_source if self.count_weight or (self.count_weight is None and facts.teacher) else ""
        return {
            "count_weight": Derived(0.001 * facts.teacher),
            "positives_per_image": Derived(facts.positives_per_image, note),
        }

    def memory(self, facts: RunFacts) -> Sequence[StoreMemory]:
        """Return the memory of the teacher's scores."""
        return (teacher_memory(facts),) if facts.teacher else ()

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Remember the number of epochs, how to add up over processes, and the teacher."""
        self._epochs, self._total = problem.epochs, problem.shard.sum
        self._teacher: TeacherScores | None = None
        if problem.teacher is not None:
            self._teacher = TeacherScores(problem.teacher, shard=problem.shard, device=problem.device)
        return {}

    def image_loss(self, logits: Tensor, batch: Batch, at: Progress) -> ImageLoss:
        """Compute GR."""
        done = at.epoch / max(self._epochs - 1, 1)
        slope, offset, centre, width = (
            first + done * (last - first) for first, last in (self.slope, self.offset, self.centre, self.width)
        )
        pseudo, logs = None, {}
        if self._teacher is not None:
            pseudo = self._pseudo_labels(self._teacher.read(batch.index))
            counted = (pseudo == Label.POSITIVE) & (batch.labels == Label.UNKNOWN)
            logs["teacher_positives_per_image"] = counted.float().sum(1).mean()
        loss = generalised_robust(
            logits,
            batch.labels,
            pseudo=pseudo,
            pseudo_weights=self.teacher_weights,
            smoothing=self.teacher_smoothing,
            slope=slope,
            offset=offset,
            centre=centre,
            width=width,
            positive_power=self.positive_power,
            negative_power=self.negative_power,
        )
        logs["gr"] = loss.detach()
        if self.count_weight:
            assert self.positives_per_image is not None, "derive K first"
            penalty = count_penalty(logits, self.positives_per_image, total=self._total)
            loss, logs["count_penalty"] = loss + self.count_weight * penalty, penalty.detach()
        return ImageLoss(loss, logs)

    def _pseudo_labels(self, scores: Tensor) -> Tensor:
        """Return values of `Label`, int8 [b, c]; a positive has priority."""
        labels = torch.full_like(scores, Label.UNKNOWN, dtype=torch.int8)
        labels = labels.masked_fill(likely_negative(scores, self.teacher_negatives), Label.NEGATIVE)
        return labels.masked_fill(likely_positive(scores, self.teacher_above, top_k=self.teacher_top_k), Label.POSITIVE)
