"""Repeated runs of one probe: the photos, weights and seed of each run, and the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from fewtags.transfer.task import Task, sample_photos
from fewtags.transfer.training import (
    EventConsumer,
    ProbeContext,
    TrainSettings,
    choose_settings,
    finetuned_scores,
    linear_scores,
    view_features,
)

Rows = NDArray[np.int64]
Scorer = Callable[[TrainSettings], NDArray[np.float32]]
"""Trains with some settings and returns the scores of the test photos."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Trials:
    """Runs of one probe with different seeds.

    Attributes:
        make_encoder: returns the encoder of a seed.
        random_weights: whether the encoder's weights depend on the seed.
        seeds: one per run.
        share: share of the training photos that each run samples; None: all.
        per_class: photos per class that each run samples; None: all.

    Raises:
        ConfigError: no seeds; or `share` and `per_class` at once.
    """

    make_encoder: Callable[[int], Encoder]
    random_weights: bool
    task: Task
    context: ProbeContext
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
    def subsampled(self) -> bool:
        """Whether each run samples some of the training photos."""
        return self.share is not None or self.per_class is not None

    def sample(self, seed: int) -> Rows:
        """Return the positions of a run's training photos, ascending."""
        if not self.subsampled:
            return np.arange(len(self.task.train))
        return sample_photos(self.task.train, share=self.share, per_class=self.per_class, seed=seed)

    def features(self, encoder: Encoder, table: LabelTable) -> NDArray[np.float32]:
        """Return the mean features [N, d] of a table's photos in the test view."""
        return photo_features(
            encoder, table, self.context.policy, self.context.device, workers=self.workers, tick=self.tick
        )


@final
class ProbeResults(NamedTuple):
    """Metrics (0..1, see `measure`) and number of training photos of each run of a probe, and notes for the user."""

    runs: list[dict[str, float]]
    photos: list[int]
    notes: list[str]

    def add(self, task: Task, scores: NDArray[np.floating]) -> None:
        """Measure a run and append its metrics and number of training photos."""
        self.runs.append(measure(task, scores))
        self.photos.append(len(task.train))


def run_knn(trials: Trials, *, k: int, temperature: float) -> ProbeResults:
    """Run the nearest-neighbour probe; see `probes.knn_scores`.

    Raises:
        ConfigError: several runs would be identical; or see `knn_scores`.
    """
    _refuse_equal_runs(trials)
    results = ProbeResults([], [], [])
    for run in _run_inputs(trials):
        labels = run.task.train.matrix.dense()
        scores = knn_scores(run.train, labels, run.test, run.task.kind, k=k, temperature=temperature)
        results.add(run.task, scores)
    return results


def run_svm(trials: Trials, *, costs: Sequence[float]) -> ProbeResults:
    """Run the linear SVM probe; see `probes.svm_scores`.

    Raises:
        ConfigError: several runs would be identical; or see `svm_scores`.
    """
    _refuse_equal_runs(trials)
    results = ProbeResults([], [], [])
    for run in _run_inputs(trials):
        svm = svm_scores(run.train, run.task.train.matrix.dense(), run.test, costs=costs, seed=run.seed)
        results.add(run.task, svm.scores)
        names = run.task.train.classes.display
        if missing := ", ".join(names[c] for c in np.flatnonzero(np.isnan(svm.costs))):
            without = "no classifier for classes without known positives or without known negatives"
            results.notes.append(f"seed {run.seed}: {without}: {missing}")
        if svm.unconverged:
            left = ", ".join(names[c] for c in svm.unconverged)
            results.notes.append(f"seed {run.seed}: the solver did not converge: {left}")
        if len(costs) > 1:
            values, counts = np.unique(svm.costs[~np.isnan(svm.costs)], return_counts=True)
            chosen = ", ".join(f"{value:g} ({n} classes)" for value, n in zip(values, counts, strict=True))
            results.notes.append(f"seed {run.seed}: costs chosen over three folds: {chosen}")
    return results


def run_linear(
    trials: Trials, candidates: Sequence[TrainSettings], *, views: int, consume: EventConsumer
) -> ProbeResults:
    """Run the linear layer on frozen features; see `training.linear_scores`.

    All runs use the same crops, `views` per photo, which the first seed determines; so each crop goes through the
    encoder once. Runs differ by the layer's initial weights, the order of the photos, and the sampled photos. Each run
    chooses one of the candidates on `Task.for_choice`. For one process.
    """
    results = ProbeResults([], [], [])
    crops: ViewFeatures | None = None
    for run in _run_inputs(trials, choose=len(candidates) > 1):
        if crops is None or trials.random_weights:
            table, seed = trials.task.train.subset(run.encoded), trials.seeds[0]
            crops = view_features(
                run.encoder, table, trials.context, views, seed=seed, workers=trials.workers, tick=trials.tick
            )
        own = _rows_of(crops, np.searchsorted(run.encoded, run.rows))
        chosen = _choose(candidates, run.seed, run.task, partial(_linear_scorer, run, own, trials, consume), results)
        results.add(run.task, linear_scores(own, run.test, run.task, trials.context, chosen, consume))
    return results


