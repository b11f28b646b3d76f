"""Expected positives: the images most likely to contain each class (SCL, Verelst et al., WACV 2023, section 3.3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int8, Int64
from numpy.typing import NDArray
from torch import Tensor

from fewtags.labels import Label, LabelMatrix
from fewtags.stores.best_cells import BestCells
from fewtags.stores.rounding import tie_key
from fewtags.stores.shard import Shard
from fewtags.stores.state import copy_state

Reading = Literal["all_then_or", "fill", "unannotated_only"]


def expected_counts(
    labels: LabelMatrix,
    positives_per_image: float | None,
    class_prior: Sequence[float] | None = None,
    *,
    normalised: bool = True,
    answered: LabelMatrix | None = None,
) -> NDArray[np.int64]:
    """Return the number of images expected to contain each class: p_i, int64 [C].

    p_i = round_half_up(K N count_i / sum_j count_j), clamped to [count_i, N - known negatives of i], where count_i is
    the number of annotated positives. A class without positives gets 0.

    Eq. (3) of the paper is K count_i (`normalised=False`; no method uses it). Both forms agree if every image has
    exactly one positive; otherwise eq. (3) does not expect K per image.

    Args:
        labels: the training labels.
        positives_per_image: K, mean number of classes in an image.
        class_prior: share of images that contain each class, [C]. If given, p_i = round_half_up(prior_i N) with the
            same clamp, for every class, and K is not used. Class shares from the annotations, as in eq. (3), can be
            off by a factor of two (COCO: spoon 0.5, bear 2.6).
        normalised: see above.
        answered: labels that people gave when they were asked. Their positives do not count in count_i, because a class
            that is asked about more often is found more often; if there are no others, they do (not in the paper).

    >>> one_each = LabelMatrix.from_dense(np.eye(4, 2, dtype=np.int8))  # two of four images have a label
    >>> expected_counts(one_each, 1.5).tolist(), expected_counts(one_each, 1.5, normalised=False).tolist()
    ([3, 3], [2, 2])
    """
    images = labels.shape[0]
    annotated = labels.counts(Label.POSITIVE)
    drawn = annotated if answered is None else np.maximum(annotated - answered.counts(Label.POSITIVE), 0)
    drawn = drawn if drawn.any() else annotated
    if class_prior is not None:
        expected: NDArray[np.floating] = np.asarray(class_prior, np.float64) * images
    else:
        assert positives_per_image is not None, "give positives_per_image or class_prior"
        # In this order the factor is exactly 1 for one positive per image, so that both forms round alike.
        scale = images / max(int(drawn.sum()), 1) if normalised else 1.0
        expected = positives_per_image * drawn * scale
    rounded = np.floor(expected + 0.5).astype(np.int64)
    most: NDArray[np.int64] = images - labels.counts(Label.NEGATIVE)
    clamped: NDArray[np.int64] = np.minimum(np.maximum(rounded, annotated), most)
    return clamped


BLOCK_CELLS = 2**23  # cells that are ranked at a time: a few dozen megabytes


def class_blocks(samples: int, classes: int, cells: int = BLOCK_CELLS) -> Iterator[tuple[int, int]]:
    """Split the classes into blocks (first, one past the last) of at most `cells` cells, but at least one class.

    >>> list(class_blocks(10, 5, cells=20))
    [(0, 2), (2, 4), (4, 5)]
    """
    width = max(1, cells // max(samples, 1))
    for first in range(0, classes, width):
        yield first, min(first + width, classes)


@final
class ExpectedPositives:
    """The mask z-hat of eq. (5), stored as one cut per class instead of one bit per (image, class).

    Images are ranked by (score descending, `tie_key` ascending). The cut is the (score, key) of the last expected
    positive. The paper computes z-hat at the start of an epoch. An image is visited once per epoch and its scores
    change only after its own step, so comparing them with the cut at that step gives the same result.

    Annotated positives are always expected positives, known negatives never. Before the first `refresh` there are no
    others: z-hat^0 of the paper, with which EN is the assume-negative loss.

    Readings of "the top-p_i instances", which the paper does not define further:
        `all_then_or`: the top p_i of all images but known negatives, then OR with the annotated positives (literal).
        `fill`: the annotated positives, filled up to exactly p_i with the best unannotated images.
        `unannotated_only`: the top p_i of the unannotated images, in addition to the annotated positives.

    Args:
        classes: C.
        reading: one of the above.
        device: of the cuts and the ranking.
    """

    def __init__(self, classes: int, reading: Reading = "all_then_or", device: torch.device | None = None) -> None:
        self.reading = reading
        self.cut_score = torch.full((classes,), torch.inf, device=device)
        self.cut_key = torch.full((classes,), -1, dtype=torch.int64, device=device)

    def refresh(
        self,
        first: int,
        scores: Float[Tensor, "n k"],
        labels: Int8[Tensor, "n k"],
        counts: Int64[Tensor, "k"],
    ) -> int:
        """Set the cuts of the classes first..first + k - 1; return their number of expected positives.

        Scores and labels are those of all images in the order of their index, and counts p_i (`expected_counts`).
        """
        positive, classes = _indices((labels == Label.POSITIVE).flatten()), labels.shape[1]
        row, column = positive // classes, positive % classes
        candidate = labels != Label.NEGATIVE if self.reading == "all_then_or" else labels == Label.UNKNOWN
        if self.reading == "fill":
            counts = counts - torch.bincount(column, minlength=classes)
        ranked = torch.where(candidate, scores, -torch.inf).T.contiguous()
        numbers = enumerate(zip(ranked, counts.tolist(), strict=True), first)
        cuts = [_last_of_best(those, number, class_) for class_, (those, number) in numbers]
        block = slice(first, first + classes)
        self.cut_score[block] = self.cut_score.new_tensor([cut.score for cut in cuts])
        self.cut_key[block] = self.cut_key.new_tensor([cut.key for cut in cuts])
        key = tie_key(row, column + first)
        chosen = _above(ranked[column, row], key, self.cut_score[block][column], self.cut_key[block][column])
        return sum(cut.taken for cut in cuts) + len(positive) - int(torch.count_nonzero(chosen))

    def refresh_from(
        self, found: BestCells, counts: NDArray[np.int64], annotated: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Set the cuts of the classes whose expected positives are all among `found`; return which these are, bool [C].

        Counts are p_i, and `annotated` the numbers of annotated positives, both [C]. The cuts are those of `refresh`.
        """
        candidate = found.label != Label.NEGATIVE if self.reading == "all_then_or" else found.label == Label.UNKNOWN
        wanted = np.maximum(counts - annotated, 0) if self.reading == "fill" else counts
        start = found.parts()
        there = np.concatenate([[0], np.cumsum(candidate)])
        known: NDArray[np.bool_] = (found.searched & (there[start[1:]] - there[start[:-1]] >= wanted)) | (wanted == 0)
        cut_score, cut_key = self.cut_score.cpu().numpy(), self.cut_key.cpu().numpy()
        for class_ in np.flatnonzero(known).tolist():
            part = slice(start[class_], start[class_ + 1])
            own = candidate[part]
            cut = _last_of_best(
                torch.from_numpy(found.score[part][own]),
                int(wanted[class_]),
                class_,
                torch.from_numpy(found.image[part][own]),
            )
            cut_score[class_], cut_key[class_] = cut.score, cut.key
        self.cut_score.copy_(torch.from_numpy(cut_score))
        self.cut_key.copy_(torch.from_numpy(cut_key))
        return known

    def above(self, found: BestCells) -> NDArray[np.bool_]:
        """Mask of the cells that are ranked at or before the cut of their class, whatever their label."""
        cut = self.cut_score.cpu().numpy()[found.class_]
        above, tied = found.score > cut, np.flatnonzero(found.score == cut)
        key = tie_key(torch.from_numpy(found.image[tied]), torch.from_numpy(found.class_[tied])).numpy()
        above[tied] = key <= self.cut_key.cpu().numpy()[found.class_[tied]]
        return above

    def share(self, shard: Shard, own: Bool[Tensor, "c"]) -> None:
        """Combine the cuts of all processes; one process ranks each class (`own`). Collective: every rank must call."""
        self.cut_score.copy_(shard.sum(torch.where(own, self.cut_score, 0)))
        self.cut_key.copy_(shard.sum(torch.where(own, self.cut_key, 0)))

    def mask(
        self, scores: Float[Tensor, "b k"], labels: Int8[Tensor, "b k"], index: Int64[Tensor, "b"], first: int = 0
    ) -> Bool[Tensor, "b k"]:
        """z-hat of the images `index` (global), classes from `first` on; `scores` from before this epoch's visit."""
        block = slice(first, first + scores.shape[1])
        key = tie_key(index[:, None], torch.arange(block.start, block.stop, device=index.device))
        above = _above(scores, key, self.cut_score[block], self.cut_key[block])
        return (above & (labels == Label.UNKNOWN)) | (labels == Label.POSITIVE)

    def state_dict(self) -> Mapping[str, Tensor]:
        """The tensors themselves, not copies."""
        return {"cut_score": self.cut_score, "cut_key": self.cut_key}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], /) -> None:
        """Copy a state in place. Raises CheckpointError if its names, shapes or dtypes differ."""
        copy_state(self.state_dict(), state_dict, "expected positives")


