"""Training in a run folder: features, training, thresholds, evaluation, model; and opening a run to resume it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
from accelerate import Accelerator

from fewtags.config.parse import parse
from fewtags.config.presets import Resolved
from fewtags.engine.autocast import repeatable
from fewtags.engine.baseline import Baseline, Measured, logistic_regression
from fewtags.engine.checkpoint import write_array
from fewtags.engine.clock import Clock
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.evaluate import Evaluation, Logits, evaluate_logits
from fewtags.engine.events import Ended, EpochEnded, Event, Noted, Started
from fewtags.engine.gallery import Gallery, save_gallery
from fewtags.engine.json_records import read_json
from fewtags.engine.label_counts import can_rank
from fewtags.engine.machine import prepare_process
from fewtags.engine.methods import changed_source, settings_models
from fewtags.engine.model import ModelInfo, save_model
from fewtags.engine.model_card import write_card
from fewtags.engine.object_sizes import cell_sizes
from fewtags.engine.photo_cache import problem_note
from fewtags.engine.plan import RunPlan, derive, head_plan
from fewtags.engine.planned_fit import make_fit
from fewtags.engine.run_photos import RunPhotos, as_spatial
from fewtags.engine.runfolder import MODEL_FILE, TRAINING, TRUTH, RunFolder
from fewtags.engine.running_maps import store_of
from fewtags.engine.search import Search, compared, read_search
from fewtags.engine.start_worth import StartWorth, start_worth, write_worth
from fewtags.engine.tables import Tables, class_groups
from fewtags.engine.teacher import load_teacher
from fewtags.engine.tensor_files import load_tensors
from fewtags.engine.thresholds import choose_thresholds, needs_training_scores, rests_on
from fewtags.engine.train_record import (
    check_labels_unchanged,
    method_record,
    read_environment,
    refuse_other_method,
    settle,
    settled_record,
    write_record,
)
from fewtags.errors import CheckpointError
from fewtags.files import write_text
from fewtags.metrics.decisions import Groups
from fewtags.metrics.thresholds import Thresholds
from fewtags.nets.spatial import SpatialNet
from fewtags.photos.dataset import EvalSet, PhotoFolder
from fewtags.photos.loader import Collate, EvalLoader
from fewtags.photos.scan import Tick
from fewtags.table.table import LabelTable

T = TypeVar("T")
Record = Mapping[str, Any]
"""What is recorded of an epoch."""
BASELINE_FILE, CLOCK_FILE = "baseline.json", "seconds.json"
SNAPSHOTS = 8  # epochs, spread evenly over the run, whose gallery maps are kept


@final
class TrainRun:
    """Executes a plan in a run folder, which is made if it does not exist.

    `tick` is called with the numbers of photos done and to do while features are computed. `notes` are what the user
    should know before the run is resumed. `clock` has the time spent so far.
    """

    def __init__(
        self,
        plan: RunPlan,
        out: Path,
        *,
        cpu: bool = False,
        tick: Tick | None = None,
        notes: tuple[str, ...] = (),
        clock: Clock | None = None,
    ) -> None:
        self.plan, self.out, self.cpu, self.notes = plan, out, cpu, notes
        self.folder = RunFolder(out, TRAINING)
        self.clock = Clock() if clock is None else clock
        prepare_process()
        self.accelerator: Accelerator = make_accelerator(plan.resolved.precision, cpu)
        self.photos = RunPhotos(plan, self.accelerator, tick)

    def start(self) -> Iterator[Event]:
        """Train from the first epoch, see `RunFolder.start`."""
        return self.folder.start(self._train, self.plan.tables.splits(), self.accelerator)

    def resume(self) -> Iterator[Event]:
        """Continue from the last checkpoint, see `RunFolder.resume`."""
        return self.folder.resume(self._train, self.plan.tables.splits(), self.accelerator)

    def _train(self, resume: bool) -> Iterator[Event]:
        plan, r, device = self.plan, self.plan.resolved, self.accelerator.device
        tables, photos = plan.tables, self.photos
        self.clock.start()
        worth = None if resume else self._worth()
        begun = resume
        if plan.resolved.search:
            if not begun:
                self._begin(worth)
            begun = True
            yield from self._search()
            plan, r, photos = self.plan, self.plan.resolved, self.photos
        photos.compute()
        self.clock.lap("features")
        baseline = self._baseline()
        if plan.baseline:
            self.clock.lap("baseline")
        fit = make_fit(photos, out=self.out)
        self.clock.lap("features")
        if not begun:
            self._begin(worth)
        gallery = Gallery.choose(tables.splits(), tables.truth, photos.policy, photos.collate, seed=r.seed)
        epochs = fit.config.epochs
        moments = set(np.linspace(0, epochs - 1, min(SNAPSHOTS, epochs)).round().astype(int).tolist())
        remarked, complete = False, True
        for event in fit.run(resume):
            if isinstance(event, EpochEnded) and self.accelerator.is_main_process:
                epoch = int(event.record["epoch"])
                write_text(self.out / CLOCK_FILE, json.dumps(self.clock.so_far("training")))
                if epoch in moments:
                    shown = gallery.compute_maps(as_spatial(fit.evaluated), device, store_of(fit.parts))
                    save_gallery(self.out, f"epoch-{epoch:04d}", shown)
            if isinstance(event, Ended):
                self.clock.lap("training")
                best = None if event.best_epoch is None else fit.state.history[event.best_epoch]
                self._finish(as_spatial(fit.evaluated), event, best, gallery, baseline)
            yield event
            if complete and photos.problem:
                complete = False
                yield Noted(problem_note(photos.problem))
            if isinstance(event, Started) and worth is not None:
                yield Noted(str(worth), warning=False)
            if isinstance(event, EpochEnded) and not remarked:
                remarks = [*plan.objective.remarks(train_means(event.record))]
                remarked = bool(remarks)
                yield from map(Noted, remarks)

    def _begin(self, worth: StartWorth | None) -> None:
        """Write the record of the run, which can be resumed from now on."""
        if self.accelerator.is_main_process:
            write_record(self.plan, self.out)
        if worth is not None:
            write_worth(self.out, worth)
        self.accelerator.wait_for_everyone()

    def _search(self) -> Iterator[Event]:
        """Try the candidates of the plan, and go on with the best."""
        search = Search(self.plan, self.out, self.accelerator, cpu=self.cpu, tick=self.photos.tick)
        for event in search.run():
            write_text(self.out / CLOCK_FILE, json.dumps(self.clock.so_far("search")))
            yield event
        begun = read_environment(self.out)
        notes = (*search.notes(begun["notes"]), f"search: {search.record.why}")
        self.plan = replace(search.plan, notes=notes)
        record = settled_record(self.plan, begun)
        search.finish(record)
        self.folder.settle_record(self.plan.resolved, record)
        self.photos = search.photos()
        self.clock.lap("search")
        write_text(self.out / CLOCK_FILE, json.dumps(self.clock.seconds))

    def _worth(self) -> StartWorth | None:
        """Measure the encoder of --init, see `start_worth`; None on other processes than the main one."""

        def loader(net: SpatialNet, table: LabelTable) -> EvalLoader:
            collate = Collate(net.preprocessing.mean, net.preprocessing.std)
            data = EvalSet(PhotoFolder(table.require_root(), table.images), table.matrix, self.photos.policy)
            return EvalLoader(data, 16, collate, self.photos.workers, device=self.accelerator.device)

        device = self.accelerator.device
        with repeatable(device):
            return start_worth(self.plan, loader, device) if self.accelerator.is_main_process else None

    def _baseline(self) -> Baseline | None:
        """Fit logistic regression on pooled features of the untrained trunk; None if this is not the main process."""
        plan, tables = self.plan, self.plan.tables
        if not plan.baseline:
            return None
        pooled = {name: self.photos.pooled(name) for name in tables.splits()}
        if not self.accelerator.is_main_process:
            return None
        others = {n: Measured(x, tables.splits()[n].matrix.dense()) for n, x in pooled.items() if n != "train"}
        return logistic_regression(pooled["train"], tables.train.matrix, others)

    def _finish(
        self, net: SpatialNet, ended: Ended, best: Record | None, gallery: Gallery, baseline: Baseline | None
    ) -> None:
        """Choose the weights, fit thresholds, evaluate, and write the model; `best` is the record of the best epoch."""
        plan, tables, photos, device = self.plan, self.plan.tables, self.photos, self.accelerator.device
        select = plan.resolved.select
        if best is not None and select != "last":
            net.load_state_dict(load_tensors(self.out / "best.safetensors"))
            selection = self._why_best(best, ended.epochs)
        else:
            why = 'train.select = "last"'
            if select != "last":
                why = "no validation class has both known positives and known negatives"
            last = plan.resolved.stages[-1]
            which = f", logit variance {last.logit_variances[-1]:g}" if last.solved else ""
            which += f", answer weight {last.answer_weights[0]:g}" if last.answer_weights else ""
            selection = f"the last epoch ({ended.epochs}{which}): {why}"
        selection += compared(read_search(self.out))
        with repeatable(device):
            moved = not photos.frozen
            logits = {name: photos.logits(net, name, moved=moved) for name in tables.splits() if name != "train"}
            train_logits = photos.train_logits(net) if needs_training_scores(tables, plan.objective) else None
        if self.accelerator.is_main_process:
            thresholds = choose_thresholds(logits["val"], tables, plan.objective, train_logits)
            info = self._model_info(thresholds, selection)
            for name, values in logits.items():
                write_evaluation(self.out, name, values, tables.splits()[name], thresholds, info.groups)
            save_gallery(self.out, "final", gallery.compute_maps(net, device))
            if baseline is not None:
                write_text(self.out / BASELINE_FILE, json.dumps(baseline.to_dict(), indent=1))
            write_card(self.out, info)
            self.clock.lap("evaluation")
            write_text(self.out / CLOCK_FILE, json.dumps(self.clock.seconds, indent=1))
            # Written last, because a run with a model counts as finished.
            save_model(self.out / MODEL_FILE, net, info)
        self.accelerator.wait_for_everyone()

    def _why_best(self, best: Record, epochs: int) -> str:
        """Describe which epoch was chosen, and by which metric."""
        by = "validation mAP" if can_rank(self.plan.tables.val) else "validation mAP with unknown counted as absent"
        by += rests_on(self.plan.tables.val)
        if "logit_variance" not in best:
            return f"epoch {int(best['epoch']) + 1} of {epochs}, the best by {by}"
        weight = f" and answer weight {best['answer_weight']:g}" if "answer_weight" in best else ""
        return f"logit variance {best['logit_variance']:g}{weight}, the best by {by}"

    def _model_info(self, thresholds: Thresholds, selection: str) -> ModelInfo:
        r, pre, classes = self.plan.resolved, self.plan.net.preprocessing, self.plan.tables.train.classes
        groups = class_groups(self.plan.config.data).resolved(classes)
        return ModelInfo(
            backbone=r.backbone,
            output_stride=r.output_stride,
            head=head_plan(r),
            size=r.size,
            policy=r.policy,
            class_ids=classes.ids,
            class_names=classes.names,
            thresholds=tuple(float(v) for v in thresholds.values),
            threshold_rules=tuple(str(rule) for rule in thresholds.rules),
            mean=pre.mean,
            std=pre.std,
            method=method_record(self.plan),
            selection=selection,
            version=version("fewtags"),
            exactly_one=groups.exactly_one,
            at_most_one=groups.at_most_one,
        )


def train_means(record: Mapping[str, float | int | str]) -> dict[str, float]:
    """Return the means of an epoch's training steps by name, as `Objective.remarks` takes them."""
    return {key.removeprefix("train/"): float(value) for key, value in record.items() if key.startswith("train/")}