def run_finetune(trials: Trials, candidates: Sequence[TrainSettings], *, consume: EventConsumer) -> ProbeResults:
    """Train the whole network in every run; see `training.finetuned_scores`.

    Each run chooses one of the candidates on `Task.for_choice`.
    """
    results = ProbeResults([], [], [])
    for seed in trials.seeds:
        encoder, task = trials.make_encoder(seed), trials.task.with_train(trials.sample(seed))

        def scorer(choice: Task, encoder: Encoder = encoder) -> Scorer:
            return lambda settings: finetuned_scores(encoder, choice, trials.context, settings, consume)

        chosen = _choose(candidates, seed, task, scorer, results)
        results.add(task, finetuned_scores(encoder, task, trials.context, chosen, consume))
    return results


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class RunInputs:
    """Inputs of one run on frozen features.

    Attributes:
        task: task with the run's training photos.
        rows: positions of these photos among all training photos.
        encoded: positions of the training photos of all runs that share the encoder.
        train: features [N, d] of the run's training photos.
        test: features [M, d] of the test photos.
        val: features of the validation photos; None without validation photos, or if nothing is chosen.
    """

    seed: int
    encoder: Encoder
    task: Task
    rows: Rows
    encoded: Rows
    train: NDArray[np.float32]
    test: NDArray[np.float32]
    val: NDArray[np.float32] | None


def _run_inputs(trials: Trials, *, choose: bool = False) -> Iterator[RunInputs]:
    """Yield the inputs of each run; a photo goes through an encoder once, however many runs share the encoder."""
    task = trials.task
    samples = {seed: trials.sample(seed) for seed in trials.seeds}
    union = np.unique(np.concatenate(list(samples.values())))
    made: tuple[Encoder, Rows, NDArray[np.float32], NDArray[np.float32], NDArray[np.float32] | None] | None = None
    for seed, rows in samples.items():
        if made is None or trials.random_weights:
            encoder, encoded = trials.make_encoder(seed), rows if trials.random_weights else union
            val = trials.features(encoder, task.val) if choose and task.val is not None else None
            train = trials.features(encoder, task.train.subset(encoded))
            made = encoder, encoded, train, trials.features(encoder, task.test), val
        encoder, encoded, train, test, val = made
        yield RunInputs(
            seed=seed,
            encoder=encoder,
            task=task.with_train(rows),
            rows=rows,
            encoded=encoded,
            train=train[np.searchsorted(encoded, rows)],
            test=test,
            val=val,
        )


def _choose(
    candidates: Sequence[TrainSettings], seed: int, task: Task, scorer: Callable[[Task], Scorer], results: ProbeResults
) -> TrainSettings:
    """Return the best candidate on `Task.for_choice` and add a note; a single candidate is used directly."""
    seeded = [replace(settings, seed=seed) for settings in candidates]
    if len(seeded) == 1:
        return seeded[0]
    choice = task.for_choice(seed)
    best, values = choose_settings(seeded, choice, scorer(choice))
    tried = ", ".join(
        f"lr {s.lr:g} weight decay {s.weight_decay:g}: {100 * value:.1f}"
        for s, value in zip(seeded, values, strict=True)
    )
    results.notes.append(
        f"seed {seed}: lr {best.lr:g} and weight decay {best.weight_decay:g} chosen on validation ({tried})"
    )
    return best


def _linear_scorer(run: RunInputs, own: ViewFeatures, trials: Trials, consume: EventConsumer, choice: Task) -> Scorer:
    position = {key: i for i, key in enumerate(run.task.train.images.to_pylist())}

    def rows(table: LabelTable) -> Rows:
        return np.array([position[key] for key in table.images.to_pylist()])

    part = _rows_of(own, rows(choice.train))
    features = run.train[rows(choice.test)] if run.val is None else run.val
    return lambda settings: linear_scores(part, features, choice, trials.context, settings, consume)


def _rows_of(filled: ViewFeatures, rows: Rows) -> ViewFeatures:
    return ViewFeatures(filled.features[:, rows], filled.views[:, rows])


def _refuse_equal_runs(trials: Trials) -> None:
    if len(trials.seeds) > 1 and not trials.random_weights and not trials.subsampled:
        raise ConfigError(
            f"{len(trials.seeds)} runs of this probe on the same photos and weights give the same number; sample "
            "photos with --share or --per-class, or leave out --runs."
        )
