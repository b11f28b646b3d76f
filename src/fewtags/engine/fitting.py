"""Runs of the Python interface: start or resume them, show what the commands show, and pass events on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from fewtags.config.pretrain import PretrainConfig
from fewtags.config.sections import Config
from fewtags.engine.baseline import compare
from fewtags.engine.evaluate import result_lines
from fewtags.engine.events import Event
from fewtags.engine.json_records import read_json
from fewtags.engine.machine import processes
from fewtags.engine.model import read_info
from fewtags.engine.planning import make_plan
from fewtags.engine.pretrain_plan import make_pretrain_plan
from fewtags.engine.pretrain_run import PretrainRun, open_pretrain_run, refuse_other_run
from fewtags.engine.progress import counting, is_main_process, say, watch
from fewtags.engine.runfolder import MODEL_FILE, PRETRAINING, TRAINING, RunFolder, refuse_used_folder
from fewtags.engine.tables import Tables
from fewtags.engine.teacher import match_scores
from fewtags.engine.train_record import changed_split
from fewtags.engine.train_run import BASELINE_FILE, TrainRun, open_run
from fewtags.errors import ConfigError
from fewtags.formats.scores import ScoreTable
from fewtags.photos.scan import Tick
from fewtags.table.table import LabelTable

OnEvent = Callable[[Event], None] | None
_Start = Callable[[Tick], Iterator[Event]]


def fit_tables(
    config: Config,
    tables: Tables,
    out: Path,
    *,
    cpu: bool,
    progress: bool,
    on_event: OnEvent,
    scores: ScoreTable | None = None,
) -> None:
    """Train in a run folder, or resume the run in it; with `progress`, print what `fewtags train` prints.

    `scores` are those of a teacher.

    Raises:
        ConfigError: settings do not fit; the folder has a finished run or another run.
    """
    folder = RunFolder(out, TRAINING)
    start: _Start
    if folder.has_begun and not folder.is_finished:
        opened = open_run(out, cpu=cpu)
        _refuse_other(opened, config, tables, scores)
        _say(progress, *opened.notes)

        def start(tick: Tick) -> Iterator[Event]:
            opened.photos.tick = tick
            return opened.resume()
    else:
        refuse_used_folder(out)
        with counting("checking photos", quiet=not progress) as checked:
            plan = make_plan(config, tables=tables, scores=scores, out=out, cpu=cpu, progress=checked)
        _say(progress, *plan.lines())

        def start(tick: Tick) -> Iterator[Event]:
            return TrainRun(plan, out, cpu=cpu, tick=tick).start()

    _follow(start, progress, on_event)
    if progress and is_main_process():
        say(*_result(out))


def pretrain_photos(
    config: PretrainConfig, photos: LabelTable | None, out: Path, *, cpu: bool, progress: bool, on_event: OnEvent
) -> None:
    """Pretrain in a run folder, or resume the run in it; with `progress`, print what `fewtags pretrain` prints.

    Raises:
        ConfigError: settings do not fit; the folder has a finished run or another run.
    """
    folder = RunFolder(out, PRETRAINING)
    if folder.has_begun and not folder.is_finished:
        run = open_pretrain_run(out, cpu=cpu)
        refuse_other_run(run, config, photos)
        _say(progress, *run.notes)
        _follow(lambda _: run.resume(), progress, on_event, features=False)
        return
    refuse_used_folder(out)
    with counting("checking photos", quiet=not progress) as checked:
        plan = make_pretrain_plan(config, photos=photos, cpu=cpu, processes=processes(), progress=checked)
    _say(progress, *plan.lines())
    _follow(lambda _: PretrainRun(plan, out, cpu=cpu).start(), progress, on_event, features=False)


def _follow(start: _Start, progress: bool, on_event: OnEvent, *, features: bool = True) -> None:
    """Run to the end; an error of `on_event` ends the run, which can be resumed."""
    try:
        with closing(watch(start, features=features, quiet=not progress)) as events:
            for event in events:
                if on_event is not None:
                    on_event(event)
    except KeyboardInterrupt:
        _say(progress, "interrupted; the same call continues the run.")
        raise


def _say(progress: bool, *lines: str) -> None:
    if progress:
        say(*lines)


def _result(out: Path) -> Iterator[str]:
    """Yield the result of a finished run as `fewtags train` prints it."""
    paths = sorted((out / "evaluation").glob("*.json"), key=lambda path: path.stem != "val")
    evaluations = {path.stem: read_json(path) for path in paths}
    yield from result_lines(evaluations)
    if (out / BASELINE_FILE).exists():
        yield from compare(read_json(out / BASELINE_FILE), evaluations)
    yield from read_info(out / MODEL_FILE).lines()


def _refuse_other(run: TrainRun, config: Config, tables: Tables, scores: ScoreTable | None) -> None:
    """Check that an interrupted run began with the same settings, labels and scores of a teacher."""
    if config != run.plan.config:
        raise ConfigError(
            f"{run.out} has an interrupted run with other settings; use those in {run.out / 'run.toml'}, or another "
            "folder."
        )
    if changed := changed_split(run.plan.tables, tables, run.out):
        raise ConfigError(f"{run.out} has an interrupted run on other {changed} labels; use another folder.")
    began = run.plan.teacher
    if scores is None or began is None:  # equal settings: both are None
        return
    if match_scores(scores, run.plan.tables.splits()).digest != began.digest:
        raise ConfigError(f"{run.out} has an interrupted run with other scores of a teacher; use another folder.")
