"""Repeated runs of one probe: the photos, weights and seed of each run, and the results."""

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


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Trials:
    """Runs of one probe with different seeds.

    Attributes:
        make_encoder: returns the encoder of a seed.
        random_weights: whether the encoder's weights depend on the seed.
        task: photos and labels.
        context: device and views.
        seeds: one per run.
        share: share of the training photos that each run samples; None: all.
        per_class: photos per class that each run samples; None: all.
        workers: processes that read photos.
        tick: progress callback over photos.

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
    """Results of the runs of a probe.

    Attributes:
        runs: metrics of each run, 0..1, see `measure`.
        photos: number of training photos of each run.
        notes: remarks for the user.
    """

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
        scores = knn_scores(
            run.train, run.task.train.matrix.dense(), run.test, run.task.kind, k=k, temperature=temperature
        )
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
        missing = [names[c] for c in np.flatnonzero(np.isnan(svm.costs))]
        if missing:
            results.notes.append(
                f"seed {run.seed}: no classifier for classes without known positives or without known negatives: "
                f"{', '.join(missing)}"
            )
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

    All runs use the crops of the first seed, so each crop goes through the encoder once. Runs differ by the layer's
    initial weights, the order of the photos, and the sampled photos.

    Args:
        trials: the runs; in one process.
        candidates: each run chooses one of these settings on `Task.for_choice`; a single candidate is used directly.
        views: random crops per photo.
        consume: receives the events of every training.
    """
    results = ProbeResults([], [], [])
    crops: ViewFeatures | None = None
    for run in _run_inputs(trials, choose=len(candidates) > 1):
        if crops is None or trials.random_weights:
            crops = view_features(
                run.encoder,
                trials.task.train.subset(run.encoded),
                trials.context,
                views,
                seed=trials.seeds[0],
                workers=trials.workers,
                tick=trials.tick,
            )
        own = _rows_of(crops, np.searchsorted(run.encoded, run.rows))
        seeded = [replace(settings, seed=run.seed) for settings in candidates]
        chosen = seeded[0]
        if len(seeded) > 1:
            chosen = _choose_linear(run, own, seeded, trials, consume, results.notes)
        results.add(run.task, linear_scores(own, run.test, run.task, trials.context, chosen, consume))
    return results


def run_finetune(trials: Trials, candidates: Sequence[TrainSettings], *, consume: EventConsumer) -> ProbeResults:
    """Train the whole network in every run; see `training.finetuned_scores`.

    Args:
        trials: the runs.
        candidates: each run chooses one of these settings on `Task.for_choice`; a single candidate is used directly.
        consume: receives the events of every training.
    """
    results = ProbeResults([], [], [])
    for seed in trials.seeds:
        encoder, task = trials.make_encoder(seed), trials.task.with_train(trials.sample(seed))
        seeded = [replace(settings, seed=seed) for settings in candidates]
        chosen = seeded[0]
        if len(seeded) > 1:
            choice = task.for_choice(seed)

            def score(
                settings: TrainSettings, encoder: Encoder = encoder, choice: Task = choice
            ) -> NDArray[np.float32]:
                return finetuned_scores(encoder, choice, trials.context, settings, consume)

            chosen, values = choose_settings(seeded, choice, score)
            results.notes.append(_choice_note(chosen, seeded, values))
        results.add(task, finetuned_scores(encoder, task, trials.context, chosen, consume))
    return results


# --- shared


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class RunInputs:
    """Inputs of one run on frozen features.

    Attributes:
        seed: seed of the run.
        encoder: encoder of the run.
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


def _choose_linear(
    run: RunInputs,
    own: ViewFeatures,
    seeded: Sequence[TrainSettings],
    trials: Trials,
    consume: EventConsumer,
    notes: list[str],
) -> TrainSettings:
    choice = run.task.for_choice(run.seed)
    position = {key: i for i, key in enumerate(run.task.train.images.to_pylist())}
    inner = np.array([position[key] for key in choice.train.images.to_pylist()])
    test = run.val
    if test is None:
        test = run.train[np.array([position[key] for key in choice.test.images.to_pylist()])]
    part = _rows_of(own, inner)
    chosen, values = choose_settings(
        seeded, choice, lambda settings: linear_scores(part, test, choice, trials.context, settings, consume)
    )
    notes.append(_choice_note(chosen, seeded, values))
    return chosen


def _choice_note(chosen: TrainSettings, seeded: Sequence[TrainSettings], values: Sequence[float]) -> str:
    tried = ", ".join(
        f"lr {s.lr:g} weight decay {s.weight_decay:g}: {100 * value:.1f}"
        for s, value in zip(seeded, values, strict=True)
    )
    return (
        f"seed {chosen.seed}: lr {chosen.lr:g} and weight decay {chosen.weight_decay:g} chosen on validation ({tried})"
    )


def _rows_of(filled: ViewFeatures, rows: Rows) -> ViewFeatures:
    return ViewFeatures(filled.features[:, rows], filled.views[:, rows])


def _refuse_equal_runs(trials: Trials) -> None:
    if len(trials.seeds) > 1 and not trials.random_weights and not trials.subsampled:
        raise ConfigError(
            f"{len(trials.seeds)} runs of this probe on the same photos and weights give the same number; sample "
            "photos with --share or --per-class, or leave out --runs."
        )
