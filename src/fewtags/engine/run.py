"""A run: plan -> training in a run folder -> model, thresholds, evaluation; and going on after an interruption."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar, final

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from fewtags.engine.autocast import repeatable
from fewtags.engine.baseline import Baseline, Measured, logistic_regression
from fewtags.engine.checkpoint import load_tensors, write_array
from fewtags.engine.clock import Clock
from fewtags.engine.evaluate import Evaluation, Logits, epoch_metrics, evaluate_logits, predict_logits, sigmoid
from fewtags.engine.events import Ended, EpochEnded, Event
from fewtags.engine.fit import BatchSource, Fit, FitConfig, make_accelerator
from fewtags.engine.gallery import Gallery, save_gallery
from fewtags.engine.machine import keep_freed_memory
from fewtags.engine.methods import changed_source
from fewtags.engine.model import ModelInfo, make_policy, save_model
from fewtags.engine.plan import Plan, Tables, can_rank, derive, head_plan, positives_per_image
from fewtags.engine.record import (
    NO_FILES,
    forget,
    looked_at_again,
    method_record,
    read_record,
    refuse_changed_photos,
    refuse_lost_checkpoints,
    refuse_used_folder,
    saying_what_to_do,
    write_record,
)
from fewtags.engine.sources import StoredViews, fill_fixed, fill_views, head_inputs
from fewtags.errors import CheckpointError
from fewtags.files import write_text
from fewtags.labels import Label, Locations
from fewtags.metrics.thresholds import Thresholds, fit_thresholds
from fewtags.nets.freezing import freeze
from fewtags.nets.spatial import SpatialNet
from fewtags.objectives.base import Objective, Problem
from fewtags.photos.augment import Jitter
from fewtags.photos.augment_fixmatch import Strong
from fewtags.photos.dataset import EvalSet, PhotoFolder, TrainSet
from fewtags.photos.loader import Collate, EpochSampler, EvalLoader, TrainLoader, Workers
from fewtags.photos.scan import Tick
from fewtags.stores.shard import Shard
from fewtags.table.table import LabelTable

T = TypeVar("T")
BASELINE_FILE, CLOCK_FILE = "baseline.json", "seconds.json"
# Maps of the gallery are kept for so many epochs, spread over the run.
SNAPSHOTS = 8
EVAL_BATCH = 64


@final
class Run:
    """A plan at work in a folder.

    Args:
        plan: from `make_plan`, or from the folder itself when resuming.
        out: the run folder; made if need be.
        cpu: ignore GPUs.
        tick: told how far the caching of views has come.
        notes: what whoever goes on with it should know.
        clock: what has been spent before, so that the run's account begins with the first photo.
    """

    def __init__(
        self,
        plan: Plan,
        out: Path,
        *,
        cpu: bool = False,
        tick: Tick | None = None,
        notes: tuple[str, ...] = (),
        clock: Clock | None = None,
    ) -> None:
        self.plan, self.out, self.tick, self.notes = plan, out, tick, notes
        self.clock = Clock() if clock is None else clock
        keep_freed_memory()
        self._photos_done = 0
        self._inputs: Mapping[str, Tensor] = {}
        self.accelerator: Accelerator = make_accelerator(plan.resolved.precision, cpu)
        self.shard = Shard(self.accelerator.process_index, self.accelerator.num_processes)
        r, net = plan.resolved, plan.net
        self.collate = Collate(net.preprocessing.mean, net.preprocessing.std)
        self.policy = make_policy(r.policy, r.size, r.min_area, r.flip)
        self.workers = Workers(r.workers, pin_memory=self.accelerator.device.type == "cuda")

    def start(self) -> Iterator[Event]:
        """Train from the beginning.

        Nothing is written before everything is ready, and what was written is taken away if the record of the run
        does not get complete, so that the folder stays free when a setting is refused.

        Raises:
            ConfigError: the folder holds a run already.
            DataError: a photo cannot be read.
        """
        refuse_used_folder(self.out)  # by every process: one that stops alone would leave the others waiting
        self.accelerator.wait_for_everyone()
        made = not self.out.exists()
        try:
            with saying_what_to_do(self.plan.tables.splits(), self.out):
                yield from self._train(resume=False)
        finally:
            if self.accelerator.is_main_process and not (self.out / "run.toml").exists():
                forget(self.out, made)

    def resume(self) -> Iterator[Event]:
        """Go on from the last checkpoint, or from the beginning if there is none yet.

        The result has the same bits as if nothing had happened.

        Raises:
            DataError: a photo cannot be read.
        """
        with saying_what_to_do(self.plan.tables.splits(), self.out):
            yield from self._train(resume=True)

    def _train(self, resume: bool) -> Iterator[Event]:
        plan, r, device = self.plan, self.plan.resolved, self.accelerator.device
        net, tables = plan.net.to(device), plan.tables
        if resume and (self.out / CLOCK_FILE).exists():
            self.clock.add(json.loads((self.out / CLOCK_FILE).read_text("utf-8")))
        self.clock.start()
        self._inputs = self._head_inputs()
        fixed = self._fixed()
        self.clock.lap("features")
        baseline = self._baseline(fixed)
        if plan.baseline:
            self.clock.lap("baseline")
        source = fixed if fixed is not None and all(stage.solved for stage in r.stages) else self._source()
        cached = isinstance(source, StoredViews)
        self.clock.lap("features")
        config = FitConfig(
            r.stages, r.seed, r.weight_decay, r.accumulate, r.clip_norm, r.precision, r.weight_ema, r.batchnorm_eval,
            r.checkpoint_every_steps, optimizer=r.optimizer, patience=r.patience,
        )  # fmt: skip
        problem = Problem(
            tables.train.matrix,
            plan.grid,
            warmup_epochs=config.warmup_epochs,
            epochs=config.epochs,
            seed=r.seed,
            shard=self.shard,
            device=device,
            state_dir=self.out / "state",
            truth=None if tables.truth is None else tables.truth.matrix,
            features_dim=plan.net.head.features_dim,
        )
        fit = Fit(
            net, plan.objective, source, config, problem, fixed=fixed, accelerator=self.accelerator,
            model=net.head if cached else net, out=self.out, validate=self._validation(),
        )  # fmt: skip
        if not resume:
            if self.accelerator.is_main_process:
                write_record(plan, self.out)
            self.accelerator.wait_for_everyone()
        gallery = Gallery.choose(tables.splits(), tables.truth, self.policy, self.collate, seed=r.seed)
        moments = set(np.linspace(0, config.epochs - 1, min(SNAPSHOTS, config.epochs)).round().astype(int).tolist())
        for event in fit.run(resume):
            if isinstance(event, EpochEnded) and self.accelerator.is_main_process:
                epoch = int(event.record["epoch"])
                write_text(self.out / CLOCK_FILE, json.dumps(self.clock.so_far("training")))
                if epoch in moments:
                    save_gallery(self.out, f"epoch-{epoch:04d}", gallery.look(_spatial(fit.evaluated), device))
            if isinstance(event, Ended):
                self.clock.lap("training")
                self._finish(_spatial(fit.evaluated), event, gallery, baseline)
            yield event

    @property
    def _frozen(self) -> bool:
        return all(stage.trainable == "head" for stage in self.plan.resolved.stages)

    def _head_inputs(self) -> dict[str, Tensor]:
        """Of every split but train, what the head needs to predict: computed once, where the trunk is frozen."""
        found: dict[str, Tensor] = {}
        for name, table in self.plan.tables.splits().items():
            if (self._frozen and name != "train") or (name == "val" and self.plan.fixed is not None):
                found[name] = self._counted(partial(self._inputs_of, table))
        return found

    def _inputs_of(self, table: LabelTable, tick: Tick, *, pooled: bool = False) -> Tensor:
        device = self.accelerator.device
        with repeatable(device):  # a resumed run makes them anew
            return head_inputs(self.plan.net, self.eval_loader(table), device, tick, pooled=pooled)

    def _counted(self, make: Callable[[Tick], T]) -> T:
        """Push photos through the trunk, and count them among all that will be."""
        splits, plan = self.plan.tables.splits(), self.plan
        early = self._frozen or plan.baseline
        before = [t for n, t in splits.items() if n != "train" and (early or (n == "val" and plan.fixed))]
        before += [plan.tables.train] if plan.baseline and plan.fixed is None else []
        before += [plan.tables.train] * ((plan.fixed is not None) + (plan.cache.views if plan.cache else 0))
        total = sum(self.shard.rows(len(table)) for table in before)
        began = self._photos_done

        def tick(done: int, _: int) -> None:
            self._photos_done = began + done
            if self.tick is not None:
                self.tick(self._photos_done, total)

        return make(tick)

    def _fixed(self) -> StoredViews | None:
        """The test view of every training photo through the trunk, for stages that solve the head."""
        plan, train, device = self.plan, self.plan.tables.train, self.accelerator.device
        if plan.fixed is None:
            return None
        cache, loader = plan.fixed, self.eval_loader(train)
        freeze(plan.net, "head")
        with repeatable(device):
            rows = self.shard.rows(len(train))
            filled = self._counted(lambda tick: fill_fixed(plan.net, loader, cache, rows, device=device, tick=tick))
        return StoredViews(filled, self._sampler(), train.matrix, locations=_locations(train), shard=self.shard)

    def _sampler(self) -> EpochSampler:
        samples, r = len(self.plan.tables.train), self.plan.resolved
        return EpochSampler(samples, r.batch_size, r.seed, self.shard.rank, self.shard.world)

    def _source(self) -> BatchSource:
        plan, train, sampler = self.plan, self.plan.tables.train, self._sampler()
        device = self.accelerator.device
        if plan.cache is None:
            return TrainLoader(self._train_set(None), sampler, self.collate, self.workers, device)
        cache = plan.cache
        freeze(plan.net, "head")
        loader = TrainLoader(self._train_set(cache.views), sampler, self.collate, self.workers, device)
        with repeatable(device):
            filled = self._counted(
                lambda tick: fill_views(plan.net, loader, cache, shard=self.shard, device=device, tick=tick)
            )
        return StoredViews(filled, sampler, train.matrix, locations=_locations(train), shard=self.shard)

    def _baseline(self, fixed: StoredViews | None) -> Baseline | None:
        """Logistic regression on the pooled features of the test views of the trunk as it is before training."""
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
                local = self._counted(partial(self._inputs_of, table, pooled=True))
            local = local.float().mean((2, 3)).to(device)
            pooled[name] = self.shard.gather(local, len(table)).cpu()
        if not self.accelerator.is_main_process:
            return None
        others = {n: Measured(x, tables.splits()[n].matrix.dense()) for n, x in pooled.items() if n != "train"}
        return logistic_regression(pooled["train"], tables.train.matrix, others)

    def _train_set(self, views_cycle: int | None) -> TrainSet:
        train = self.plan.tables.train
        return TrainSet(
            _photos(train),
            train.matrix,
            self.policy,
            self.plan.resolved.seed,
            jitter=Jitter(*[self.plan.resolved.jitter] * 3),
            views_cycle=views_cycle,
            locations=_locations(train),
            second_view=Strong() if self.plan.objective.needs_second_view else None,
        )

    def eval_loader(self, table: LabelTable) -> EvalLoader:
        """This process's share of a table's photos through the test view."""
        data = EvalSet(_photos(table), table.matrix, self.policy)
        # On a CPU small batches are as fast, and their activations stay in the processor's cache.
        size = 16 if self.accelerator.device.type == "cpu" else EVAL_BATCH
        shard, device = self.shard, self.accelerator.device
        return EvalLoader(data, size, self.collate, self.workers, rank=shard.rank, world=shard.world, device=device)

    def _validation(self) -> Callable[[nn.Module], Mapping[str, float]]:
        labels, trunk = self.plan.tables.val.matrix.dense(), self.plan.net.backbone
        trained = [stage.trainable != "head" for stage in self.plan.resolved.stages]
        head_first = trained == sorted(trained)

        def validate(module: nn.Module) -> Mapping[str, float]:
            # While the first stages train the head alone, what it sees stays as it was.
            moved = not head_first or any(parameter.requires_grad for parameter in trunk.parameters())
            return epoch_metrics(self._logits(_spatial(module), "val", moved=moved), labels)

        return validate

    def _logits(self, net: SpatialNet, split: str, *, moved: bool) -> Logits:
        """float32 [N, C] of all photos of a split, on every process; `moved`: the trunk is not what it was."""
        table, device = self.plan.tables.splits()[split], self.accelerator.device
        if moved or split not in self._inputs:
            return predict_logits(net, self.eval_loader(table), len(table), device, self.shard)
        with torch.no_grad():
            parts = self._inputs[split].split(EVAL_BATCH)
            local = torch.cat([net.head.predict_logits(part.to(device)) for part in parts])
        return self.shard.gather(local, len(table)).cpu().numpy()

    def _finish(self, net: SpatialNet, ended: Ended, gallery: Gallery, baseline: Baseline | None) -> None:
        """Choose the weights, fit thresholds, evaluate, and write the model."""
        plan, tables, device = self.plan, self.plan.tables, self.accelerator.device
        select = plan.resolved.select
        if ended.best_epoch is not None and select != "last":
            net.load_state_dict(load_tensors(self.out / "best.safetensors"))
            selection = self._why_best(ended.best_epoch, ended.epochs)
        else:
            why = (
                "chosen"
                if select == "last"
                else "since no validation class has both known positives and known negatives"
            )
            last = plan.resolved.stages[-1]
            which = f", logit variance {last.logit_variances[-1]:g}" if last.solved else ""
            selection = f"the last epoch ({ended.epochs}{which}), {why}"
        with repeatable(device):
            logits = {
                name: self._logits(net, name, moved=not self._frozen) for name in tables.splits() if name != "train"
            }
        if self.accelerator.is_main_process:
            thresholds = choose_thresholds(logits["val"], tables, plan.objective)
            for name, values in logits.items():
                write_evaluation(self.out, name, values, tables.splits()[name], thresholds)
            save_gallery(self.out, "final", gallery.look(net, device))
            if baseline is not None:
                write_text(self.out / BASELINE_FILE, json.dumps(baseline.to_dict(), indent=1))
            self.clock.lap("evaluation")
            write_text(self.out / CLOCK_FILE, json.dumps(self.clock.seconds, indent=1))
            # Last, because a run with a model counts as finished.
            save_model(self.out / "model.safetensors", net, self._info(thresholds, selection))
        self.accelerator.wait_for_everyone()

    def _why_best(self, epoch: int, epochs: int) -> str:
        """Which epoch was chosen, and by what, in words."""
        by = "validation mAP" if can_rank(self.plan.tables.val) else "validation mAP with unknown counted as absent"
        first = 0
        for stage in self.plan.resolved.stages:
            if stage.solved and first <= epoch < first + stage.epochs:
                return f"logit variance {stage.logit_variances[epoch - first]:g}, the best by {by}"
            first += stage.epochs
        return f"epoch {epoch + 1} of {epochs}, the best by {by}"

    def _info(self, thresholds: Thresholds, selection: str) -> ModelInfo:
        r, pre, classes = self.plan.resolved, self.plan.net.preprocessing, self.plan.tables.train.classes
        return ModelInfo(
            r.backbone, r.output_stride, head_plan(r), r.size, r.policy, classes.ids, classes.names,
            tuple(float(v) for v in thresholds.values), tuple(str(rule) for rule in thresholds.rules),
            pre.mean, pre.std, method_record(self.plan), selection, version("fewtags"),
        )  # fmt: skip


def open_run(out: Path, *, cpu: bool = False, tick: Tick | None = None) -> Run:
    """The run in a folder, ready to `resume`, with the settings it resolved when it began.

    Raises:
        CheckpointError: no run there, or it is finished; or settings, labels, photos, initial weights or checkpoints
            are not what it left.
    """
    if (out / "model.safetensors").exists():
        raise CheckpointError(f"{out} is finished; its model is {out / 'model.safetensors'}.")
    record = read_record(out)
    notes = [looked_at_again(record, out)]
    refuse_changed_photos(record.tables, out)
    notes.append(refuse_lost_checkpoints(out))
    resolved = record.resolved
    if resolved.weights not in NO_FILES:
        resolved = resolved.model_copy(update={"weights": str(record.folder / resolved.weights)})
    plan = derive(record.config, record.tables, None, cpu=cpu, resolved=resolved)
    origin, began = plan.net.origin, record.environment["weights"]
    if began is not None and began["fingerprint"] != (None if origin is None else origin.fingerprint):
        raise CheckpointError(
            f"the initial weights {plan.resolved.weights} are not the ones that {out} began with; restore them."
        )
    notes.append(changed_source(plan.objective, record.environment))
    return Run(plan, out, cpu=cpu, tick=tick, notes=tuple(note for note in notes if note is not None))


def choose_thresholds(logits: Logits, tables: Tables, objective: Objective | None = None) -> Thresholds:
    """Per-class thresholds on validation; where no negative is known, by the expected number of positives per class.

    What the objective was told about that number comes first.
    """
    share = expected_share(tables, objective)
    return fit_thresholds(sigmoid(logits), tables.val.matrix.dense(), expected_count=len(logits) * share)


def expected_share(tables: Tables, objective: Objective | None = None) -> NDArray[np.float64]:
    """float64 [C]: the share of images expected to hold each class, 0..1.

    The class prior of the objective; or its positives per image (else: those of `positives_per_image`) times the share
    of each class among the annotated positives.
    """
    assumed = None if objective is None else objective.assumed_positives
    if isinstance(assumed, tuple):
        return np.array(assumed)
    mean = assumed or positives_per_image(tables)[0]
    annotated = tables.train.matrix.counts(Label.POSITIVE)
    return np.minimum(mean * annotated / max(int(annotated.sum()), 1), 1.0)


def write_evaluation(out: Path, name: str, logits: Logits, table: LabelTable, thresholds: Thresholds) -> Evaluation:
    """Write `evaluation/<name>.json` and the logits beside it."""
    folder = out / "evaluation"
    folder.mkdir(exist_ok=True)
    result = evaluate_logits(logits, table.matrix.dense(), table.classes, thresholds.values)
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
