"""What decides the preset of a run: data, machine and method; and the settings that follow from it."""

from __future__ import annotations

from fewtags.config.presets import MOST_CELLS, Facts, Resolved, resolve
from fewtags.config.search import candidates, own_candidates, starting
from fewtags.config.sections import Config
from fewtags.engine.encoder_file import compared_encoders
from fewtags.engine.machine import facts
from fewtags.engine.methods import derive_objective, settled
from fewtags.engine.random_blanks import why_not_told
from fewtags.labels import Label
from fewtags.metrics.counts import FAR, share_by_known
from fewtags.objectives.base import RunFacts
from fewtags.objectives.table import DEFAULT_METHOD
from fewtags.table.answered import answered
from fewtags.table.table import LabelTable


def resolve_settings(config: Config, found: Facts) -> Resolved:
    """Derive what the user left open; with a search, the settings are those of its first candidate."""
    resolved = resolve(config, found)
    encoders = compared_encoders(config.search.starts, config.model.backbone)
    asked = candidates(config, resolved, found, encoders)
    return starting(resolved, asked or own_candidates(config, resolved, found))


def preset_facts(
    config: Config, train: LabelTable, cpu: bool, method_name: str = DEFAULT_METHOD, val: LabelTable | None = None
) -> Facts:
    """Collect what `resolve` needs to know about data, machine and method, by default that of the configuration.

    `val` are the labels of validation, for `Facts.tells_random`.
    """
    method = settled(config.objective, config.objective.name or method_name)
    # The question is whether a head can be solved, so settings that are open are those of a run that solves it.
    answers = answered(train) is not None
    solved = RunFacts(
        samples=len(train),
        classes=len(train.classes),
        boxes=len(train.locations),
        head_solved=True,
        teacher=config.data.teacher is not None,
        answer_weights=answers,
    )
    objective, _ = derive_objective(method, solved)
    found = facts(len(train), len(train.classes), cpu)
    asked = ("solvable", "solvable_warmup", "needs_maps", "open_answer_weight")
    partial = _is_partial(train)
    about = {"answers": answers, "partial": partial}
    if partial and val is not None:
        about["tells_random"] = not why_not_told(val.matrix.dense())
    return found.model_copy(update=about | {key: getattr(objective, key) for key in asked})


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
