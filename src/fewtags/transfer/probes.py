"""Probes that train no network: nearest neighbours, and a linear SVM per class."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import ConfigError
from fewtags.labels import Label
from fewtags.metrics.neighbours import highest, unit
from fewtags.transfer.task import TaskKind

BLOCK = 256
SVM_COST = 0.5
SVM_FOLDS = 3
SVM_ITERATIONS = 2000


def knn_scores(
    train: NDArray[np.float32],
    labels: NDArray[np.int8],
    test: NDArray[np.float32],
    kind: TaskKind,
    *,
    k: int = 20,
    temperature: float = 0.07,
) -> NDArray[np.float64]:
    """Score the classes by a weighted vote of the k nearest training photos by cosine similarity.

    A neighbour of cosine s has a vote of exp(s / temperature) (Wu et al., CVPR 2018, section 3.4). Single-label: a
    class scores the sum of the votes for it. Multi-label: a class scores the share of the votes that its positive
    neighbours have among the neighbours in which the class is known. If it is known in none of them, it scores its
    share of positives among all training photos in which it is known, or 0 without such photos. If several photos tie
    at the k-th place, the earlier one counts.

    Args:
        train: features float32 [N, d].
        labels: int8 [N, C], values of `Label`.
        test: features float32 [M, d].
        kind: one class per photo, or several.
        k: number of neighbours, 1..N.
        temperature: above 0.

    Returns:
        float64 [M, C]; single-label scores are relative to the nearest neighbour's vote.

    Raises:
        ConfigError: k or the temperature is out of range.
    """
    if not 1 <= k <= len(train):
        raise ConfigError(f"--neighbours {k}: there are {len(train):,} training photos; give 1 to {len(train)}.")
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
        scores = np.einsum("mk,mkc->mc", vote, positive[nearest].astype(np.float64))
        if kind == "multi":
            total = np.einsum("mk,mkc->mc", vote, known[nearest].astype(np.float64))
            scores = np.where(total > 0, scores / np.where(total > 0, total, 1), base)
        blocks.append(scores)
    return np.concatenate(blocks) if blocks else np.zeros((0, labels.shape[1]))


@final
class SvmScores(NamedTuple):
    """Scores of a linear SVM per class: float64 [M, C], the decision function; 0 for a class without a classifier.

    `costs` are float64 [C], nan without a classifier; `unconverged` are the classes whose solver did not converge.
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
    """Train a linear SVM per class on unit features and score the test photos: the VOC07 SVM protocol.

    Squared hinge loss, positives weighted 2 and negatives 1, one class against the rest; unknown cells are left out.
    With one cost, C = 0.5 is that of Van Gansbeke et al. (NeurIPS 2021). With several, each class takes the cost with
    the best mean AP over three folds, as Goyal et al. (ICCV 2019) do; a class with fewer than three positives or three
    negatives takes the first cost. A class without known positives or negatives in training has no classifier.

    Args:
        train: features float32 [N, d].
        labels: int8 [N, C], values of `Label`.
        test: features float32 [M, d].
        costs: C of the SVM, one or several.
        seed: seed of the solver, which draws random numbers if there are fewer photos than features.

    Raises:
        ConfigError: a cost is not above 0, or scikit-learn is not installed.
    """
    if not costs or not all(cost > 0 for cost in costs):
        raise ConfigError(f"the cost of an SVM must be above 0, got {', '.join(f'{c:g}' for c in costs) or 'none'}.")
    known_features, test_features = unit(train), unit(test)
    scores = np.zeros((len(test), labels.shape[1]))
    chosen = np.full(labels.shape[1], np.nan)
    unconverged = []
    for c in range(labels.shape[1]):
        rows = np.flatnonzero(labels[:, c] != Label.UNKNOWN)
        positive = labels[rows, c] == Label.POSITIVE
        if not positive.any() or positive.all():
            continue
        x = known_features[rows]
        chosen[c] = costs[0] if len(costs) == 1 else _best_cost(x, positive, costs, seed)
        svm, done = _fitted(float(chosen[c]), seed, x, positive)
        scores[:, c] = svm.decision_function(test_features)
        if not done:
            unconverged.append(c)
    return SvmScores(scores, chosen, tuple(unconverged))


def _fitted(cost: float, seed: int, x: NDArray[np.float32], positive: NDArray[np.bool_]) -> tuple[Any, bool]:
    """Train an SVM; return it and whether its solver converged."""
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.svm import LinearSVC
    except ImportError:
        raise ConfigError("the SVM probe needs scikit-learn; `pip install fewtags[transfer]`.") from None
    weights, steps = {1: 2.0, -1: 1.0}, SVM_ITERATIONS
    svm = LinearSVC(C=cost, class_weight=weights, loss="squared_hinge", dual="auto", max_iter=steps, random_state=seed)
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
        fitted = [(_fitted(cost, seed, x[train], positive[train])[0], held) for train, held in folds]
        means.append(np.mean([average_precision_score(positive[h], svm.decision_function(x[h])) for svm, h in fitted]))
    return costs[int(np.argmax(means))]
