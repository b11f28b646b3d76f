"""Pretraining in a run folder: training, the encoder file; and opening a run to resume it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn

from fewtags.check.check import write_excluded
from fewtags.config.changes import changed_setting, settings_tree
from fewtags.config.pretrain import PretrainConfig, PretrainResolved
from fewtags.engine.autocast import repeatable
from fewtags.engine.checkpoint import write_array
from fewtags.engine.collapse import Watch
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.encoder_file import EncoderInfo, save_encoder
from fewtags.engine.events import Ended, EpochEnded, Event, Noted
from fewtags.engine.fit import Fit, FitConfig
from fewtags.engine.machine import environment, prepare_process, processes
from fewtags.engine.methods import changed_source, method_source, read_pretrain_settings
from fewtags.engine.photo_cache import make_cache
from fewtags.engine.plan import make_problem
from fewtags.engine.pretrain_plan import PretrainPlan, derive_pretrain, no_labels
from fewtags.engine.runfolder import PRETRAINING, RunFolder
from fewtags.engine.start_worth import PHOTOS, PretrainingWorth, sample, shared_classes, write_worth
from fewtags.errors import ConfigError, TrainingError
from fewtags.metrics.neighbours import NeighbourReport
from fewtags.nets.encoder import Encoder
from fewtags.photos.augment import ResizedCrop, WholeImage
from fewtags.photos.augment_moco import AugPlus
from fewtags.photos.dataset import EvalSet, PhotoFolder, TrainSet
from fewtags.photos.loader import Collate, EpochSampler, EvalLoader, TrainLoader
from fewtags.photos.workers import Workers
from fewtags.stores.shard import Shard
from fewtags.table.table import LabelTable


@final
class PretrainRun:
    """Executes a plan in a run folder; `notes` are what the user should know before the run is resumed."""

    def __init__(self, plan: PretrainPlan, out: Path, *, cpu: bool = False, notes: tuple[str, ...] = ()) -> None:
        self.plan, self.out, self.notes = plan, out, notes
        self.folder = RunFolder(out, PRETRAINING)
        self.accelerator: Accelerator = make_accelerator(plan.resolved.precision, cpu)
        self.shard = Shard(self.accelerator.process_index, self.accelerator.num_processes)
        self.watch = Watch(plan.resolved.collapse, plan.objective)

    def start(self) -> Iterator[Event]:
        """Train from the first epoch, see `RunFolder.start`.

        Raises:
            TrainingError: all images get the same vector (`train.collapse`).
        """
        return self.folder.start(self._train, {"train": self.plan.photos}, self.accelerator)

    def resume(self) -> Iterator[Event]:
        """Continue from the last checkpoint, see `RunFolder.resume`."""
        return self.folder.resume(self._train, {"train": self.plan.photos}, self.accelerator)

    def _refuse_different_photos(self) -> None:
        """Raise ConfigError if the processes, which look for photos each by itself, found different ones."""
        if self.shard.world > 1:
            found: list[str] = [""] * self.shard.world
            dist.all_gather_object(found, self.plan.photos.fingerprint)
            if len(set(found)) > 1:
                raise ConfigError("the processes see different photos; give all of them the same folder.")

    def _train(self, resume: bool) -> Iterator[Event]:
        if not resume:
            self._refuse_different_photos()
        prepare_process()
        plan, r, device = self.plan, self.plan.resolved, self.accelerator.device
        encoder = plan.encoder.to(device)
        before = self._shared_classes()  # with the initial weights, also when the run is resumed
        if r.sync_batchnorm and self.accelerator.num_processes > 1:
            converted: Any = nn.SyncBatchNorm.convert_sync_batchnorm(encoder.backbone)
            encoder.backbone = converted
        given = {f.name: getattr(r, f.name) for f in fields(FitConfig) if f.name in PretrainResolved.model_fields}
        config = FitConfig(**given, optimizer="sgd")
        unlabelled = no_labels(plan.photos)
        problem = make_problem(r, unlabelled, encoder.features_dim, plan.grid, device, self.shard)
        problem = replace(problem, truth=plan.photos.matrix if len(plan.photos.classes) else None)
        source = self._source()
        fit = Fit(encoder, plan.objective, source, config, problem, accelerator=self.accelerator, out=self.out)
        if not resume:
            if self.accelerator.is_main_process:
                write_pretrain_record(plan, self.out)
            self.accelerator.wait_for_everyone()
        hinted = r.objective["name"] not in ("mls", "nnclr")  # methods that learn from neighbours
        for event in fit.run(resume):
            worth = None
            if isinstance(event, Ended):
                worth = self._worth(before)
                self._finish(encoder, fit, event)
            yield event
            if worth is not None:
                yield Noted(str(worth), warning=False)
            if isinstance(event, EpochEnded) and (problem_text := self.watch.look(fit.state.history)):
                if r.collapse == "stop":
                    settings = self.out / self.folder.kind.settings
                    raise TrainingError(
                        f'{problem_text} To continue regardless, set collapse = "warn" in {settings} and resume.'
                    )
                yield Noted(problem_text)
            if isinstance(event, EpochEnded) and not hinted and (hint := purity_hint(event.record)):
                hinted = True
                yield Noted(hint)

    def _shared_classes(self) -> NeighbourReport | None:
        """Measure the encoder on photos with labels; None without them, and on other processes than the main one."""
        plan, device = self.plan, self.accelerator.device
        table = sample(plan.photos, plan.resolved.seed) if len(plan.photos.classes) else None
        if table is None or not self.accelerator.is_main_process:
            return None
        pre = plan.encoder.preprocessing
        photos = EvalSet(PhotoFolder(table.require_root(), table.images), table.matrix, WholeImage(plan.resolved.size))
        workers = Workers(plan.resolved.workers, pin_memory=device.type == "cuda")
        loader = EvalLoader(photos, 16, Collate(pre.mean, pre.std), workers, device=device)
        with repeatable(device):
            found = shared_classes(plan.encoder, table, loader, device)
        return found if found.images else None

    def _worth(self, before: NeighbourReport | None) -> PretrainingWorth | None:
        """Measure the trained encoder as before training, and write both into the run folder."""
        after = None if before is None else self._shared_classes()
        if before is None or after is None:
            return None
        photos = min(PHOTOS, len(self.plan.photos))
        worth = PretrainingWorth(photos=photos, before=before.precision, after=after.precision, chance=before.chance)
        write_worth(self.out, worth)
        return worth

    def _source(self) -> TrainLoader:
        plan, r = self.plan, self.plan.resolved
        a, pre = r.augment, plan.encoder.preprocessing
        # The sigma of the blur is not a setting.
        pixels = AugPlus(**{f.name: getattr(a, f.name) for f in fields(AugPlus) if f.name in type(a).model_fields})
        root = plan.photos.root
        assert root is not None
        data = TrainSet(
            photos=PhotoFolder(root, plan.photos.images),
            labels=no_labels(plan.photos),
            policy=ResizedCrop(r.size, (a.min_area, 1.0), flip=a.flip),
            seed=r.seed,
            jitter=pixels,
            second_view=pixels,
            cache=make_cache(r.photo_cache, r.size),
        )
        sampler = EpochSampler(len(plan.photos), r.batch_size, r.seed, self.shard.rank, self.shard.world)
        device: torch.device = self.accelerator.device
        workers = Workers(r.workers, pin_memory=device.type == "cuda")
        return TrainLoader(data, sampler, Collate(pre.mean, pre.std), workers, device)

    def _finish(self, encoder: Encoder, fit: Fit, ended: Ended) -> None:
        """Write the nearest neighbours that the method found; then the encoder, with which the run is finished."""
        neighbours = fit.parts.get("neighbours")
        if neighbours is not None:
            ids = self.shard.gather(neighbours.state_dict()["ids"], len(self.plan.photos))
            if self.accelerator.is_main_process:
                write_array(self.out / "neighbours.npy", ids.cpu().numpy())
        if self.accelerator.is_main_process:
            r, pre = self.plan.resolved, self.plan.encoder.preprocessing
            info = EncoderInfo(
                backbone=r.backbone,
                size=r.size,
                mean=pre.mean,
                std=pre.std,
                method={key: value for key, value in r.objective.items() if value is not None},
                images=len(self.plan.photos),
                epochs=ended.epochs,
                version=version("fewtags"),
            )
            save_encoder(self.out / self.folder.kind.result, encoder, info)
        self.accelerator.wait_for_everyone()


def purity_hint(record: Mapping[str, float | int | str]) -> str:
    """Return a warning if the nearest photos share a class hardly more often than random ones; "" otherwise.

    Near chance: less than a tenth of the way from chance to 1.
    """
    purity, chance = (float(record.get(f"state/{key}", 1.0)) for key in ("neighbour_purity", "neighbour_chance"))
    if purity - chance >= 0.1 * (1 - chance):
        return ""
    return (
        f"{100 * purity:.0f} % of the nearest photos share a class, by chance {100 * chance:.0f} %: neighbours cannot "
        "help yet, if labels or folder names are what you want to learn. Compare with --method moco, or set a later "
        "objective.neighbour_from (mls)"
    )


def write_pretrain_record(plan: PretrainPlan, out: Path) -> None:
    """Write what is known about a run before it trains."""
    out.mkdir(parents=True, exist_ok=True)
    write_excluded(plan.photos.notes.excluded, out / "excluded.csv")
    origin = plan.encoder.origin
    facts = {
        **environment(),
        "working_directory": str(Path.cwd()),
        "fingerprints": {"train": plan.photos.fingerprint},
        "weights": None if origin is None else vars(origin),
        "method_source": method_source(plan.objective),
        "grid": plan.grid,
        "notes": [*plan.photos.notes.messages, *plan.notes],
    }
    RunFolder(out, PRETRAINING).write_record(plan.config, plan.resolved, {"train": plan.photos}, facts)


def open_pretrain_run(out: Path, *, cpu: bool = False) -> PretrainRun:
    """Return the pretraining run in a folder, ready to `resume`, with the photos and settings that it began with.

    Photos that were added to the folder since are not used.

    Raises:
        CheckpointError: there is no run, or it is finished; or settings, photos, initial weights or checkpoints have
            changed.
    """
    folder = RunFolder(out, PRETRAINING)
    # How to react to a collapse may be changed: it does not change the result.
    record = folder.read_record(
        lambda tree, file: read_pretrain_settings(tree, file, out), PretrainResolved, editable=("train.collapse",)
    )
    photos = record.tables["train"]
    folder.refuse_changed_photos({"train": photos})
    note = folder.refuse_lost_checkpoints()
    weights = record.locate_weights(record.resolved.weights)
    located = {"weights": weights, "photo_cache": record.locate_cache(record.resolved.photo_cache)}
    resolved = record.resolved.model_copy(update={"collapse": record.settings.train.collapse, **located})
    plan = derive_pretrain(record.settings, photos, cpu=cpu, processes=processes(), resolved=resolved, going_on=True)
    folder.refuse_other_weights(weights, plan.encoder.origin, record.environment["weights"])
    notes = (note, changed_source(plan.objective, record.environment))
    return PretrainRun(plan, out, cpu=cpu, notes=tuple(line for line in notes if line is not None))


def refuse_other_run(run: PretrainRun, config: PretrainConfig, photos: LabelTable | None) -> None:
    """Compare the requested settings and photos with those of an interrupted run.

    Raises:
        ConfigError: they differ.
    """
    if change := changed_setting(settings_tree(run.plan.config), settings_tree(config)):
        raise ConfigError(
            f"{run.out} is an interrupted run with other settings ({change}); give the same settings, or choose "
            "another out."
        )
    if photos is not None and not set(run.plan.photos.images.to_pylist()) <= set(photos.images.to_pylist()):
        raise ConfigError(
            f"{run.out} is an interrupted run on other photos; give the same photos, or choose another out."
        )
