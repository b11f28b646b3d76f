"""A run: plan -> training in a run folder -> model, thresholds, evaluation; and going on after an interruption."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import nn

from fewtags.config import Config, Resolved, dump_toml, load_toml, parse
from fewtags.data.loader import Collate, EpochSampler, EvalLoader, EvalSet, Photos, TrainLoader, TrainSet, Workers
from fewtags.data.storage import load, save
from fewtags.data.table import LabelTable
from fewtags.engine.checkpoint import load_tensors, write_text
from fewtags.engine.evaluate import Evaluation, Logits, epoch_metrics, evaluate_logits, predict_logits, sigmoid
from fewtags.engine.events import Ended, EpochEnded, Event
from fewtags.engine.fit import BatchSource, Fit, FitConfig, make_accelerator
from fewtags.engine.gallery import Gallery, save_gallery
from fewtags.engine.machine import environment
from fewtags.engine.methods import settings_models
from fewtags.engine.model import ModelInfo, make_policy, save_model
from fewtags.engine.plan import Plan, Tables, derive, head_plan, positives_per_image, read_tables
from fewtags.engine.sources import StoredViews, Tick, fill_views, head_inputs, plan_cache
from fewtags.errors import CheckpointError, ConfigError, FewtagsError
from fewtags.labels import Label, Locations
from fewtags.metrics.thresholds import Thresholds, fit_thresholds
from fewtags.nets.freezing import freeze
from fewtags.nets.spatial import SpatialNet
from fewtags.objectives.base import Objective, Problem
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.stores.shard import Shard

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
    """

    def __init__(self, plan: Plan, out: Path, *, cpu: bool = False, tick: Tick | None = None) -> None:
        self.plan, self.out, self.tick = plan, out, tick
        self.accelerator: Accelerator = make_accelerator(plan.resolved.precision, cpu)
        self.shard = Shard(self.accelerator.process_index, self.accelerator.num_processes)
        r, net = plan.resolved, plan.net
        self.collate = Collate(net.preprocessing.mean, net.preprocessing.std)
        self.policy = make_policy(r.policy, r.size, r.min_area, r.flip)
        self.workers = Workers(r.workers, pin_memory=self.accelerator.device.type == "cuda")

    def start(self) -> Iterator[Event]:
        """Train from the beginning.

        Nothing is written before everything is ready, so that the folder stays free when a setting is refused.

        Raises:
            ConfigError: the folder holds a run already.
        """
        if self.accelerator.is_main_process:
            refuse_used_folder(self.out)
        self.accelerator.wait_for_everyone()
        yield from self._train(resume=False)

    def resume(self) -> Iterator[Event]:
        """Go on from the last checkpoint, or from the beginning if there is none yet.

        The result has the same bits as if nothing had happened.
        """
        yield from self._train(resume=True)

    def _train(self, resume: bool) -> Iterator[Event]:
        plan, r, device = self.plan, self.plan.resolved, self.accelerator.device
        net, tables = plan.net.to(device), plan.tables
        frozen = all(stage.trainable == "head" for stage in r.stages)
        source = self._source(cached=r.cached_views > 0)
        cached = isinstance(source, StoredViews)
        validate = self._validation(tables.val, frozen)
        config = FitConfig(
            r.stages, r.seed, r.weight_decay, r.accumulate, r.clip_norm, r.precision, r.weight_ema, r.batchnorm_eval,
            r.checkpoint_every_steps,
        )  # fmt: skip
        problem = Problem(
            tables.train.matrix, plan.grid, config.warmup_epochs, config.epochs, r.seed, self.shard, device,
            self.out / "state", None if tables.truth is None else tables.truth.matrix, plan.net.head.features_dim,
        )  # fmt: skip
        fit = Fit(
            net, plan.objective, source, config, problem,
            accelerator=self.accelerator, model=net.head if cached else net, out=self.out, validate=validate,
        )  # fmt: skip
        if not resume:
            if self.accelerator.is_main_process:
                self._write_record()
            self.accelerator.wait_for_everyone()
        gallery = Gallery.choose(tables.splits(), tables.truth, self.policy, self.collate, seed=r.seed)
        moments = set(np.linspace(0, config.epochs - 1, min(SNAPSHOTS, config.epochs)).round().astype(int).tolist())
        for event in fit.run(resume):
            if isinstance(event, EpochEnded) and self.accelerator.is_main_process:
                epoch = int(event.record["epoch"])
                if epoch in moments:
                    save_gallery(self.out, f"epoch-{epoch:04d}", gallery.look(_spatial(fit.evaluated), device))
            if isinstance(event, Ended):
                self._finish(_spatial(fit.evaluated), event, gallery)
            yield event

    def _source(self, *, cached: bool) -> BatchSource:
        plan, r, train = self.plan, self.plan.resolved, self.plan.tables.train
        sampler = EpochSampler(len(train), r.batch_size, r.seed, self.shard.rank, self.shard.world)
        if not cached:
            return TrainLoader(self._train_set(None), sampler, self.collate, self.workers)
        features = (plan.net.head.features_dim, *plan.grid)
        cache = plan_cache(len(train), features, r.cached_views, int(plan.config.train.cache_gib * 2**30))
        freeze(plan.net, "head")
        loader = TrainLoader(self._train_set(cache.views), sampler, self.collate, self.workers)
        device = self.accelerator.device
        filled = fill_views(plan.net, loader, cache, shard=self.shard, device=device, tick=self.tick)
        return StoredViews(filled, sampler, train.matrix, locations=_locations(train), shard=self.shard)

    def _train_set(self, views_cycle: int | None) -> TrainSet:
        train = self.plan.tables.train
        return TrainSet(
            _photos(train),
            train.matrix,
            self.policy,
            self.plan.resolved.seed,
            views_cycle=views_cycle,
            locations=_locations(train),
        )

    def eval_loader(self, table: LabelTable) -> EvalLoader:
        """This process's share of a table's photos through the test view."""
        data = EvalSet(_photos(table), table.matrix, self.policy)
        return EvalLoader(data, EVAL_BATCH, self.collate, self.workers, rank=self.shard.rank, world=self.shard.world)

    def _validation(self, table: LabelTable, frozen: bool) -> Callable[[nn.Module], Mapping[str, float]]:
        labels, device = table.matrix.dense(), self.accelerator.device
        inputs = head_inputs(self.plan.net, self.eval_loader(table), device) if frozen else None

        def validate(module: nn.Module) -> Mapping[str, float]:
            net = _spatial(module)
            if inputs is None:
                logits = predict_logits(net, self.eval_loader(table), len(table), device, self.shard)
            else:
                # The trunk never changes, so that what the head sees is computed once.
                local = torch.cat([net.head.predict_logits(part.to(device)) for part in inputs.split(EVAL_BATCH)])
                logits = self.shard.gather(local, len(table)).cpu().numpy()
            return epoch_metrics(logits, labels)

        return validate

    def _finish(self, net: SpatialNet, ended: Ended, gallery: Gallery) -> None:
        """Choose the weights, fit thresholds, evaluate, and write the model."""
        plan, tables, device = self.plan, self.plan.tables, self.accelerator.device
        select = plan.resolved.select
        if ended.best_epoch is not None and select != "last":
            net.load_state_dict(load_tensors(self.out / "best.safetensors"))
            selection = f"epoch {ended.best_epoch + 1} of {ended.epochs}, the best by validation mAP"
        else:
            why = (
                "chosen"
                if select == "last"
                else "since no validation class has both known positives and known negatives"
            )
            selection = f"the last epoch ({ended.epochs}), {why}"
        logits = {
            name: predict_logits(net, self.eval_loader(table), len(table), device, self.shard)
            for name, table in tables.splits().items()
            if name != "train"
        }
        if self.accelerator.is_main_process:
            thresholds = choose_thresholds(logits["val"], tables, plan.objective)
            for name, values in logits.items():
                write_evaluation(self.out, name, values, tables.splits()[name], thresholds)
            save_gallery(self.out, "final", gallery.look(net, device))
            # Last, because a run with a model counts as finished.
            save_model(self.out / "model.safetensors", net, self._info(thresholds, selection))
        self.accelerator.wait_for_everyone()

    def _info(self, thresholds: Thresholds, selection: str) -> ModelInfo:
        r, pre, classes = self.plan.resolved, self.plan.net.preprocessing, self.plan.tables.train.classes
        return ModelInfo(
            r.backbone, r.output_stride, head_plan(r), r.size, r.policy, classes.ids, classes.names,
            tuple(float(v) for v in thresholds.values), tuple(str(rule) for rule in thresholds.rules),
            pre.mean, pre.std, pre.interpolation, method_record(self.plan), selection, version("fewtags"),
        )  # fmt: skip

    def _write_record(self) -> None:
        """Everything about the run that is known before it trains."""
        plan, out = self.plan, self.out
        (out / "tables").mkdir(parents=True)
        for name, table in _named(plan.tables).items():
            # A run may be resumed from another working directory.
            root = None if table.root is None else table.root.absolute()
            save(table.with_root(root), out / "tables" / f"{name}.parquet", keep_root=True)
        if plan.report is not None:
            write_text(out / "check.json", plan.report.to_json())
            plan.report.write_excluded_csv(out / "excluded.csv")
        classes = plan.tables.train.classes
        vocabulary = [{"id": i, "name": n} for i, n in zip(classes.ids, classes.names, strict=True)]
        record: dict[str, Any] = {
            **environment(),
            "fingerprints": {name: table.fingerprint for name, table in _named(plan.tables).items()},
            "weights": None if plan.net.origin is None else vars(plan.net.origin),
            "method": method_record(plan),
            "grid": plan.grid,
            "heatmap_bytes": plan.heatmap_bytes,
            "notes": plan.notes,
        }
        write_text(out / "vocabulary.json", json.dumps(vocabulary, indent=1, ensure_ascii=False))
        write_text(out / "environment.json", json.dumps(record, indent=1))
        write_text(out / "resolved.toml", dump_toml(plan.resolved))
        write_text(out / "run.toml", dump_toml(plan.config))


