"""K and class priors from one tag for each photo and nothing else: a classifier of the tags on frozen features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fewtags.engine.solve import ChannelStatistics, HeadSolver
from fewtags.errors import DataError
from fewtags.metrics.counts import counts_from_tags
from fewtags.nets.spatial import SpatialHead
from fewtags.seeds import rng
from fewtags.text import counted

DIMENSIONS = 256
"""Directions of the features that are kept: those in which photos differ most."""
VARIANCES = (0.1, 0.3, 1.0, 3.0)
"""Strengths of regularisation; the probability of tags that a model has not seen chooses one."""
FOLDS, ITERATIONS = 5, 30
MOST_PHOTOS = 5000
FEWEST_PHOTOS = 50
TRUE_OVER_ESTIMATE = (0.54, 1.36)
"""Smallest and largest true K over its estimate, on four sets, with all classes and with halves of them, three seeds
each (docs/expected_number.md)."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class TagCounts:
    """An estimate without complete labels.

    Attributes:
        mean: K.
        prior: float64 [C], share of photos with each class.
        explained: share of the entropy of the tags that the photos explain, 0..1; next to 0, `mean` is much too high.
        photos: number of photos.
    """

    mean: float
    prior: NDArray[np.float64]
    explained: float
    photos: int


def tag_counts(features: NDArray[np.floating], tag: NDArray[np.integer], classes: int, seed: int = 0) -> TagCounts:
    """Estimate K and class priors (`counts_from_tags`) with out-of-fold probabilities of a softmax regression.

    Args:
        features: [N, d], of the photos.
        tag: int [N], the class of each photo's tag.
        classes: C.
        seed: of the folds.

    Raises:
        DataError: fewer than `FEWEST_PHOTOS` photos, or one class only.
    """
    if len(tag) < FEWEST_PHOTOS or len(np.unique(tag)) < 2:
        found = counted(len(np.unique(tag)), "class", "classes")
        raise DataError(
            f"{counted(len(tag), 'photo')} with a tag, of {found}, are too few to estimate K from tags; it takes "
            f"{FEWEST_PHOTOS} photos and two classes. Label some photos completely: --ask."
        )
    prob, loss = held_out_probabilities(features, tag, classes, seed)
    share = np.bincount(tag, minlength=classes) / len(tag)
    entropy = -float((share[share > 0] * np.log(share[share > 0])).sum())
    mean, prior = counts_from_tags(prob)
    return TagCounts(mean=mean, prior=prior, explained=max(0.0, 1 - loss / entropy), photos=len(tag))


def held_out_probabilities(
    features: NDArray[np.floating], tag: NDArray[np.integer], classes: int, seed: int
) -> tuple[NDArray[np.float64], float]:
    """Return the probability of each class to be the tag, float64 [N, C], by models that have not seen the photo's tag.

    Also return the mean negative log-likelihood of the tags. It chooses the strength of regularisation.
    """
    x, y = _directions(features), torch.from_numpy(np.asarray(tag, np.int64))
    fold = torch.from_numpy(rng(seed, 0, 0).permutation(len(y)) % FOLDS)
    logits = torch.zeros(len(VARIANCES), len(y), classes)
    for number in range(FOLDS):
        held = fold == number
        logits[:, held] = _fit(x[~held], y[~held], x[held], classes)
    losses = [float(F.cross_entropy(each, y)) for each in logits]
    best = int(np.argmin(losses))
    prob: NDArray[np.float64] = logits[best].double().softmax(1).numpy()
    return prob, losses[best]


def _fit(x: Tensor, y: Tensor, held: Tensor, classes: int) -> Tensor:
    """Return the logits of held-out photos by a softmax regression with each of `VARIANCES`, [V, n, C]."""
    head = SpatialHead(x.shape[1], classes)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    solver = HeadSolver(
        head, ChannelStatistics(torch.zeros(x.shape[1]), torch.ones(x.shape[1])), max_iterations=ITERATIONS
    )

    def loss() -> Tensor:
        value = F.cross_entropy(x @ head.weight.T + head.bias, y)
        value.backward()
        return value.detach()

    found = []
    for variance in VARIANCES:
        solver.minimise(loss, variance, len(x))
        found.append((held @ head.weight.T + head.bias).detach())
    return torch.stack(found)


def _directions(features: NDArray[np.floating]) -> Tensor:
    """Return standardised features in the directions in which they differ most, float32 [N, at most `DIMENSIONS`]."""
    x = np.asarray(features, np.float64)
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-6)
    _, vectors = np.linalg.eigh(x.T @ x)  # ascending
    return torch.from_numpy((x @ vectors[:, : -DIMENSIONS - 1 : -1]).astype(np.float32))
