"""What decides the preset of a run: data, machine and method; and the settings that follow from it."""

from __future__ import annotations

from fewtags.config.presets import MOST_CELLS, Facts, Resolved, resolve
from fewtags.config.search import candidates, own_candidates, starting
from fewtags.config.sections import Config
from fewtags.engine.encoder_file import compared_encoders
from fewtags.engine.machine import facts
from fewtags.engine.methods import derive_objective, settled
from fewtags.engine.random_blanks import why_not_told
from fewtags.engine.tables import Tables
from fewtags.labels import Label
from fewtags.metrics.counts import FAR, share_by_known
from fewtags.objectives.base import RunFacts
from fewtags.objectives.table import DEFAULT_METHOD
from fewtags.table.answered import has_answers
from fewtags.table.table import LabelTable


def resolve_settings(config: Config, found: Facts) -> Resolved:
    """Derive what the user left open; with a search, the settings are those of its first candidate."""
    resolved = resolve(config, found)
    encoders = compared_encoders(config.search.starts, config.model.backbone)
    asked = candidates(config, resolved, found, encoders)
    return starting(resolved, asked or own_candidates(config, resolved, found))


def run_facts(config: Config, tables: Tables, cpu: bool) -> Facts:
    """Collect what `resolve` needs to know about labels, machine and method."""
    found = preset_facts(config, tables.train, cpu)
    if not _is_partial(tables.train):
        return found
    return found.model_copy(update={"partial": True, "untold": why_not_told(tables.val.matrix.dense())})


def preset_facts(config: Config, train: LabelTable, cpu: bool) -> Facts:
    """Collect what decides the preset: `run_facts` without what is known about unknown labels."""
    answers = has_answers(train)
    found = facts(len(train), len(train.classes), cpu)
    about = method_facts(config, train, answers, DEFAULT_METHOD)
    return found.model_copy(update={"answers": answers} | about)


def method_facts(config: Config, train: LabelTable, answers: bool, method: str) -> dict[str, bool]:
    """Return the part of `Facts` that depends on the method, if the settings of the user do not name another one."""
    # The question is whether a head can be solved, so settings that are open are those of a run that solves it.
    solved = RunFacts(
        samples=len(train),
        classes=len(train.classes),
        boxes=len(train.locations),
        head_solved=True,
        teacher=config.data.teacher is not None,
        answer_weights=answers,
    )
    objective, _ = derive_objective(settled(config.objective, config.objective.name or method), solved)
    return {
        "solvable": objective.solvable,
        "solvable_warmup": objective.solvable_warmup,
        "needs_maps": objective.needs_maps,
        "open_answer_weight": objective.open_answer_weight,
    }


def _is_partial(train: LabelTable) -> bool:
    """See `Facts.partial`; False for tables that are too large to solve a head for."""
    labels = train.matrix
    known = {state: int(labels.counts(state).sum()) for state in Label}
    if known[Label.UNKNOWN] == 0 or not known[Label.NEGATIVE] >= known[Label.POSITIVE] > 0:
        return False
    if labels.shape[0] * labels.shape[1] > MOST_CELLS:
        return False
    found = share_by_known(labels.dense())
    return found is None or abs(found.z) < FAR