def refuse_used_folder(out: Path) -> None:
    """A run begins in a new or empty folder.

    Raises:
        ConfigError: `out` holds something, or is a file.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; --out takes a folder for the run.")
    if out.exists() and any(out.iterdir()):
        interrupted = (out / "run.toml").exists() and not (out / "model.safetensors").exists()
        go_on = f", or go on with: fewtags resume {out}" if interrupted else ""
        raise ConfigError(f"{out} is not empty; choose another --out{go_on}.")


def open_run(out: Path, *, cpu: bool = False, tick: Tick | None = None) -> Run:
    """The run in a folder, ready to `resume`, with the settings it resolved when it began.

    Raises:
        CheckpointError: no run there, it is finished, or its label files say something else by now.
    """
    if not (out / "run.toml").exists():
        raise CheckpointError(
            f"{out} is not a run folder (it has no run.toml); start one with: fewtags train DATA --out FOLDER"
        )
    if (out / "model.safetensors").exists():
        raise CheckpointError(f"{out} is finished; its model is {out / 'model.safetensors'}.")
    config = parse(load_toml(out / "run.toml"), settings_models(), str(out / "run.toml"))
    tables, record, resolved = _read_record(out)
    _refuse_changed_labels(config, tables, out)
    plan = derive(config, tables, None, cpu=cpu, resolved=resolved)
    origin = None if plan.net.origin is None else plan.net.origin.fingerprint
    if record["weights"] is not None and record["weights"]["fingerprint"] != origin:
        raise CheckpointError(
            f"the initial weights {plan.resolved.weights} are not the ones that {out} began with; restore them."
        )
    return Run(plan, out, cpu=cpu, tick=tick)


def _read_record(out: Path) -> tuple[Tables, dict[str, Any], Resolved]:
    """What `Run.start` wrote down: the tables, `environment.json` and the resolved settings."""
    try:
        record = json.loads((out / "environment.json").read_text("utf-8"))
        resolved = Resolved.model_validate(load_toml(out / "resolved.toml"))
        found = {name: load(out / "tables" / f"{name}.parquet") for name in record["fingerprints"]}
        tables = Tables(found["train"], found["val"], found.get("test"), found.get("truth"))
    except (OSError, ValueError, KeyError, FewtagsError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise CheckpointError(f"the record of the run in {out} is damaged ({reason}); start a new run.") from None
    for name, table in _named(tables).items():
        if table.fingerprint != record["fingerprints"][name]:
            raise CheckpointError(
                f"{out / 'tables' / name}.parquet is not what the run began with; restore it, or start a new run."
            )
    return tables, record, resolved


def _refuse_changed_labels(config: Config, stored: Tables, out: Path) -> None:
    """Read the label files again where they still exist."""
    if config.data.train == IN_MEMORY or not Path(config.data.train).exists():
        return
    try:
        now = read_tables(config.data, config.train.seed)
    except FewtagsError as error:
        raise CheckpointError(
            f"the labels can no longer be read as they were when {out} began: {error} Restore them, or start a new run."
        ) from None
    if changed := changed_split(stored, now, out):
        raise CheckpointError(f"the {changed} labels have changed since {out} began; restore them, or start a new run.")


def changed_split(stored: Tables, now: Tables, out: Path) -> str | None:
    """The first split whose labels are not those that the run in `out` began with; None where all are.

    Images that were left out at the start, because their photos could not be read, stay out.
    """
    left_out: set[tuple[str, str]] = set()
    if (out / "excluded.csv").exists():
        with (out / "excluded.csv").open(encoding="utf-8", newline="") as file:
            left_out = {(row["where"], row["item"]) for row in csv.DictReader(file)}
    before, after = _named(stored), _named(now)
    for name, table in after.items():
        split = "train" if name == "truth" else name
        kept = np.array([(split, key) not in left_out for key in table.images.to_pylist()], np.bool_)
        if name not in before or table.subset(kept).fingerprint != before[name].fingerprint:
            return name
    return next((name for name in before if name not in after), None)


IN_MEMORY = "(tables in memory)"


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
    known = objective if isinstance(objective, ExpectedNegative) else ExpectedNegative()
    if known.class_prior is not None:
        return np.array(known.class_prior)
    mean = known.positives_per_image or positives_per_image(tables)[0]
    annotated = tables.train.matrix.counts(Label.POSITIVE)
    return np.minimum(mean * annotated / max(int(annotated.sum()), 1), 1.0)


def write_evaluation(out: Path, name: str, logits: Logits, table: LabelTable, thresholds: Thresholds) -> Evaluation:
    """Write `evaluation/<name>.json` and the logits beside it."""
    folder = out / "evaluation"
    folder.mkdir(exist_ok=True)
    result = evaluate_logits(logits, table.matrix.dense(), table.classes, thresholds.values)
    rules = [str(rule) for rule in thresholds.rules]
    write_text(folder / f"{name}.json", json.dumps({**result.to_dict(), "threshold_rules": rules}, indent=1))
    with (folder / f".{name}.npy.tmp").open("wb") as file:
        np.save(file, logits)
    (folder / f".{name}.npy.tmp").replace(folder / f"{name}.npy")
    return result


def method_record(plan: Plan) -> dict[str, Any]:
    """Name and settings of the objective, with derived values filled in."""
    settings = plan.config.objective.model_dump(mode="json")
    return {k: _plain(getattr(plan.objective, k, v)) for k, v in settings.items()} | {"name": settings["name"]}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _named(tables: Tables) -> dict[str, LabelTable]:
    return tables.splits() | ({} if tables.truth is None else {"truth": tables.truth})


def _photos(table: LabelTable) -> Photos:
    if table.root is None:
        raise ConfigError("the labels do not say where the photos are; give --images FOLDER.")
    return Photos(table.root, table.images)


def _locations(table: LabelTable) -> Locations | None:
    return table.locations if len(table.locations) else None


def _spatial(module: nn.Module) -> SpatialNet:
    assert isinstance(module, SpatialNet)
    return module
