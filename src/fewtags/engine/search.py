"""Try settings before training: each candidate solves a head on a frozen trunk, and validation compares them.

The features of an input size are computed once for all candidates that share them, and those of the best are kept for
training. Every trial is recorded in the run folder as soon as it is done, so an interrupted search continues.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
from accelerate import Accelerator
from pydantic import BaseModel, ConfigDict
from torch import nn

from fewtags.config.parse import load_toml
from fewtags.config.presets import Candidate
from fewtags.config.search import described, trial
from fewtags.engine.checkpoint import reading_record, write_array
from fewtags.engine.evaluate import Logits, epoch_metrics
from fewtags.engine.events import Noted
from fewtags.engine.plan import RunPlan, derive
from fewtags.engine.planned_fit import make_fit
from fewtags.engine.planning import settings_of_best
from fewtags.engine.random_blanks import why_not_random
from fewtags.engine.run_photos import RunPhotos, as_spatial
from fewtags.engine.runfolder import SEARCH_FILE
from fewtags.errors import CheckpointError, FewtagsError
from fewtags.files import write_text
from fewtags.metrics.intervals import difference_interval
from fewtags.photos.scan import Tick

SEARCH_FOLDER = "search"
CURE = f"delete {SEARCH_FILE}, and everything is tried again, or start a new run"
CHOSEN_CURE = "restore it, or delete it: the run keeps its choice, and its report does not show what was tried"


@final
class Trial(BaseModel):
    """What a candidate reached.

    Attributes:
        metric: of validation, "mAP" or "pessimistic_mAP" (unknown counted as absent).
        value: of the metric in 0..1 with the best strength of regularisation; None if it is not known.
        logit_variance: that strength.
        seconds: wall-clock time, with the features.
        weights: sha256 of the initial weights, see `Origin`; "" in records of older versions.
        left_out: why the candidate cannot be the best; "" if it can.
    """

    model_config = ConfigDict(frozen=True)

    candidate: Candidate
    metric: str
    value: float | None
    logit_variance: float
    seconds: float
    weights: str = ""
    left_out: str = ""


@final
class SearchRecord(BaseModel):
    """What `search.json` has.

    Attributes:
        trials: in the order of the candidates.
        chosen: number of the best; None while some are open.
        why: how sure the choice is, in one sentence.
        record: what `environment.json` has to have after the choice, see `RunFolder.settle_record`.
    """

    model_config = ConfigDict(frozen=True)

    trials: tuple[Trial, ...] = ()
    chosen: int | None = None
    why: str = ""
    record: dict[str, Any] = {}


@final
class Search:
    """Tries the candidates of a plan. After `run`, `plan` is that of the best, with its `photos` if they are computed.

    `tick` is called with the numbers of photos done and to do.
    """

    def __init__(
        self, plan: RunPlan, out: Path, accelerator: Accelerator, *, cpu: bool = False, tick: Tick | None = None
    ) -> None:
        self.begun, self.out, self.accelerator, self.cpu, self.tick = plan, out, accelerator, cpu, tick
        self.candidates = plan.resolved.search
        self.record = read_search(out) or SearchRecord()
        with reading_record(out / SEARCH_FILE, CURE):
            _refuse_others(self.record, self.candidates)
        self.plan = plan
        self._kept: RunPhotos | None = None  # of the best candidate so far
        self._last: RunPhotos | None = None
        self._done = 0

    def run(self) -> Iterator[Noted]:
        """Do the trials that are not recorded, and choose; yield a line about each."""
        for number in range(len(self.record.trials), len(self.candidates)):
            found, logits = self._try(number)
            write_array(self._scores(number), logits)
            self.record = self.record.model_copy(update={"trials": (*self.record.trials, found)})
            self._write()
            if best_of(self.record.trials) == number:
                self._kept = self._last
            yield Noted(f"search: {self._line(number)}", warning=False)
        self._last = None
        chosen = best_of(self.record.trials)
        why = self._why(chosen)
        self.record = self.record.model_copy(update={"chosen": chosen, "why": why})
        self.plan = self._derive(settings_of_best(self.begun, self.candidates[chosen]))
        self._refuse_other_weights(self.record.trials[chosen])
        yield Noted(f"search: {why}", warning=False)

    def notes(self, begun: Sequence[str]) -> tuple[str, ...]:
        """Return the notes of the chosen plan, after those of the run that belong to no candidate.

        `begun` are the notes that the run began with; those about its first candidate are left out.
        """
        first = self._derive(self.begun.resolved).notes
        return (*(note for note in begun if note not in (*first, *self.plan.notes)), *self.plan.notes)

    def photos(self) -> RunPhotos:
        """Return the photos of the chosen plan, with the features that its trial computed."""
        photos = RunPhotos(self.plan, self.accelerator, self.tick)
        if self._kept is not None:
            photos.take(self._kept)
        return photos

    def finish(self, record: Mapping[str, Any]) -> None:
        """Write the choice; `record` is what `environment.json` will have."""
        self.record = self.record.model_copy(update={"record": dict(record)})
        self._write()

    def _write(self) -> None:
        write_text(self.out / SEARCH_FILE, self.record.model_dump_json(indent=1))

    def _scores(self, number: int) -> Path:
        (self.out / SEARCH_FOLDER).mkdir(exist_ok=True)
        return self.out / SEARCH_FOLDER / f"trial-{number:03d}.npy"

    def _derive(self, resolved: Any, *, measured: bool = True) -> RunPlan:
        """Derive a plan; without `measured`, it has no photos to test on."""
        plan = self.begun
        tables = plan.tables if measured else replace(plan.tables, test=None)
        return derive(
            plan.config, tables, plan.report, cpu=self.cpu, resolved=resolved, teacher=plan.teacher, going_on=True
        )

    def _try(self, number: int) -> tuple[Trial, Logits]:
        began, candidate = time.perf_counter(), self.candidates[number]
        plan = self._derive(trial(self.begun.resolved, candidate), measured=False)
        photos = RunPhotos(plan, self.accelerator, self._counted(number))
        for other in (self._last, self._kept):
            if other is not None:
                photos.take(other)
        photos.compute()
        self._last = photos
        labels, best = plan.tables.val.matrix.dense(), -math.inf
        shown: Logits = np.zeros(labels.shape, np.float32)

        def validate(module: nn.Module) -> Mapping[str, float]:
            nonlocal best, shown
            logits = photos.logits(as_spatial(module), "val", moved=False)
            metrics = epoch_metrics(logits, labels)
            value = metrics.get("mAP", metrics.get("pessimistic_mAP", math.nan))
            if value > best:
                best, shown = value, logits
            return metrics

        fit = make_fit(photos, validate=validate)
        for _ in fit.run():
            pass
        history = fit.state.history
        at = len(history) - 1 if fit.state.best_epoch is None else fit.state.best_epoch
        found = Trial(
            candidate=candidate,
            metric="mAP" if "val/mAP" in history[at] else "pessimistic_mAP",
            value=fit.state.best_value,
            logit_variance=float(history[at]["logit_variance"]),
            seconds=round(time.perf_counter() - began, 2),
            weights=_fingerprint(plan),
            left_out=why_not_random(shown, labels) if candidate.for_random_blanks else "",
        )
        return found, shown

    def _refuse_other_weights(self, tried: Trial) -> None:
        """Raise CheckpointError if the best does not start from the weights that its trial had, before a resume."""
        if tried.weights not in ("", _fingerprint(self.plan)):
            raise CheckpointError(
                f"the initial weights {self.plan.resolved.weights} are not those that {self.out} tried; restore them, "
                f"or {CURE}."
            )

    def _counted(self, number: int) -> Tick | None:
        """Return the tick of a trial, which counts the photos of all trials that are left."""
        if self.tick is None:
            return None
        began, tick, left = self._done, self.tick, len(self.candidates) - number

        def counted(done: int, total: int) -> None:
            self._done = began + done
            tick(began + done, began + total * left)

        return counted

    def _line(self, number: int) -> str:
        found = self.record.trials[number]
        name = described(found.candidate, self.candidates)
        if found.value is None:
            return f"{name} ({found.seconds:.0f} s)"
        absent = "" if found.metric == "mAP" else ", unknown counted as absent"
        left_out = f", left out: {found.left_out}" if found.left_out else ""
        return f"{name}: val mAP {100 * found.value:.1f}{absent} ({found.seconds:.0f} s){left_out}"

    def _why(self, chosen: int) -> str:
        trials = self.record.trials
        name = described(trials[chosen].candidate, self.candidates)
        if trials[chosen].value is None:
            return f"{name} is trained, the first one, since validation cannot compare them"
        others = [n for n in range(len(trials)) if n != chosen and not trials[n].left_out]
        if not others:
            return f"{name} is trained, the only one" + (" that is left" if len(trials) > 1 else "")
        other = 0 if chosen and 0 in others else others[best_of(tuple(trials[n] for n in others))]
        low, high = self._interval(other, chosen)
        beside = described(trials[other].candidate, self.candidates)
        value = 100 * ((trials[chosen].value or 0.0) - (trials[other].value or 0.0))
        sure = f"{value:+.1f} mAP on validation against {beside}"
        if math.isfinite(low):
            sure += f", 95 % interval {100 * low:+.1f} to {100 * high:+.1f}"
            sure += ", so not clearly better" if low <= 0 else ""
        return f"{name} is trained ({sure})"

    def _interval(self, first: int, second: int) -> tuple[float, float]:
        """Return the interval of the difference of two trials' mAP over the choice of photos; nan if not known."""
        if self.record.trials[first].metric != "mAP":
            return math.nan, math.nan
        labels = self.begun.tables.val.matrix.dense()
        scores = []
        for number in (first, second):
            with reading_record(self._scores(number), CURE):
                found = np.load(self._scores(number), allow_pickle=False)
                if found.shape != labels.shape or found.dtype != np.float32 or np.isnan(found).any():
                    raise ValueError(
                        f"it has {found.dtype} {list(found.shape)}, not float32 {list(labels.shape)} without NaN"
                    )
                scores.append(found.astype(np.float64))
        return difference_interval(scores[0], scores[1], labels)


