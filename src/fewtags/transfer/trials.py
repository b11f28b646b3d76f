"""Several runs of one probe: which photos, which weights and which seed each takes, and what all reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fewtags.engine.sources import ViewFeatures
from fewtags.errors import ConfigError
from fewtags.nets.encoder import Encoder
from fewtags.photos.scan import Tick
from fewtags.table.table import LabelTable
from fewtags.transfer.features import photo_features
from fewtags.transfer.measure import measure
from fewtags.transfer.probes import knn_scores, svm_scores
from fewtags.transfer.task import Task, few_photos
from fewtags.transfer.training import (
    Follow,
    Place,
    TrainSettings,
    choose_settings,
    finetuned_scores,
    linear_scores,
    view_features,
)

Rows = NDArray[np.int64]


@final
@dataclass(frozen=True, eq=False)
class Trials:
    """What is run, how often, and on which photos.

    Attributes:
        encoder: makes the encoder of a seed.
        random: whether its weights are random, so that each run has others.
        task: photos and labels.
        place: device and views.
        seeds: one per run.
        share: of the training photos that each run draws; None: all.
        per_class: photos per class that each run draws; None: all.
        workers: processes that read photos.
        tick: told about photos done.

    Raises:
        ConfigError: no seeds; or `share` and `per_class` at once.
    """

    encoder: Callable[[int], Encoder]
    random: bool
    task: Task
    place: Place
    seeds: tuple[int, ...] = (0,)
    share: float | None = None
    per_class: int | None = None
    workers: int = 0
    tick: Tick | None = None

    def __post_init__(self) -> None:
        if not self.seeds:
            raise ConfigError("there must be at least one run.")
        if self.share is not None and self.per_class is not None:
            raise ConfigError("give a share of the training photos or a number of photos per class, not both.")

    @property
    def few(self) -> bool:
        """Whether runs draw some of the training photos."""
        return self.share is not None or self.per_class is not None

    def draw(self, seed: int) -> Rows:
        """Positions of the training photos of a run, ascending."""
        if not self.few:
            return np.arange(len(self.task.train))
        return few_photos(self.task.train, share=self.share, per_class=self.per_class, seed=seed)

    def features(self, encoder: Encoder, table: LabelTable) -> NDArray[np.float32]:
        """Mean features [N, d] of a table's photos through the test view."""
        return photo_features(
            encoder, table, self.place.policy, self.place.device, workers=self.workers, tick=self.tick
        )


@final
class Found(NamedTuple):
    """What the runs of a probe reached.

    Attributes:
        runs: numbers of each run, 0..1, see `measure`.
        photos: training photos of each run.
        notes: what else is worth knowing, in words.
    """

    runs: list[dict[str, float]]
    photos: list[int]
    notes: list[str]


def run_knn(trials: Trials, *, k: int, temperature: float) -> Found:
    """The runs of the nearest-neighbour probe; see `probes.knn_scores`.

    Raises:
        ConfigError: several runs that could not differ; or see `knn_scores`.
    """
    _refuse_equal_runs(trials)
    found = Found([], [], [])
    for given in _given(trials):
        scores = knn_scores(
            given.train, given.task.train.matrix.dense(), given.test, given.task.kind, k=k, temperature=temperature
        )
        _add(found, given.task, scores)
    return found


def run_svm(trials: Trials, *, costs: Sequence[float]) -> Found:
    """The runs of the linear SVM probe; see `probes.svm_scores`.

    Raises:
        ConfigError: several runs that could not differ; or see `svm_scores`.
    """
    _refuse_equal_runs(trials)
    found = Found([], [], [])
    for given in _given(trials):
        result = svm_scores(given.train, given.task.train.matrix.dense(), given.test, costs=costs, seed=given.seed)
        _add(found, given.task, result.scores)
        names = given.task.train.classes.display
        none = [names[c] for c in np.flatnonzero(np.isnan(result.costs))]
        if none:
            found.notes.append(f"seed {given.seed}: no classifier, for want of known labels: {', '.join(none)}")
        if result.unconverged:
            left = ", ".join(names[c] for c in result.unconverged)
            found.notes.append(f"seed {given.seed}: the solver stopped before it was done: {left}")
        if len(costs) > 1:
            values, counts = np.unique(result.costs[~np.isnan(result.costs)], return_counts=True)
            told = ", ".join(f"{value:g} ({n} classes)" for value, n in zip(values, counts, strict=True))
            found.notes.append(f"seed {given.seed}: costs chosen over three folds: {told}")
    return found


def run_linear(trials: Trials, candidates: Sequence[TrainSettings], *, views: int, follow: Follow) -> Found:
    """The runs of the linear layer on frozen features; see `training.linear_scores`.

    The crops are those of the first seed in all runs, so that they go through the encoder once; runs differ by the
    layer's initial weights, the order of the photos, and the photos that are drawn.

    Args:
        trials: what is run; in one process.
        candidates: settings, of which each run chooses (`Task.for_choice`); one: that is taken.
        views: random crops per photo.
        follow: is given the events of every training.
    """
    found = Found([], [], [])
    crops: ViewFeatures | None = None
    for given in _given(trials, choose=len(candidates) > 1):
        if crops is None or trials.random:
            table = trials.task.train.subset(given.needed)
            crops = view_features(
                given.encoder, table, trials.place, views, seed=trials.seeds[0], workers=trials.workers,
                tick=trials.tick,
            )  # fmt: skip
        own = _rows_of(crops, np.searchsorted(given.needed, given.own))
        seeded = [replace(settings, seed=given.seed) for settings in candidates]
        chosen = seeded[0]
        if len(seeded) > 1:
            chosen = _choose_linear(given, own, seeded, trials, follow, found.notes)
        _add(found, given.task, linear_scores(own, given.test, given.task, trials.place, chosen, follow))
    return found


