"""Expected-negative loss with (spatial) consistency: the SCL paper (Verelst et al., WACV 2023)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewtags.errors import ConfigError
from fewtags.labels import Batch, Label, LabelMatrix
from fewtags.losses.consistency import consistency
from fewtags.losses.counted import expected_positive_regularisation
from fewtags.losses.partial import expected_negative, expected_positive
from fewtags.losses.selective import soft_patch_loss
from fewtags.nets.spatial import Output
from fewtags.objectives.base import Derived, Part, Problem, Progress, RunFacts, Step, StoreMemory
from fewtags.objectives.checks import Range, check_settings
from fewtags.objectives.located import LocatedObjective
from fewtags.objectives.ranking import Ranking
from fewtags.objectives.tally import diagnostics
from fewtags.objectives.taught import TaughtObjective, needs_teacher, teacher_memory
from fewtags.stores.heatmap_size import HeatmapPlan, Precision, Rounding, heatmap_bytes
from fewtags.stores.heatmaps import HeatmapStore
from fewtags.stores.rows import ScoreStore, score_bytes
from fewtags.stores.second_score import PrototypeScores
from fewtags.stores.topk import ExpectedPositives, Reading, expected_counts
from fewtags.text import flag

SCL_WEIGHT = 0.1
"""Best mean validation mAP of 0, 0.1 and 1 in docs/results.md."""


ANSWER_WEIGHT = 4.0
"""Better than 1 on the validation photos of docs/review.md."""


UNSURE_WEIGHT = 0.5
"""Weight in EN's loss of cells between the cuts of the two limits of K."""


class Predictions(NamedTuple):
    """Payload of a step: detached float32 probabilities of the training-mode forward, and mean features if used."""

    prob: Tensor
    prob_maps: Tensor | None
    features: Tensor | None = None


