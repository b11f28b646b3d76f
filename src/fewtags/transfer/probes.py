"""Probes that train no net: nearest neighbours, and a linear SVM per class."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import ConfigError
from fewtags.labels import Label
from fewtags.metrics.neighbours import highest, unit
from fewtags.transfer.task import Kind

BLOCK = 256
SVM_COST = 0.5
SVM_FOLDS = 3
SVM_ITERATIONS = 2000


def knn_scores(
    train: NDArray[np.float32],
    labels: NDArray[np.int8],
    test: NDArray[np.float32],
    kind: Kind,
    *,
    k: int = 20,
    temperature: float = 0.07,
) -> NDArray[np.float64]:
    """Scores of the classes by a weighted vote of the k nearest training photos in cosine.

    A neighbour of cosine s votes with exp(s / temperature) (Wu et al., CVPR 2018, section 3.4). Single classes: the sum
    of the votes for a class. Several: of the neighbours in which a class is known, the share of the votes of those that
    have it; where it is known in none of them, its share among all training photos in which it is known, and 0 where
    there is none either. Of equal cosines at the k-th place the earlier photo counts.

    Args:
        train: features float32 [N, d].
        labels: int8 [N, C], values of `Label`.
        test: features float32 [M, d].
        kind: one class per photo, or several.
        k: neighbours, 1..N.
        temperature: above 0.

    Returns:
        float64 [M, C]; of single classes relative to the nearest neighbour's vote.

    Raises:
        ConfigError: k or the temperature out of range.
    """
    if not 1 <= k <= len(train):
        raise ConfigError(f"--neighbours {k} of {len(train):,} training photos: give 1 to {len(train)}.")
    if not temperature > 0:
        raise ConfigError(f"the temperature must be above 0, got {temperature:g}.")
    positive, known = labels == Label.POSITIVE, labels != Label.UNKNOWN
    base = positive.sum(0) / np.maximum(known.sum(0), 1)
    gallery = unit(train).T
    blocks = []
    for first in range(0, len(test), BLOCK):
        cosine = unit(test[first : first + BLOCK]) @ gallery
        nearest, near = highest(cosine, k)
        near = near.astype(np.float64)
        vote = np.exp((near - near[:, :1]) / temperature)
        for_ = np.einsum("mk,mkc->mc", vote, positive[nearest].astype(np.float64))
        if kind == "multi":
            of = np.einsum("mk,mkc->mc", vote, known[nearest].astype(np.float64))
            for_ = np.where(of > 0, for_ / np.where(of > 0, of, 1), base)
        blocks.append(for_)
    return np.concatenate(blocks) if blocks else np.zeros((0, labels.shape[1]))


@final
class SvmScores(NamedTuple):
    """What a linear SVM per class says.

    Attributes:
        scores: float64 [M, C], signed distances times the weight's length; 0 for a class without a classifier.
        costs: float64 [C], the cost of each class; nan without a classifier.
        unconverged: classes whose solver stopped before it was done.
    """

    scores: NDArray[np.float64]
    costs: NDArray[np.float64]
    unconverged: tuple[int, ...]


def svm_scores(
    train: NDArray[np.float32],
    labels: NDArray[np.int8],
    test: NDArray[np.float32],
    *,
    costs: Sequence[float] = (SVM_COST,),
    seed: int = 0,
) -> SvmScores:
    """A linear SVM per class on unit features: the VOC07 SVM protocol.

    Squared hinge, positives weighted 2 and negatives 1, one class against the rest; cells of unknown label are left
    out. One cost: C = 0.5 is that of Van Gansbeke et al. (NeurIPS 2021). Several: each class takes the one of the best
    mean AP over three folds, as Goyal et al. (ICCV 2019) do; a class with fewer than three photos of a kind takes the
    first. A class without known positives or negatives in training has no classifier.

    Args:
        train: features float32 [N, d].
        labels: int8 [N, C], values of `Label`.
        test: features float32 [M, d].
        costs: C of the SVM, one or several.
        seed: of the solver where it draws (fewer photos than features).

    Raises:
        ConfigError: a cost that is not above 0, or scikit-learn is not installed.
    """
    if not costs or not all(cost > 0 for cost in costs):
        raise ConfigError(f"the cost of an SVM must be above 0, got {', '.join(f'{c:g}' for c in costs) or 'none'}.")
    known_features, test_features = unit(train), unit(test)
    scores = np.zeros((len(test), labels.shape[1]))
    chosen = np.full(labels.shape[1], np.nan)
    unconverged = []
    for c, rows, positive in _trainable(labels):
        x = known_features[rows]
        chosen[c] = costs[0] if len(costs) == 1 else _best_cost(x, positive, costs, seed)
        svm, done = _fitted(_svm(float(chosen[c]), seed), x, positive)
        scores[:, c] = svm.decision_function(test_features)
        if not done:
            unconverged.append(c)
    return SvmScores(scores, chosen, tuple(unconverged))


def _trainable(labels: NDArray[np.int8]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.bool_]]]:
    """Each class with known positives and negatives, the photos in which it is known, and whether they have it."""
    for c in range(labels.shape[1]):
        rows = np.flatnonzero(labels[:, c] != Label.UNKNOWN)
        positive = labels[rows, c] == Label.POSITIVE
        if positive.any() and not positive.all():
            yield c, rows, positive


def _svm(cost: float, seed: int) -> Any:
    try:
        from sklearn.svm import LinearSVC
    except ImportError:
        raise ConfigError("the SVM probe needs scikit-learn; `pip install fewtags[transfer]`.") from None
    return LinearSVC(
        C=cost, class_weight={1: 2.0, -1: 1.0}, loss="squared_hinge", dual="auto", max_iter=SVM_ITERATIONS,
        random_state=seed,
    )  # fmt: skip


def _fitted(svm: Any, x: NDArray[np.float32], positive: NDArray[np.bool_]) -> tuple[Any, bool]:
    """The SVM, trained, and whether its solver was done."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ConvergenceWarning)
        svm.fit(x, np.where(positive, 1, -1))
    return svm, not any(issubclass(warning.category, ConvergenceWarning) for warning in seen)


def _best_cost(x: NDArray[np.float32], positive: NDArray[np.bool_], costs: Sequence[float], seed: int) -> float:
    if min(positive.sum(), (~positive).sum()) < SVM_FOLDS:
        return costs[0]
    from sklearn.metrics import average_precision_score
    from sklearn.model_selection import StratifiedKFold

    folds = list(StratifiedKFold(SVM_FOLDS).split(x, positive))
    means = []
    for cost in costs:
        fitted = [(_fitted(_svm(cost, seed), x[train], positive[train])[0], held) for train, held in folds]
        means.append(np.mean([average_precision_score(positive[h], svm.decision_function(x[h])) for svm, h in fitted]))
    return costs[int(np.argmax(means))]