def run_finetune(trials: Trials, candidates: Sequence[TrainSettings], *, follow: Follow) -> Found:
    """The runs of training the whole network; see `training.finetuned_scores`.

    Args:
        trials: what is run.
        candidates: settings, of which each run chooses (`Task.for_choice`); one: that is taken.
        follow: is given the events of every training.
    """
    found = Found([], [], [])
    for seed in trials.seeds:
        encoder, task = trials.encoder(seed), trials.task.with_train(trials.draw(seed))
        seeded = [replace(settings, seed=seed) for settings in candidates]
        chosen = seeded[0]
        if len(seeded) > 1:
            choice = task.for_choice(seed)

            def try_out(
                settings: TrainSettings, encoder: Encoder = encoder, choice: Task = choice
            ) -> NDArray[np.float32]:
                return finetuned_scores(encoder, choice, trials.place, settings, follow)

            chosen, reached = choose_settings(seeded, choice, try_out)
            found.notes.append(_choice(chosen, seeded, reached))
        _add(found, task, finetuned_scores(encoder, task, trials.place, chosen, follow))
    return found


# --- shared


@final
class _Given(NamedTuple):
    """What a run on frozen features is given.

    Attributes:
        seed: of the run.
        encoder: of the run.
        task: with the run's training photos.
        own: their positions among all training photos.
        needed: positions of the training photos of all runs that share the encoder.
        train: features [N, d] of the run's training photos.
        test: features [M, d] of the test photos.
        val: features of the photos that settings are chosen on; None where there are none of their own, or no choice.
    """

    seed: int
    encoder: Encoder
    task: Task
    own: Rows
    needed: Rows
    train: NDArray[np.float32]
    test: NDArray[np.float32]
    val: NDArray[np.float32] | None


def _given(trials: Trials, *, choose: bool = False) -> Iterator[_Given]:
    """The runs; photos go through an encoder once, however many runs share it."""
    task = trials.task
    draws = {seed: trials.draw(seed) for seed in trials.seeds}
    union = np.unique(np.concatenate(list(draws.values())))
    made: tuple[Encoder, Rows, NDArray[np.float32], NDArray[np.float32], NDArray[np.float32] | None] | None = None
    for seed, index in draws.items():
        if made is None or trials.random:
            encoder, needed = trials.encoder(seed), index if trials.random else union
            val = trials.features(encoder, task.val) if choose and task.val is not None else None
            train = trials.features(encoder, task.train.subset(needed))
            made = encoder, needed, train, trials.features(encoder, task.test), val
        encoder, needed, train, test, val = made
        rows = np.searchsorted(needed, index)
        yield _Given(seed, encoder, task.with_train(index), index, needed, train[rows], test, val)


def _choose_linear(
    given: _Given, own: ViewFeatures, seeded: Sequence[TrainSettings], trials: Trials, follow: Follow, notes: list[str]
) -> TrainSettings:
    choice = given.task.for_choice(given.seed)
    position = {key: i for i, key in enumerate(given.task.train.images.to_pylist())}
    inner = np.array([position[key] for key in choice.train.images.to_pylist()])
    test = given.val
    if test is None:
        test = given.train[np.array([position[key] for key in choice.test.images.to_pylist()])]
    part = _rows_of(own, inner)
    chosen, reached = choose_settings(
        seeded, choice, lambda settings: linear_scores(part, test, choice, trials.place, settings, follow)
    )
    notes.append(_choice(chosen, seeded, reached))
    return chosen


def _choice(chosen: TrainSettings, seeded: Sequence[TrainSettings], reached: Sequence[float]) -> str:
    tried = ", ".join(
        f"lr {s.lr:g} weight decay {s.weight_decay:g}: {100 * value:.1f}"
        for s, value in zip(seeded, reached, strict=True)
    )
    return (
        f"seed {chosen.seed}: lr {chosen.lr:g} and weight decay {chosen.weight_decay:g} chosen on validation ({tried})"
    )


def _rows_of(filled: ViewFeatures, rows: Rows) -> ViewFeatures:
    return ViewFeatures(filled.features[:, rows], filled.views[:, rows])


def _add(found: Found, task: Task, scores: NDArray[np.floating]) -> None:
    found.runs.append(measure(task, scores))
    found.photos.append(len(task.train))


def _refuse_equal_runs(trials: Trials) -> None:
    if len(trials.seeds) > 1 and not trials.random and not trials.few:
        raise ConfigError(
            f"{len(trials.seeds)} runs of this probe on the same photos and weights give the same number; draw some "
            "photos (--share or --per-class), or leave out --runs."
        )