class _Cut(NamedTuple):
    """Score and tie key of the last expected positive of a class, and their number; (inf, -1, 0) for none."""

    score: float
    key: int
    taken: int


def _above(scores: Tensor, key: Tensor, cut_score: Tensor, cut_key: Tensor) -> Tensor:
    """Mask of the images that are ranked at or before a cut."""
    return (scores > cut_score) | ((scores == cut_score) & (key <= cut_key))


def _last_of_best(ranked: Float[Tensor, "n"], count: int, class_: int, image: Int64[Tensor, "n"] | None = None) -> _Cut:
    """The last of the `count` best by (score descending, key ascending), without scores of minus infinity.

    `image` are the indices of the images; None: they are those of all, in order.
    """
    count = min(count, len(ranked))
    if count < 1:
        return _Cut(torch.inf, -1, 0)
    cut = _nth_largest(ranked, count)
    if cut == -torch.inf:
        return _last_of_best(ranked, int(torch.count_nonzero(ranked > cut)), class_, image)
    # Of equal scores at the cut, take the first images by key.
    wanted = count - int(torch.count_nonzero(ranked > cut))
    tied = _indices(ranked == cut)
    tied = tied if image is None else image[tied]
    keys = tie_key(tied, torch.full_like(tied, class_))
    return _Cut(cut, int(keys.sort().values[wanted - 1]), count)


def _nth_largest(values: Float[Tensor, "n"], n: int) -> float:
    if _on_cpu(values):  # numpy selects six times faster than torch there
        return float(np.partition(values.numpy(), len(values) - n)[len(values) - n])
    return float(values.topk(n, sorted=False).values.min())


def _indices(mask: Bool[Tensor, "n"]) -> Int64[Tensor, "m"]:
    """Positions of True, ascending."""
    return torch.from_numpy(np.flatnonzero(mask.numpy())) if _on_cpu(mask) else mask.nonzero()[:, 0]


def _on_cpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"