@final
@dataclass(eq=False, kw_only=True)
class ExpectedNegative(TaughtObjective, LocatedObjective):
    """EN (eq. 5), EN + CL (eq. 6) and EN + SCL (eq. 7): L = L_EN + gamma_CL L_CL + gamma_SCL L_SCL (eq. 8).

    Running averages s of the scores rank the images of each class. The best p_i images are *expected positives*, and
    the loss ignores them; all other unannotated images count as negative. CL pulls the scores, and SCL the score maps,
    towards their running averages over earlier crops. Epoch 0 is assume-negative, because no average exists yet.

    Order: `step` reads s(t-1) and H(t-1); `commit` averages the same forward pass into both. s averages the image score
    f = sigmoid(mean of the map logits), not the heatmap. During the warm-up (head only) the loss is assume-negative and
    s is updated; EN, CL, SCL and the heatmaps start after it. Without a warm-up EN starts in epoch 1, CL and SCL in
    epoch 0.

    Means: all losses are means over their cells (classes, and grid cells for SCL); eqs. (6) and (7) print a norm
    without a denominator. With sums, SCL outweighs EN by four orders of magnitude, and results were clearly worse.

    Args:
        positives_per_image: K of eq. (3), the mean number of classes in an image. Default: estimated from the labels.
        class_prior: share of images that contain each class, one per class; replaces K and eq. (3) (`expected_counts`).
        positives_interval: (low, high), limits of K (not in the paper; only for "ignore"). Cells that only the cut of
            the high limit ignores count as negative with half weight. With `class_prior`, the limits of its sum, to
            which all shares are scaled. Default: none, K alone decides.
        cl_weight: gamma of CL.
        scl_weight: gamma of SCL; heatmaps are kept if it is above 0. Default: 0.1, or 0 if the head is solved on one
            view of each photo, because then no second view exists that could agree with it.
        distance: "l1" (the paper's), "l2" (squared), "l2_norm" or "jsd", of CL and SCL (`consistency`).
        momentum: mu of both averages.
        expected_positives: "ignore" is EN; "positive" counts them as positives: the paper's EP (section 4.2), which
            drifts; "none" expects nobody: with CL or SCL the paper's AN + CL and AN + SCL (table 2), without them
            assume-negative, and K and `class_prior` have no meaning; "counted" has no loss for unknown labels but a
            penalty on the mean number of predicted classes: the paper's EPR, EPR + CL and EPR + SCL (`losses.counted`).
        reading: of the top-p_i rule (`ExpectedPositives`).
        warmup_loss: "assume_negative"; or "expected_negative" from the second warm-up epoch on (not in the paper:
            the averages that CL and SCL start from are then less biased towards "absent"). Default: "assume_negative",
            or "expected_negative" if the warm-up solves the head.
        corrected_averages: remove the bias of the start values of s and H (not in the paper; `ScoreStore`,
            `HeatmapPlan`). Averages without any update then have no weight in CL and SCL.
        ramp_epochs: number of epochs after the warm-up in which the weights of CL and SCL rise from 0 (not in the
            paper).
        heatmap_top_k: number of classes per image that have heatmaps, chosen from s after the warm-up (without a
            warm-up: after the first epoch, and SCL starts then); default: all. The paper uses 10 for
            ImageNet (appendix G).
        heatmap_dtype: "uint8" (the paper's) or "float16".
        heatmap_rounding: "nearest" or "stochastic", of uint8.
        heatmap_storage: "memory" of the net's device, or "disk" (a memory map in the run's state folder).
        score_dtype: "float32", or "float16" where images x classes is large.
        scores_start: start values of s: 1 for annotated positives and 0 elsewhere ("labels", the paper's), or elsewhere
            the scores of a "teacher" (not in the paper), which then rank the images from the first epoch on, in place
            of the scores of the warm-up. The default of `teacher_weight` is then 0.
        answer_weight: weight in EN's loss of cells that people answered (`fewtags review`); other cells have 1. Each
            answer is one of many hard cells that nobody was asked about (not in the paper). Default: 4; if the head is
            solved, the best of 1, 4 and 16 on validation.
        negative_gamma: focus of EN's loss on negatives: known and assumed ones have the weight f^gamma, which has no
            gradient (not in the paper; 1 is that of PatchML's loss of images). Default: 1 if the head is solved from
            complete labels (at most one in a hundred is unknown) with points or boxes, else 0: all negatives weigh the
            same.
        prototype_weight: weight w, 0..1, of a second score in the ranking of expected positives (not in the paper): how
            near the features of an image are to the mean of those of the annotated positives (`PrototypeScores`).
        heatmap_patch_weight: weight of a loss of patches (not in the paper). Each unknown label that is an expected
            positive has its heatmap, stretched to 0..1, as soft labels of its patches (`soft_patch_loss`). Heatmaps
            are kept if it is above 0, and used from the epoch after their first update on.
    """

    positives_per_image: Annotated[float | None, Range(0, above=True)] = None
    class_prior: Annotated[tuple[float, ...] | None, Range(0, 1)] = None
    positives_interval: Annotated[tuple[float, float] | None, Range(0, above=True)] = None
    cl_weight: Annotated[float, Range()] = 0.0
    scl_weight: Annotated[float | None, Range()] = None
    distance: Literal["l1", "l2", "l2_norm", "jsd"] = "l1"
    momentum: Annotated[float, Range(0, 1)] = 0.8
    expected_positives: Literal["ignore", "positive", "none", "counted"] = "ignore"
    reading: Reading = "all_then_or"
    warmup_loss: Literal["assume_negative", "expected_negative"] | None = None
    corrected_averages: bool = False
    ramp_epochs: Annotated[int, Range()] = 0
    heatmap_top_k: Annotated[int | None, Range(1)] = None
    heatmap_dtype: Precision = "uint8"
    heatmap_rounding: Rounding = "nearest"
    heatmap_storage: Literal["memory", "disk"] = "memory"
    score_dtype: Literal["float32", "float16"] = "float32"
    scores_start: Literal["labels", "teacher"] = "labels"
    answer_weight: Annotated[float | None, Range(0, above=True)] = None
    negative_gamma: Annotated[float | None, Range()] = None
    prototype_weight: Annotated[float, Range(0, 1)] = 0.0
    heatmap_patch_weight: Annotated[float, Range()] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self)
        if self.corrected_averages and self.momentum > 255 / 256:
            raise ConfigError(
                f"corrected_averages needs a momentum up to 0.996 (it counts only 255 visits), got {self.momentum}."
            )
        if self.heatmap_rounding == "stochastic" and self.heatmap_dtype != "uint8":
            raise ConfigError(
                f"heatmap_rounding='stochastic' is for heatmap_dtype='uint8', got {self.heatmap_dtype!r}."
            )
        if self.positives_interval is not None:
            self._check_interval(*self.positives_interval)
        if self.negative_gamma and not self._weighs_cells:
            raise ConfigError(
                f"negative_gamma is for EN's loss, and expected_positives={self.expected_positives!r} has another one. "
                "Leave one of them out."
            )
        for name in ("prototype_weight", "heatmap_patch_weight"):
            if getattr(self, name) and self.expected_positives in ("none", "counted"):
                raise ConfigError(
                    f"{name} needs expected positives, and expected_positives={self.expected_positives!r} has none. "
                    "Leave one of them out."
                )

    def _check_interval(self, low: float, high: float) -> None:
        if self.expected_positives != "ignore":
            raise ConfigError(
                "positives_interval is for expected_positives='ignore': its cells count half as negative. Leave it out "
                f"for {self.expected_positives!r}."
            )
        known = self.positives_per_image if self.class_prior is None else sum(self.class_prior)
        if low > high or (known is not None and not low <= known <= high):
            what = "positives_per_image" if self.class_prior is None else "the sum of class_prior"
            inside = "" if known is None else f", with {what} {known:g} in it"
            raise ConfigError(f"positives_interval is (low, high){inside}; got ({low:g}, {high:g}).")

    @property
    def gamma(self) -> float:
        """The weight of SCL."""
        return SCL_WEIGHT if self.scl_weight is None else self.scl_weight

    @property
    def needs_maps(self) -> bool:
        """SCL compares maps, and points, boxes and soft labels are places in maps."""
        return self._keeps_heatmaps or super().needs_maps

    @property
    def _keeps_heatmaps(self) -> bool:
        return self.gamma > 0 or self.heatmap_patch_weight > 0

    @property
    def solvable(self) -> bool:
        """Whether CL and SCL are off: EN is convex in the logits while the expected positives stay the same."""
        return not self.cl_weight and not self.scl_weight and self.expected_positives != "counted"

    @property
    def solvable_warmup(self) -> bool:
        """Consistency starts after the warm-up, but pooled features have no patches."""
        return self.expected_positives != "counted" and not self.patch_weight

    @property
    def _weighs_cells(self) -> bool:
        """Whether the cells of the loss can have weights: those of EN and AN; EP and EPR have other losses."""
        return self.expected_positives in ("ignore", "none")

    @property
    def open_answer_weight(self) -> bool:
        """EN and AN weigh answers; EP and EPR do not."""
        return self.answer_weight is None and self._weighs_cells

    def derived(self, facts: RunFacts) -> Mapping[str, Derived]:
        """Derive K from the labels; and no SCL if the head is solved, because each image then has only one view."""
        unused = self.class_prior is not None or self.expected_positives == "none"
        note = "" if unused else facts.positives_source
        mean = facts.positives_per_image
        if self.positives_interval is not None and not unused:  # the limits are known better than what labels show
            mean, note = sum(self.positives_interval) / 2, "positives per image: the middle of positives_interval"
        return {
            **super().derived(facts),
            "positives_per_image": Derived(mean, note),
            "scl_weight": Derived(0.0 if facts.head_solved else SCL_WEIGHT),
            "warmup_loss": Derived("expected_negative" if facts.warmup_solved else "assume_negative"),
            "teacher_weight": Derived(float(facts.teacher and self.scores_start == "labels")),
            "answer_weight": Derived(None if facts.answer_weights else ANSWER_WEIGHT),
            "negative_gamma": self._derived_focus(facts),
        }

    def _derived_focus(self, facts: RunFacts) -> Derived:
        """Return the default of `negative_gamma`: the focus of the patches (docs/places.md)."""
        places = (facts.points or facts.boxes) and self.patch_weight != 0 and self._weighs_cells
        if not (places and facts.head_solved and facts.almost_complete):
            return Derived(0.0)
        return Derived(
            1.0,
            "negatives that the model is sure of count less, since tags are complete and there are points or boxes "
            "(objective.negative_gamma)",
        )

    @property
    def assumed_positives(self) -> float | tuple[float, ...] | None:
        """Return the class prior, or K."""
        return self.class_prior if self.class_prior is not None else self.positives_per_image

    def memory(self, facts: RunFacts) -> Sequence[StoreMemory]:
        """Return the memory of running scores, and of heatmaps if SCL is on."""
        classes, grid, plan = facts.classes, facts.grid, self.heatmap_plan()
        on_disk = self.heatmap_storage == "disk"

        def smaller_scores(images: int, free: int) -> str:
            if self.score_dtype == "float32" and score_bytes(images, classes, "float16") <= free:
                return 'objective.score_dtype = "float16" fits.'
            method = flag("method", "assume_negative")
            return f"train with more memory, on fewer images, or with {method}, which has no scores."

        def smaller_heatmaps(images: int, free: int) -> str:
            counts = range(max(1, facts.most_positives), plan.kept(classes))
            fitting = [k for k in counts if heatmap_bytes(images, classes, grid, replace(plan, top_k=k)) <= free]
            most = facts.most_positives
            least = "one heatmap" if most <= 1 else f"the {most} heatmaps of annotated classes"
            top_k = f"objective.heatmap_top_k = {fitting[-1]} fits" if fitting else ""
            disk = "" if on_disk else '; objective.heatmap_storage = "disk" needs no more memory'
            none = f"not even {least} per image would fit"
            without = [name for name in ("scl_weight", "heatmap_patch_weight") if getattr(self, name) != 0]
            zero = " and ".join(f"objective.{name} = 0" for name in without)
            return f"{top_k or none}{disk}; {zero} {'does' if len(without) == 1 else 'do'} without heatmaps."

        def size_of_scores(images: int) -> int:
            second = score_bytes(images, classes, "float32") if self.prototype_weight else 0
            return score_bytes(images, classes, self.score_dtype) + second

        scores = StoreMemory(name="running scores", size=size_of_scores, remedy=smaller_scores)
        taught = (teacher_memory(facts),) if facts.teacher and self.teacher_weight else ()
        if not self._keeps_heatmaps:
            return (scores, *taught)
        heatmaps = StoreMemory(
            name="heatmaps",
            size=lambda images: heatmap_bytes(images, classes, grid, plan),
            remedy=smaller_heatmaps,
            on_disk=on_disk,
            detail=f"{2 * grid[0]} x {2 * grid[1]} per image and class",
        )
        return scores, heatmaps, *taught

    def notes(self, facts: RunFacts) -> Iterator[str]:
        """Say so if a teacher has no effect, or next to none."""
        if self.scores_start == "labels":
            yield from super().notes(facts)
        elif self.corrected_averages:
            yield (
                "objective.corrected_averages replaces the scores of the teacher by those of the net when a photo is "
                "first seen, so they rank the photos in the first epoch only"
            )

    def remarks(self, means: Mapping[str, float]) -> Iterator[str]:
        """Warn if CL and SCL are more than half of the loss: the net then copies its own averages, not the labels."""
        cl, scl = self.cl_weight * means.get("cl", 0.0), self.gamma * means.get("scl", 0.0)
        share, loss = cl + scl, means.get("loss", 0.0)
        if share > 0.5 * loss > 0:
            yield (
                f"consistency is {100 * min(1.0, share / loss):.0f} % of the loss, so labels have little influence; "
                f"lower objective.{'cl_weight' if cl > scl else 'scl_weight'}"
            )

    def heatmap_plan(self, seed: int = 0) -> HeatmapPlan:
        """Return how heatmaps are kept, for `heatmap_bytes`."""
        return HeatmapPlan(
            momentum=self.momentum,
            top_k=self.heatmap_top_k,
            dtype=self.heatmap_dtype,
            rounding=self.heatmap_rounding,
            corrected=self.corrected_averages,
            seed=seed,
        )

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Allocate scores, cuts and heatmaps."""
        self._problem = problem
        (samples, classes), shard, device = problem.labels.shape, problem.shard, problem.device
        low, high = self.positives_interval or (None, None)
        self._counts = torch.from_numpy(self._expected_counts(problem.labels, low)).to(device)
        dtype = torch.float32 if self.score_dtype == "float32" else torch.float16
        self._scores = ScoreStore(
            samples,
            classes,
            momentum=self.momentum,
            dtype=dtype,
            corrected=self.corrected_averages,
            shard=shard,
            device=device,
        )
        self.meet_teacher(problem)
        if self.scores_start == "teacher":
            self._start_with_teacher(problem)
        self._expected = ExpectedPositives(classes, self.reading, device)
        self._heatmaps: HeatmapStore | None = None
        parts: dict[str, Part] = {"scores": self._scores, "expected_positives": self._expected}
        self._possible: ExpectedPositives | None = None
        if self.positives_interval is not None:
            self._most_counts = torch.from_numpy(self._expected_counts(problem.labels, high)).to(device)
            self._possible = ExpectedPositives(classes, self.reading, device)
            parts["possible_positives"] = self._possible
        if self._keeps_heatmaps:
            self._heatmaps = self._make_heatmaps(problem)
            parts["heatmaps"] = self._heatmaps
        self._second: PrototypeScores | None = None
        if self.prototype_weight > 0:
            weight, dim = self.prototype_weight, problem.features_dim
            self._second = PrototypeScores(samples, classes, dim, weight, shard=shard, device=device)
            parts["prototypes"] = self._second
        return parts

    def on_epoch_start(self, epoch: int) -> Mapping[str, float]:
        """Rank the images of every class (z-hat), choose the classes that have heatmaps, and count expected positives.

        Precision and recall of expected positives are those among unannotated cells, if the complete labels are known.
        """
        problem = self._problem
        if self._heatmaps is not None and epoch == self._first_scl_epoch:
            self._heatmaps.choose(self._scores, problem.labels)
        taught = self.scores_start == "teacher"
        if epoch == 0 and not taught:
            return {}
        ranked = taught or epoch >= problem.warmup_epochs or self.warmup_loss == "expected_negative"
        cuts = [(self._expected, self._counts)]
        if self._possible is not None:
            cuts.append((self._possible, self._most_counts))
        tally = Ranking(problem, self._scores, cuts, self._second).refresh(ranked)
        if self._second is not None:
            self._second.refresh()
        return diagnostics(tally, problem.labels.shape[0], ranked, problem.truth is not None)

    def step(self, net: nn.Module, batch: Batch, at: Progress) -> Step:
        """Compute eq. (8), with the state before this batch."""
        if self._heatmaps is not None and at.epoch >= self._first_scl_epoch:
            self._heatmaps.expect(batch.index)  # read while the net works
        out: Output = net(batch.images)
        logits, labels = out.logits.float(), batch.labels
        scores = self._scores.read(batch.index, labels)
        ranking = scores if self._second is None else self._second.ranked(scores, labels, batch.index)
        expected = self._expected.mask(ranking, labels, batch.index)
        if self.expected_positives == "positive":
            loss = expected_positive(logits, labels, expected)
            logs = {"ep": loss.detach()}
        elif self.expected_positives == "counted":
            loss = expected_positive_regularisation(logits, labels, self._mean_count, total=self._problem.shard.sum)
            logs = {"epr": loss.detach()}
        else:  # none: only annotated positives are in the mask
            loss = expected_negative(logits, labels, expected, weight=self._weights(batch, logits, ranking, at))
            logs = {"en": loss.detach()}
        loss = self.with_distillation(loss, logs, logits, batch)
        absent = None if self.expected_positives == "counted" else (labels == Label.UNKNOWN) & ~expected
        loss = self.with_patches(loss, logs, out, batch, absent)
        ramp = self._ramp(at)
        if self.cl_weight > 0 and at.epoch >= self._problem.warmup_epochs:
            seen = self._scores.seen(batch.index)[:, None] if self.corrected_averages else None
            cl = consistency(logits, scores, distance=self.distance, weight=seen)
            loss, logs["cl"] = loss + ramp * self.cl_weight * cl, cl.detach()
        prob_maps = None
        if self._heatmaps is not None and at.epoch >= self._first_scl_epoch:
            maps = out.maps.float()
            target, weight = self._heatmaps.read(batch.index, labels, batch.views, (maps.shape[2], maps.shape[3]))
            if self.gamma > 0:
                scl = consistency(maps, target, distance=self.distance, weight=weight)
                loss, logs["scl"] = loss + ramp * self.gamma * scl, scl.detach()
            if self.heatmap_patch_weight > 0:
                hidden = expected & (labels == Label.UNKNOWN)
                soft = soft_patch_loss(maps, *self._heatmaps.stretched(target, weight, hidden, batch.index, labels))
                loss, logs["soft_patch"] = loss + self.heatmap_patch_weight * soft, soft.detach()
            prob_maps = maps.detach().sigmoid()
        prob = logits.detach().sigmoid()
        whole = None if self._second is None else out.features.detach().float().mean((2, 3), keepdim=True)
        return Step(loss, logs | {"sum_of_probabilities": prob.sum(1).mean()}, Predictions(prob, prob_maps, whole))

    @torch.no_grad()
    def commit(self, net: nn.Module, batch: Batch, out: Step) -> None:
        """Update s with f (eq. 4), and H with the score maps in the region that the crop shows."""
        seen: Predictions = out.payload
        self._scores.update(batch.index, seen.prob, batch.labels)
        if self._heatmaps is not None and seen.prob_maps is not None:
            self._heatmaps.update(batch.index, batch.labels, batch.views, seen.prob_maps)
        if self._second is not None and seen.features is not None:
            self._second.update(batch.index, seen.features, batch.labels)

    def _weights(self, batch: Batch, logits: Tensor, ranking: Tensor, at: Progress) -> Tensor | None:
        """Return the weights of the cells in EN's loss, float32 [b, C]; None if all are 1."""
        weights = self._certainty(batch, ranking, at)
        if not self.negative_gamma:
            return weights
        focus = torch.where(batch.labels == Label.POSITIVE, 1.0, logits.detach().sigmoid() ** self.negative_gamma)
        return focus if weights is None else focus * weights

    def _certainty(self, batch: Batch, ranking: Tensor, at: Progress) -> Tensor | None:
        """Return how much the label of each cell counts, float32 [b, C]; None if all are 1."""
        weights: Tensor | None = None
        if self._possible is not None:
            possible = self._possible.mask(ranking, batch.labels, batch.index) & (batch.labels == Label.UNKNOWN)
            weights = torch.where(possible, UNSURE_WEIGHT, 1.0)
        if self._problem.answered is None:
            return weights
        answered = torch.from_numpy(self._problem.answered.rows(batch.index.cpu().numpy())).to(batch.labels.device)
        answer = ANSWER_WEIGHT if self.answer_weight is None else self.answer_weight
        answer = answer if at.answer_weight is None else at.answer_weight
        return torch.where(answered == Label.UNKNOWN, 1.0 if weights is None else weights, answer)

    @property
    def _first_scl_epoch(self) -> int:
        """The first epoch with heatmaps; choosing classes needs the scores of at least one epoch."""
        chosen = self._heatmaps is not None and self._heatmaps.class_ids is not None
        return max(self._problem.warmup_epochs, 1 if chosen else 0)

    def _ramp(self, at: Progress) -> float:
        since = at.exact_epoch - self._problem.warmup_epochs
        return min(1.0, max(0.0, since / self.ramp_epochs)) if self.ramp_epochs else 1.0

    @property
    def _mean_count(self) -> float:
        """K; the sum of the class prior if it is given."""
        prior, mean = self.class_prior, self.positives_per_image
        assert prior is not None or mean is not None, "derive K first"
        return float(sum(prior) if prior is not None else mean or 0.0)

    def _start_with_teacher(self, problem: Problem) -> None:
        if problem.teacher is None:
            raise ConfigError(f'objective.scores_start = "teacher" {needs_teacher()}')
        if problem.device.type != "meta":
            own = problem.teacher[problem.shard.rank :: problem.shard.world]
            self._scores.start_with(torch.from_numpy(np.array(own)))

    def _expected_counts(self, labels: LabelMatrix, limit: float | None) -> NDArray[np.int64]:
        """Return p_i, int64 [C], for K and the shares of the classes; or for a `limit` of K in its place."""
        classes = labels.shape[1]
        if self.expected_positives == "none":
            return np.zeros(classes, np.int64)
        mean, prior = self.positives_per_image if limit is None else limit, self.class_prior
        if mean is None and prior is None:
            raise ConfigError(
                "expected_negative needs positives_per_image, the mean number of classes in an image (2.9 on COCO, "
                "1.5 on VOC). Count the classes in twenty photos, or give a validation set with complete labels."
            )
        if self.positives_per_image is not None and self.positives_per_image > classes:
            raise ConfigError(f"positives_per_image is {self.positives_per_image}, but there are {classes} classes.")
        if limit is not None and limit > classes:
            raise ConfigError(f"positives_interval has the limit {limit:g}, but there are {classes} classes.")
        if self.class_prior is not None and len(self.class_prior) != classes:
            raise ConfigError(f"class_prior has {len(self.class_prior)} shares, but there are {classes} classes.")
        if self.expected_positives == "counted":
            return np.zeros(classes, np.int64)
        if prior is not None and limit is not None:
            prior = tuple(share * limit / max(sum(prior), 1e-12) for share in prior)
        return expected_counts(labels, mean, prior, answered=self._problem.answered)

    def _make_heatmaps(self, problem: Problem) -> HeatmapStore:
        samples, classes = problem.labels.shape
        plan, device, path = self.heatmap_plan(problem.seed), problem.device, None
        if plan.kept(classes) < classes:
            positives = problem.labels.image_counts(Label.POSITIVE)
            if (most := int(positives.max(initial=0))) > plan.kept(classes):
                raise ConfigError(
                    f"heatmap_top_k={self.heatmap_top_k} is less than the {most} annotated positives of training image "
                    f"{int(positives.argmax())}, which all need a heatmap; use at least {most}."
                )
        if self.heatmap_storage == "disk" and device.type != "meta":
            if problem.state_dir is None:
                raise ConfigError("heatmap_storage='disk' needs a run folder to keep the file in; give one (out=...).")
            device, path = torch.device("cpu"), Path(problem.state_dir, f"heatmaps-{problem.shard.rank}.bin")
        return HeatmapStore(samples, classes, problem.grid, plan, shard=problem.shard, device=device, path=path)