def open_run(out: Path, *, cpu: bool = False, tick: Tick | None = None) -> TrainRun:
    """Return the run in a folder, ready to `resume`, with the settings that it resolved when it began.

    Raises:
        CheckpointError: there is no run, or it is finished; or settings, labels, photos, initial weights or checkpoints
            have changed, or another version of fewtags derived other settings of the method.
    """
    folder = RunFolder(out, TRAINING)
    if folder.has_begun and not folder.is_finished:
        settle(out)
    record = folder.read_record(lambda tree, file: parse(tree, settings_models(out), file), Resolved)
    named = record.tables
    tables = Tables(named["train"], named["val"], named.get("test"), named.get(TRUTH))
    folder.refuse_changed_photos(tables.splits())  # first: labels in folders of photos change with the photos
    notes = [check_labels_unchanged(record, tables, out), folder.refuse_lost_checkpoints()]
    weights = record.locate_weights(record.resolved.weights)
    tried = tuple(
        candidate.model_copy(update={"weights": record.locate_weights(candidate.weights)})
        for candidate in record.resolved.search
    )
    located = {"weights": weights, "photo_cache": record.locate_cache(record.resolved.photo_cache)}
    resolved = record.resolved.model_copy(update={**located, "search": tried})
    teacher = load_teacher(out, record.environment)
    plan = derive(record.settings, tables, None, cpu=cpu, resolved=resolved, teacher=teacher, going_on=True)
    folder.refuse_other_weights(weights, plan.net.origin, record.environment["weights"])
    refuse_other_method(record, plan, out)
    notes.append(changed_source(plan.objective, record.environment))
    clock, lost = _recorded_clock(out)
    notes.append(lost)
    kept = tuple(note for note in notes if note is not None)
    return TrainRun(plan, out, cpu=cpu, tick=tick, notes=kept, clock=clock)


def _recorded_clock(out: Path) -> tuple[Clock, str | None]:
    """Return the time that a run has spent so far, and a note if its record is damaged: nothing else depends on it."""
    clock, path = Clock(), out / CLOCK_FILE
    if path.exists():
        try:
            clock.add(read_json(path, dict[str, float]))
        except CheckpointError:
            return clock, f"{path} is damaged, so the time before the interruption is not counted"
    return clock, None


def write_evaluation(
    out: Path, name: str, logits: Logits, table: LabelTable, thresholds: Thresholds, groups: Groups = ()
) -> Evaluation:
    """Evaluate logits; write `evaluation/<name>.json` and `evaluation/<name>.npy`."""
    folder = out / "evaluation"
    folder.mkdir(exist_ok=True)
    sizes = cell_sizes(table, table.classes)
    result = evaluate_logits(logits, table.matrix.dense(), table.classes, thresholds.values, groups, sizes)
    rules = [str(rule) for rule in thresholds.rules]
    write_text(folder / f"{name}.json", json.dumps({**result.to_dict(), "threshold_rules": rules}, indent=1))
    write_array(folder / f"{name}.npy", logits)
    return result
