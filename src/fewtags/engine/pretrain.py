"""Pretraining: a folder of photos without labels -> a backbone that other training starts from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn

from fewtags.check.check import write_excluded
from fewtags.config.parse import dump_toml, load_toml, parse_as
from fewtags.config.pretrain import PretrainConfig, PretrainResolved, resolve_pretrain
from fewtags.engine.checkpoint import write_array
from fewtags.engine.collapse import Watch
from fewtags.engine.encoder_file import ENCODER_FILE, PRETRAIN_SETTINGS, EncoderInfo, save_encoder
from fewtags.engine.events import Ended, EpochEnded, Event, Noted
from fewtags.engine.fit import Fit, FitConfig, make_accelerator
from fewtags.engine.machine import environment, facts, keep_freed_memory
from fewtags.engine.methods import changed_source, make_objective, method_source, pretrain_settings_models
from fewtags.engine.record import (
    NO_FILES,
    forget,
    photo_sizes,
    refuse_edited,
    refuse_lost_checkpoints,
    refuse_other_sizes,
    refuse_used_folder,
    saying_what_to_do,
    settings_tree,
    sizes_path,
)
from fewtags.errors import CheckpointError, ConfigError, FewtagsError, TrainingError
from fewtags.files import write_text
from fewtags.formats.unlabelled import check_photos, unlabelled
from fewtags.nets.encoder import Encoder, create_encoder
from fewtags.objectives.base import Objective, Problem, RunFacts
from fewtags.objectives.table import DEFAULT_PRETRAIN_METHOD
from fewtags.photos.augment import ResizedCrop
from fewtags.photos.augment_moco import AugPlus
from fewtags.photos.dataset import PhotoFolder, TrainSet
from fewtags.photos.loader import Collate, EpochSampler, TrainLoader, Workers
from fewtags.photos.scan import Tick
from fewtags.stores.shard import Shard
from fewtags.table.storage import load, save
from fewtags.table.table import LabelTable


@final
@dataclass(frozen=True)
class PretrainPlan:
    """A pretraining run, ready to start.

    Attributes:
        config: what was asked for.
        resolved: what that means here.
        photos: a table without classes, of the photos that can be read.
        objective: the method, nothing left to derive.
        encoder: the net, with its initial weights.
        grid: (height, width) of its features.
        notes: what was found and derived, in words.
    """

    config: PretrainConfig
    resolved: PretrainResolved
    photos: LabelTable
    objective: Objective
    encoder: Encoder
    grid: tuple[int, int]
    notes: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """What was understood and what will be done, for people."""
        yield from self.photos.notes.messages
        yield from left_out(self.photos)
        r = self.resolved
        settings = ", ".join(f"{k} {v}" for k, v in r.objective.items() if k != "name" and v is not None)
        yield f"{len(self.photos):,} photos; method: {r.objective['name']} ({settings})"
        yield (
            f"net: {r.backbone}, weights {r.weights}, {r.size} px, features {self.encoder.features_dim} x "
            f"{self.grid[0]} x {self.grid[1]}; preset {r.preset}, seed {r.seed}"
        )
        (stage,) = r.stages
        yield (
            f"{stage.epochs} epochs, SGD, lr {stage.lr:g} {stage.schedule}, batch {r.batch_size}, "
            f"weight decay {r.weight_decay:g}"
        )
        yield from self.notes


def left_out(photos: LabelTable, most: int = 5) -> Iterator[str]:
    """The first photos that were left out, a line each."""
    excluded = photos.notes.excluded
    yield from (f"  {row.item}: {row.reason}" for row in excluded[:most])
    if len(excluded) > most:
        yield f"  and {len(excluded) - most:,} more"


def read_settings(tree: Mapping[str, Any], where: str, run: Path | None = None) -> PretrainConfig:
    """A pretraining configuration from plain values; `run` as in `methods.settings_models`.

    Raises:
        ConfigError: one line a problem.
    """
    return parse_as(PretrainConfig, tree, pretrain_settings_models(run), where, DEFAULT_PRETRAIN_METHOD)


def refuse_other_run(run: PretrainRun, config: PretrainConfig, photos: LabelTable | None) -> None:
    """Compare what is asked for with a run that is to go on.

    Raises:
        ConfigError: other settings or photos than the run began with.
    """
    try:
        refuse_edited(run.out, settings_tree(run.plan.config), settings_tree(config))
    except CheckpointError as error:
        change = str(error).partition(": ")[2].partition(";")[0]
        raise ConfigError(
            f"{run.out} is an interrupted run with other settings ({change}); ask for the same, or choose another out."
        ) from None
    if photos is not None and not set(run.plan.photos.images.to_pylist()) <= set(photos.images.to_pylist()):
        raise ConfigError(f"{run.out} is an interrupted run on other photos; give the same, or choose another out.")


def make_pretrain_plan(
    config: PretrainConfig,
    *,
    photos: LabelTable | None = None,
    cpu: bool = False,
    processes: int = 1,
    progress: Tick | None = None,
) -> PretrainPlan:
    """Find the photos, check and resolve.

    Args:
        config: the settings.
        photos: a table that is there already (Python interface), whose labels are not looked at; None reads one.
        cpu: ignore GPUs.
        processes: how many will train.
        progress: told how many photos have been looked at.

    Raises:
        DataError: no photo that can be read.
        ConfigError: settings that do not fit the data or the machine.
    """
    objective = make_objective(config.objective)  # refuses a value out of range before photos are read
    table = (
        photos if photos is not None else unlabelled(config.data.train, config.data.images, format=config.data.format)
    )
    resolve_pretrain(config, facts(len(table), 0, cpu), objective, processes)
    table = check_photos(table, decode=config.data.decode, progress=progress)
    return derive_pretrain(config, table, cpu=cpu, processes=processes)


def derive_pretrain(
    config: PretrainConfig,
    photos: LabelTable,
    *,
    cpu: bool = False,
    processes: int = 1,
    resolved: PretrainResolved | None = None,
) -> PretrainPlan:
    """The part of `make_pretrain_plan` that follows from the photos; a resumed run brings its own `resolved`.

    Raises:
        ConfigError: settings that do not fit the data or the machine.
    """
    if resolved is None:
        objective = make_objective(config.objective)
        resolved = resolve_pretrain(config, facts(len(photos), 0, cpu), objective, processes)
    _refuse_small_batches(resolved, len(photos), processes)
    encoder = create_encoder(
        resolved.backbone, weights=resolved.weights, size=resolved.size, seed=resolved.seed,
        drop_path=resolved.drop_path or None,
    )  # fmt: skip
    objective = objective_of(resolved)
    grid = encoder.grid((resolved.size, resolved.size))
    # A copy sets itself up on a device without memory, so that it refuses now what it cannot do.
    problem = _problem(photos, resolved, encoder, grid, torch.device("meta"), Shard())
    objective_of(resolved).setup(encoder, problem)
    return PretrainPlan(
        config, resolved, photos, objective, encoder, grid, tuple(_notes(resolved, objective, len(photos), processes))
    )


def _refuse_small_batches(resolved: PretrainResolved, photos: int, processes: int) -> None:
    """BatchNorm needs two images in each of its parts, and so does the spread.

    Raises:
        ConfigError: some batch of some process has fewer.
    """
    groups = int(resolved.objective.get("batchnorm_groups") or 1)
    if photos < processes:
        raise ConfigError(f"{photos} photo(s) cannot be shared by {processes} processes; add photos.")
    steps = EpochSampler(photos, resolved.batch_size, resolved.seed, 0, processes).steps
    smallest = photos // processes // steps
    if smallest < 2 * groups:
        parts = f" in each of {groups} BatchNorm parts" if groups > 1 else ""
        raise ConfigError(
            f"{photos:,} photos on {processes} process(es) with train.batch_size = {resolved.batch_size} make a batch "
            f"of {smallest}, and two images are needed{parts}; change the batch size"
            f"{', lower objective.batchnorm_groups' if groups > 1 else ''} or add photos."
        )


def objective_of(resolved: PretrainResolved) -> Objective:
    """The objective that the resolved settings describe."""
    name = resolved.objective["name"]
    return make_objective(pretrain_settings_models()[name].model_validate(resolved.objective))


def _problem(
    photos: LabelTable,
    resolved: PretrainResolved,
    encoder: Encoder,
    grid: tuple[int, int],
    device: torch.device,
    shard: Shard,
) -> Problem:
    epochs = sum(stage.epochs for stage in resolved.stages)
    return Problem(
        photos.matrix,
        grid,
        epochs=epochs,
        seed=resolved.seed,
        shard=shard,
        device=device,
        features_dim=encoder.features_dim,
        precision=resolved.precision,
    )


def _notes(resolved: PretrainResolved, objective: Objective, photos: int, processes: int) -> Iterator[str]:
    """Warnings of the objective, and a note if an epoch is a single step."""
    epochs, single = resolved.stages[0].epochs, photos <= resolved.batch_size * processes
    facts = RunFacts(samples=photos, classes=0, epochs=epochs, steps_per_epoch=1 if single else 0)
    warnings = list(objective.notes(facts))
    yield from warnings
    if single and not (warnings and epochs == 1):
        yield f"note: {photos:,} photos make one step an epoch"


@final
class PretrainRun:
    """A plan at work in a folder.

    Args:
        plan: from `make_pretrain_plan`, or from the folder itself when resuming.
        out: the run folder; made if need be.
        cpu: ignore GPUs.
        notes: what whoever goes on with it should know.
    """

    def __init__(self, plan: PretrainPlan, out: Path, *, cpu: bool = False, notes: tuple[str, ...] = ()) -> None:
        self.plan, self.out, self.notes = plan, out, notes
        self.accelerator: Accelerator = make_accelerator(plan.resolved.precision, cpu)
        self.shard = Shard(self.accelerator.process_index, self.accelerator.num_processes)
        self.watch = Watch(plan.resolved.collapse, plan.objective)

    def start(self) -> Iterator[Event]:
        """Train from the beginning.

        Raises:
            ConfigError: the folder holds a run already.
            DataError: a photo cannot be read.
            TrainingError: all images get the same vector (`train.collapse`).
        """
        refuse_used_folder(self.out)
        self._refuse_different_photos()
        made = not self.out.exists()
        try:
            with saying_what_to_do({"train": self.plan.photos}, self.out, PRETRAIN_SETTINGS):
                yield from self._train(resume=False)
        finally:
            if self.accelerator.is_main_process and not (self.out / PRETRAIN_SETTINGS).exists():
                forget(self.out, made)

    def resume(self) -> Iterator[Event]:
        """Go on from the last checkpoint, or from the beginning if there is none yet, to the same bits."""
        with saying_what_to_do({"train": self.plan.photos}, self.out, PRETRAIN_SETTINGS):
            yield from self._train(resume=True)

    def _refuse_different_photos(self) -> None:
        """Every process has looked for the photos itself; wait for all of them and compare.

        Raises:
            ConfigError: they found different ones.
        """
        if self.shard.world > 1:
            found: list[str] = [""] * self.shard.world
            dist.all_gather_object(found, self.plan.photos.fingerprint)
            if len(set(found)) > 1:
                raise ConfigError("the processes see different photos; give all of them the same folder.")

    def _train(self, resume: bool) -> Iterator[Event]:
        keep_freed_memory()
        plan, r, device = self.plan, self.plan.resolved, self.accelerator.device
        encoder = plan.encoder.to(device)
        if r.sync_batchnorm and self.accelerator.num_processes > 1:
            encoder = _synchronised(encoder)
        config = FitConfig(
            r.stages, r.seed, r.weight_decay, clip_norm=r.clip_norm, precision=r.precision,
            checkpoint_every_steps=r.checkpoint_every_steps, optimizer="sgd",
        )  # fmt: skip
        problem = _problem(plan.photos, r, encoder, plan.grid, device, self.shard)
        fit = Fit(encoder, plan.objective, self._source(), config, problem, accelerator=self.accelerator, out=self.out)
        if not resume:
            if self.accelerator.is_main_process:
                write_pretrain_record(plan, self.out)
            self.accelerator.wait_for_everyone()
        for event in fit.run(resume):
            if isinstance(event, Ended):
                self._finish(encoder, fit, event)
            yield event
            if isinstance(event, EpochEnded) and (said := self.watch.look(fit.state.history)):
                if r.collapse == "stop":
                    cure = f'to go on regardless, set collapse = "warn" in {self.out / PRETRAIN_SETTINGS} and resume'
                    raise TrainingError(f"{said} Or, {cure}.")
                yield Noted(said)

    def _source(self) -> TrainLoader:
        plan, r = self.plan, self.plan.resolved
        a, pre = r.augment, plan.encoder.preprocessing
        change = AugPlus(
            a.brightness, a.contrast, a.saturation, a.hue, a.jitter_share, a.grey_share, a.blur_share
        )  # fmt: skip
        root = plan.photos.root
        assert root is not None
        data = TrainSet(
            PhotoFolder(root, plan.photos.images),
            plan.photos.matrix,
            ResizedCrop(r.size, (a.min_area, 1.0), flip=a.flip),
            r.seed,
            jitter=change,
            second_view=change,
        )
        sampler = EpochSampler(len(plan.photos), r.batch_size, r.seed, self.shard.rank, self.shard.world)
        device: torch.device = self.accelerator.device
        workers = Workers(r.workers, pin_memory=device.type == "cuda")
        return TrainLoader(data, sampler, Collate(pre.mean, pre.std), workers, device)

    def _finish(self, encoder: Encoder, fit: Fit, ended: Ended) -> None:
        """Write what was found near what, and the encoder, which makes the run a finished one."""
        neighbours = fit.parts.get("neighbours")
        if neighbours is not None:
            ids = self.shard.gather(neighbours.state_dict()["ids"], len(self.plan.photos))
            if self.accelerator.is_main_process:
                write_array(self.out / "neighbours.npy", ids.cpu().numpy())
        if self.accelerator.is_main_process:
            r, pre = self.plan.resolved, self.plan.encoder.preprocessing
            method = {key: value for key, value in r.objective.items() if value is not None}
            info = EncoderInfo(
                r.backbone, r.size, pre.mean, pre.std, method, len(self.plan.photos), ended.epochs, version("fewtags")
            )
            save_encoder(self.out / ENCODER_FILE, encoder, info)
        self.accelerator.wait_for_everyone()


def _synchronised(encoder: Encoder) -> Encoder:
    converted: Any = nn.SyncBatchNorm.convert_sync_batchnorm(encoder.backbone)
    encoder.backbone = converted
    return encoder


def write_pretrain_record(plan: PretrainPlan, out: Path) -> None:
    """Write everything that is known before training; the settings, which make the folder a run, come last."""
    (out / "tables").mkdir(parents=True)
    root = plan.photos.root
    assert root is not None
    save(plan.photos.with_root(root.absolute()), out / "tables" / "train.parquet", keep_root=True)
    write_array(sizes_path(out, "train"), photo_sizes(plan.photos))
    write_excluded(plan.photos.notes.excluded, out / "excluded.csv")
    origin = plan.encoder.origin
    record = {
        **environment(),
        "working_directory": str(Path.cwd()),
        "fingerprints": {"train": plan.photos.fingerprint},
        "weights": None if origin is None else vars(origin),
        "method_source": method_source(plan.objective),
        "grid": plan.grid,
        "notes": [*plan.photos.notes.messages, *plan.notes],
        "settings": {PRETRAIN_SETTINGS: settings_tree(plan.config), "resolved.toml": settings_tree(plan.resolved)},
    }
    write_text(out / "environment.json", json.dumps(record, indent=1))
    write_text(out / "resolved.toml", dump_toml(plan.resolved))
    write_text(out / PRETRAIN_SETTINGS, dump_toml(plan.config))


def open_pretrain_run(out: Path, *, cpu: bool = False) -> PretrainRun:
    """The pretraining run in a folder, ready to `resume`, with the photos and settings that it began with.

    Photos that have come into the folder since play no part.

    Raises:
        CheckpointError: no run there, or it is finished; or settings, photos, initial weights or checkpoints are not
            what it left.
    """
    if (out / ENCODER_FILE).exists():
        raise CheckpointError(f"{out} is finished; its encoder is {out / ENCODER_FILE}.")
    if not (out / PRETRAIN_SETTINGS).exists():
        raise CheckpointError(f"{out} is no pretraining run; start one with: fewtags pretrain PHOTOS --out FOLDER")
    config = read_settings(load_toml(out / PRETRAIN_SETTINGS), str(out / PRETRAIN_SETTINGS), out)
    try:
        record = json.loads((out / "environment.json").read_text("utf-8"))
        resolved = PretrainResolved.model_validate(load_toml(out / "resolved.toml"))
        began = {name: dict(record["settings"][name]) for name in (PRETRAIN_SETTINGS, "resolved.toml")}
        photos = load(out / "tables" / "train.parquet")
        fingerprint, weights = record["fingerprints"]["train"], record["weights"]
        folder = Path(record["working_directory"])
    except (OSError, ValueError, TypeError, KeyError, FewtagsError) as error:
        raise CheckpointError(f"the record of the run in {out} is damaged ({error}); start a new run.") from None
    # What to do about a collapse may be changed; it changes no bit.
    began[PRETRAIN_SETTINGS]["train"] = {**began[PRETRAIN_SETTINGS]["train"], "collapse": config.train.collapse}
    refuse_edited(out / PRETRAIN_SETTINGS, began[PRETRAIN_SETTINGS], settings_tree(config))
    refuse_edited(out / "resolved.toml", began["resolved.toml"], settings_tree(resolved))
    if photos.fingerprint != fingerprint:
        raise CheckpointError(
            f"{out / 'tables' / 'train.parquet'} is not what the run began with; restore it, or start a new run."
        )
    resolved = resolved.model_copy(update={"collapse": config.train.collapse})
    refuse_other_sizes({"train": photos}, out)
    note = refuse_lost_checkpoints(out)
    if resolved.weights not in NO_FILES:
        resolved = resolved.model_copy(update={"weights": str(folder / resolved.weights)})
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    plan = derive_pretrain(config, photos, cpu=cpu, processes=processes, resolved=resolved)
    origin = plan.encoder.origin
    if weights is not None and weights["fingerprint"] != (None if origin is None else origin.fingerprint):
        raise CheckpointError(f"the initial weights {resolved.weights} are not the ones that {out} began with.")
    notes = (note, changed_source(plan.objective, record))
    return PretrainRun(plan, out, cpu=cpu, notes=tuple(line for line in notes if line is not None))