def _fingerprint(plan: RunPlan) -> str:
    return "" if plan.net.origin is None else plan.net.origin.fingerprint


def best_of(trials: tuple[Trial, ...]) -> int:
    """Return the number of the best trial; of equal ones the first.

    >>> one = Candidate(backbone="a", weights="none", size=32, pool="mean", method="bce")
    >>> make = lambda value: Trial(candidate=one, metric="mAP", value=value, logit_variance=1, seconds=0)
    >>> best_of((make(None), make(0.5), make(0.5)))
    1
    """
    values = [-2.0 if found.left_out else -1.0 if found.value is None else found.value for found in trials]
    return values.index(max(values))


def is_open(out: Path) -> bool:
    """Whether the search of a run folder has not chosen yet."""
    try:
        return bool(load_toml(out / "resolved.toml").get("search"))
    except (OSError, FewtagsError):  # named by whatever reads it next
        return False


def _refuse_others(record: SearchRecord, candidates: tuple[Candidate, ...]) -> None:
    """Raise ValueError if the trials of a record are not those of the first candidates."""
    if len(record.trials) > len(candidates):
        raise ValueError(f"it has {len(record.trials)} trials, and the run tries {len(candidates)}")
    for number, (found, asked) in enumerate(zip(record.trials, candidates, strict=False), start=1):
        # A file of weights has an absolute path in a run that is resumed.
        if found.candidate.model_copy(update={"weights": asked.weights}) != asked:
            raise ValueError(f"trial {number} is not what the run tries there")


def compared(record: SearchRecord | None) -> str:
    """Say what a search means for the choice of the model, as the end of a sentence; "" if it compared nothing."""
    if record is None or len(record.trials) < 2:
        return ""
    if record.trials[record.chosen or 0].value is None:
        return f"; the first of {len(record.trials)}, which validation could not compare"
    left = sum(not found.left_out for found in record.trials)
    if left < len(record.trials):
        return f"; the {'best' if left > 1 else 'only one'} of {len(record.trials)} tried first that was not left out"
    return f"; the best of {len(record.trials)} tried first"


def read_search(out: Path) -> SearchRecord | None:
    """Read what a run folder has of its search; None if there was none.

    Raises:
        CheckpointError: the file is damaged.
    """
    path = out / SEARCH_FILE
    if not path.exists():
        return None
    with reading_record(path, CURE if is_open(out) else CHOSEN_CURE):
        return SearchRecord.model_validate(json.loads(path.read_text("utf-8")))
