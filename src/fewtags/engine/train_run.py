"""Training in a run folder: features, training, thresholds, evaluation, model; and opening a run to resume it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from fewtags.config.parse import parse
from fewtags.config.presets import Resolved
from fewtags.engine.autocast import repeatable
from fewtags.engine.baseline import Baseline, Measured, logistic_regression
from fewtags.engine.checkpoint import write_array
from fewtags.engine.clock import Clock
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.evaluate import Evaluation, Logits, epoch_metrics, evaluate_logits, own_logits, predict_logits
from fewtags.engine.events import Ended, EpochEnded, Event, Noted, Started
from fewtags.engine.fit import BatchSource, Fit, FitConfig
from fewtags.engine.gallery import Gallery, save_gallery
from fewtags.engine.label_counts import can_rank
from fewtags.engine.machine import prepare_process
from fewtags.engine.methods import changed_source, settings_models
from fewtags.engine.model import ModelInfo, make_policy, save_model
from fewtags.engine.model_card import write_card
from fewtags.engine.object_sizes import cell_sizes
from fewtags.engine.plan import EVAL_BATCH, RunPlan, derive, head_plan, make_problem
from fewtags.engine.runfolder import MODEL_FILE, TRAINING, TRUTH, RunFolder
from fewtags.engine.running_maps import store_of
from fewtags.engine.sources import StoredViews, fill_fixed, fill_views, head_inputs
from fewtags.engine.start_worth import StartWorth, start_worth, write_worth
from fewtags.engine.tables import Tables, class_groups
from fewtags.engine.teacher import load_teacher
from fewtags.engine.tensor_files import load_tensors
from fewtags.engine.thresholds import choose_thresholds, needs_training_scores, rests_on, scored_rows
from fewtags.engine.train_record import check_labels_unchanged, method_record, write_record
from fewtags.files import write_text
from fewtags.labels import Locations
from fewtags.metrics.decisions import Groups
from fewtags.metrics.thresholds import Thresholds
from fewtags.nets.freezing import freeze
from fewtags.nets.spatial import SpatialNet
from fewtags.photos.augment import Jitter
from fewtags.photos.augment_fixmatch import Strong
from fewtags.photos.dataset import EvalSet, PhotoFolder, TrainSet
from fewtags.photos.loader import Collate, EpochSampler, EvalLoader, TrainLoader
from fewtags.photos.scan import Tick
from fewtags.photos.workers import Workers
from fewtags.stores.shard import Shard
from fewtags.table.answered import answered
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
        self.plan, self.out, self.tick, self.notes = plan, out, tick, notes
        self.folder = RunFolder(out, TRAINING)
        self.clock = Clock() if clock is None else clock
        prepare_process()
        self._photos_done = 0
        self._inputs: Mapping[str, Tensor] = {}
        self._train_inputs: Tensor | None = None  # of the head, through the test view, on this process
        self.accelerator: Accelerator = make_accelerator(plan.resolved.precision, cpu)
        self.shard = Shard(self.accelerator.process_index, self.accelerator.num_processes)
        r, net, train = plan.resolved, plan.net, plan.tables.train
        # Made first: it refuses more processes than photos, where a process without photos would stop the others.
        self.sampler = EpochSampler(len(train), r.batch_size, r.seed, self.shard.rank, self.shard.world)
        self.collate = Collate(net.preprocessing.mean, net.preprocessing.std)
        self.policy = make_policy(r.policy, r.size, r.min_area, r.flip, r.max_area)
        self.workers = Workers(r.workers, pin_memory=self.accelerator.device.type == "cuda")

    def start(self) -> Iterator[Event]:
        """Train from the first epoch, see `RunFolder.start`."""
        return self.folder.start(self._train, self.plan.tables.splits(), self.accelerator)

    def resume(self) -> Iterator[Event]:
        """Continue from the last checkpoint, see `RunFolder.resume`."""
        return self.folder.resume(self._train, self.plan.tables.splits(), self.accelerator)

    def _train(self, resume: bool) -> Iterator[Event]:
        plan, r, device = self.plan, self.plan.resolved, self.accelerator.device
        net, tables = plan.net.to(device), plan.tables
        if resume and (self.out / CLOCK_FILE).exists():
            self.clock.add(json.loads((self.out / CLOCK_FILE).read_text("utf-8")))
        self.clock.start()
        worth = None if resume else self._worth()
        self._inputs = self._head_inputs()
        fixed = self._fixed()
        self._train_inputs = None if fixed is None else fixed.filled.features[0]
        self.clock.lap("features")
        baseline = self._baseline(fixed)
        if plan.baseline:
            self.clock.lap("baseline")
        source = fixed if fixed is not None and all(stage.solved for stage in r.stages) else self._source()
        cached = isinstance(source, StoredViews)
        self.clock.lap("features")
        config = FitConfig(**{f.name: getattr(r, f.name) for f in fields(FitConfig) if f.name in Resolved.model_fields})
        truth, state = None if tables.truth is None else tables.truth.matrix, self.out / "state"
        problem = make_problem(r, tables.train.matrix, net.head.features_dim, plan.grid, device, self.shard)
        teacher = None if plan.teacher is None else plan.teacher.values
        problem = replace(problem, state_dir=state, truth=truth, teacher=teacher, answered=answered(tables.train))
        fit = Fit(
            net,
            plan.objective,
            source,
            config,
            problem,
            fixed=fixed,
            accelerator=self.accelerator,
            model=net.head if cached else net,
            out=self.out,
            validate=self._validation(),
            predict=self._predict_train,
        )
        if not resume:
            if self.accelerator.is_main_process:
                write_record(plan, self.out)
            if worth is not None:
                write_worth(self.out, worth)
            self.accelerator.wait_for_everyone()
        gallery = Gallery.choose(tables.splits(), tables.truth, self.policy, self.collate, seed=r.seed)
        moments = set(np.linspace(0, config.epochs - 1, min(SNAPSHOTS, config.epochs)).round().astype(int).tolist())
        remarked = False
        for event in fit.run(resume):
            if isinstance(event, EpochEnded) and self.accelerator.is_main_process:
                epoch = int(event.record["epoch"])
                write_text(self.out / CLOCK_FILE, json.dumps(self.clock.so_far("training")))
                if epoch in moments:
                    shown = gallery.compute_maps(_spatial(fit.evaluated), device, store_of(fit.parts))
                    save_gallery(self.out, f"epoch-{epoch:04d}", shown)
            if isinstance(event, Ended):
                self.clock.lap("training")
                best = None if event.best_epoch is None else fit.state.history[event.best_epoch]
                self._finish(_spatial(fit.evaluated), event, best, gallery, baseline)
            yield event
            if isinstance(event, Started) and worth is not None:
                yield Noted(str(worth), warning=False)
            if isinstance(event, EpochEnded) and not remarked:
                remarks = [*plan.objective.remarks(train_means(event.record))]
                remarked = bool(remarks)
                yield from map(Noted, remarks)

    def _worth(self) -> StartWorth | None:
        """Measure the encoder of --init, see `start_worth`; None on other processes than the main one."""

        def loader(net: SpatialNet, table: LabelTable) -> EvalLoader:
            collate = Collate(net.preprocessing.mean, net.preprocessing.std)
            data = EvalSet(_photos(table), table.matrix, self.policy)
            return EvalLoader(data, 16, collate, self.workers, device=self.accelerator.device)

        device = self.accelerator.device
        with repeatable(device):
            return start_worth(self.plan, loader, device) if self.accelerator.is_main_process else None

    @property
    def _frozen(self) -> bool:
        return all(stage.trainable == "head" for stage in self.plan.resolved.stages)

    def _head_inputs(self) -> dict[str, Tensor]:
        """Compute the head's inputs of every split but train once, where the trunk is frozen while they are used."""
        inputs: dict[str, Tensor] = {}
        for name, table in self.plan.tables.splits().items():
            if (self._frozen and name != "train") or (name == "val" and self.plan.fixed is not None):
                inputs[name] = self._with_progress(partial(self._inputs_of, table))
        return inputs

    def _inputs_of(self, table: LabelTable, tick: Tick, *, pooled: bool = False) -> Tensor:
        device = self.accelerator.device
        with repeatable(device):  # a resumed run computes them again
            return head_inputs(self.plan.net, self.eval_loader(table), device, tick, pooled=pooled)

    def _with_progress(self, compute: Callable[[Tick], T]) -> T:
        """Call a function that puts photos through the trunk; report photos done of all before training."""
        splits, plan = self.plan.tables.splits(), self.plan
        early = self._frozen or plan.baseline
        passes = [t for n, t in splits.items() if n != "train" and (early or (n == "val" and plan.fixed))]
        passes += [plan.tables.train] if plan.baseline and plan.fixed is None else []
        passes += [plan.tables.train] * ((plan.fixed is not None) + (plan.cache.views if plan.cache else 0))
        total = sum(self.shard.rows(len(table)) for table in passes)
        began = self._photos_done

        def tick(done: int, _: int) -> None:
            self._photos_done = began + done
            if self.tick is not None:
                self.tick(self._photos_done, total)

        return compute(tick)

    def _fixed(self) -> StoredViews | None:
        """Compute the features of every training photo's test view, for stages that solve the head."""
        plan, train, device = self.plan, self.plan.tables.train, self.accelerator.device
        if plan.fixed is None:
            return None
        cache, loader = plan.fixed, self.eval_loader(train)
        freeze(plan.net, "head")
        with repeatable(device):
            rows = self.shard.rows(len(train))
            filled = self._with_progress(
                lambda tick: fill_fixed(plan.net, loader, cache, rows, device=device, tick=tick)
            )
        return StoredViews(filled, self.sampler, train.matrix, locations=_locations(train), shard=self.shard)

    def _source(self) -> BatchSource:
        """Return training batches: photos, or cached features of a frozen trunk."""
        plan, train, sampler = self.plan, self.plan.tables.train, self.sampler
        device, cache = self.accelerator.device, plan.cache
        photos = self._train_set(None if cache is None else cache.views)
        loader = TrainLoader(photos, sampler, self.collate, self.workers, device)
        if cache is None:
            return loader
        freeze(plan.net, "head")
        with repeatable(device):
            filled = self._with_progress(
                lambda tick: fill_views(plan.net, loader, cache, shard=self.shard, device=device, tick=tick)
            )
        return StoredViews(filled, sampler, train.matrix, locations=_locations(train), shard=self.shard)

    def _baseline(self, fixed: StoredViews | None) -> Baseline | None:
        """Fit logistic regression on pooled features of the untrained trunk; None if this is not the main process."""
        plan, device, tables = self.plan, self.accelerator.device, self.plan.tables
        if not plan.baseline:
            return None
        pooled = {}
        for name, table in tables.splits().items():
            if name == "train" and fixed is not None:
                local = fixed.filled.features[0]
            elif name in self._inputs:
                local = self._inputs[name]
            else:
                local = self._with_progress(partial(self._inputs_of, table, pooled=True))
            local = local.float().mean((2, 3)).to(device)
            pooled[name] = self.shard.gather(local, len(table)).cpu()
        if not self.accelerator.is_main_process:
            return None
        others = {n: Measured(x, tables.splits()[n].matrix.dense()) for n, x in pooled.items() if n != "train"}
        return logistic_regression(pooled["train"], tables.train.matrix, others)

    def _train_set(self, views_cycle: int | None) -> TrainSet:
        plan, train = self.plan, self.plan.tables.train
        return TrainSet(
            photos=_photos(train),
            labels=train.matrix,
            policy=self.policy,
            seed=plan.resolved.seed,
            jitter=Jitter(*[plan.resolved.jitter] * 3),
            views_cycle=views_cycle,
            locations=_locations(train),
            second_view=Strong() if plan.objective.needs_second_view else None,
        )

    def eval_loader(self, table: LabelTable) -> EvalLoader:
        """Return this process's share of the photos of a table, through the test view."""
        data = EvalSet(_photos(table), table.matrix, self.policy)
        # On a CPU, small batches are as fast as large ones: their activations stay in the processor's cache.
        size = 16 if self.accelerator.device.type == "cpu" else EVAL_BATCH
        shard, device = self.shard, self.accelerator.device
        return EvalLoader(data, size, self.collate, self.workers, rank=shard.rank, world=shard.world, device=device)

    def _validation(self) -> Callable[[nn.Module], Mapping[str, float]]:
        """Return the function that measures a net on validation after each epoch."""
        labels, trunk = self.plan.tables.val.matrix.dense(), self.plan.net.backbone
        trained = [stage.trainable != "head" for stage in self.plan.resolved.stages]
        head_first = trained == sorted(trained)

        def validate(module: nn.Module) -> Mapping[str, float]:
            # While the first stages train only the head, its inputs stay the same.
            moved = not head_first or any(parameter.requires_grad for parameter in trunk.parameters())
            return epoch_metrics(self._logits(_spatial(module), "val", moved=moved), labels)

        return validate

    def _logits(self, net: SpatialNet, split: str, *, moved: bool) -> Logits:
        """Return the logits [N, C] of all photos of a split, on every process; `moved`: the trunk has changed."""
        table, device = self.plan.tables.splits()[split], self.accelerator.device
        if moved or split not in self._inputs:
            return predict_logits(net, self.eval_loader(table), len(table), device, self.shard)
        with torch.no_grad():
            parts = self._inputs[split].split(EVAL_BATCH)
            local = torch.cat([net.head.predict_logits(part.to(device)) for part in parts])
        return self.shard.gather(local, len(table)).cpu().numpy()

    def _finish(
        self, net: SpatialNet, ended: Ended, best: Record | None, gallery: Gallery, baseline: Baseline | None
    ) -> None:
        """Choose the weights, fit thresholds, evaluate, and write the model; `best` is the record of the best epoch."""
        plan, tables, device = self.plan, self.plan.tables, self.accelerator.device
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
        with repeatable(device):
            logits = {
                name: self._logits(net, name, moved=not self._frozen) for name in tables.splits() if name != "train"
            }
            train_logits = self._train_logits(net) if needs_training_scores(tables, plan.objective) else None
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

    def _predict_train(self, module: nn.Module) -> Tensor:
        """Return the logits [rows, C] of this process's training photos, through the test view."""
        net, train, device = _spatial(module), self.plan.tables.train, self.accelerator.device
        if self._frozen and self._train_inputs is None:
            # The trunk never changes, so one pass over the photos is enough.
            self._train_inputs = self._inputs_of(train, lambda *_: None)
        if self._frozen and self._train_inputs is not None:
            parts = self._train_inputs.split(EVAL_BATCH)
            return torch.cat([net.head.predict_logits(part.to(device, torch.float32)) for part in parts])
        return own_logits(net, self.eval_loader(train), device)

    def _train_logits(self, net: SpatialNet) -> Logits:
        """Return logits [M, C] of training photos, on every process: of all from cached features, or a sample."""
        train, device = self.plan.tables.train, self.accelerator.device
        if self._frozen and self._train_inputs is not None:
            with torch.no_grad():
                parts = self._train_inputs.split(EVAL_BATCH)
                local = torch.cat([net.head.predict_logits(part.to(device, torch.float32)) for part in parts])
            return self.shard.gather(local, len(train)).cpu().numpy()
        sample = train.subset(scored_rows(len(train)))
        return predict_logits(net, self.eval_loader(sample), len(sample), device, self.shard)

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
            have changed.
    """
    folder = RunFolder(out, TRAINING)
    record = folder.read_record(lambda tree, file: parse(tree, settings_models(out), file), Resolved)
    named = record.tables
    tables = Tables(named["train"], named["val"], named.get("test"), named.get(TRUTH))
    folder.refuse_changed_photos(tables.splits())  # first: labels in folders of photos change with the photos
    notes = [check_labels_unchanged(record, tables, out), folder.refuse_lost_checkpoints()]
    weights = record.locate_weights(record.resolved.weights)
    resolved = record.resolved.model_copy(update={"weights": weights})
    teacher = load_teacher(out, record.environment)
    plan = derive(record.settings, tables, None, cpu=cpu, resolved=resolved, teacher=teacher)
    folder.refuse_other_weights(weights, plan.net.origin, record.environment["weights"])
    notes.append(changed_source(plan.objective, record.environment))
    return TrainRun(plan, out, cpu=cpu, tick=tick, notes=tuple(note for note in notes if note is not None))


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


def _photos(table: LabelTable) -> PhotoFolder:
    return PhotoFolder(table.require_root(), table.images)


def _locations(table: LabelTable) -> Locations | None:
    return table.locations if len(table.locations) else None


def _spatial(module: nn.Module) -> SpatialNet:
    assert isinstance(module, SpatialNet)
    return module
