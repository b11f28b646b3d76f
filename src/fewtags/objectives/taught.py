"""Base of methods that can learn from a teacher beside the labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

from torch import Tensor

from fewtags.errors import ConfigError
from fewtags.labels import Batch
from fewtags.losses.distillation import distillation
from fewtags.objectives.base import Derived, Objective, Problem, RunFacts, StoreMemory
from fewtags.objectives.checks import Range
from fewtags.stores.teacher import TeacherScores, teacher_bytes
from fewtags.text import flag


@dataclass(kw_only=True)
class TaughtObjective(Objective):
    """With a teacher (`fewtags train --teacher`), the loss is L + teacher_weight D.

    L is the loss of the method, and D the distillation: the cross-entropy of unknown labels with the teacher's scores
    as soft labels (Hinton et al., "Distilling the Knowledge in a Neural Network", 2015, for every label apart and
    without a temperature). Known labels are never changed.

    Args:
        teacher_weight: weight of the distillation. Default: 1 with a teacher.
    """

    uses_teacher: ClassVar[bool] = True

    teacher_weight: Annotated[float | None, Range()] = None
    _teacher = cast("TeacherScores | None", None)  # no annotation, so that it is not a setting

    def derived(self, facts: RunFacts) -> Mapping[str, Derived]:
        """Use the teacher, if there is one."""
        return {**super().derived(facts), "teacher_weight": Derived(float(facts.teacher))}

    def memory(self, facts: RunFacts) -> Sequence[StoreMemory]:
        """Return the memory of the teacher's scores."""
        return (teacher_memory(facts),) if facts.teacher else ()

    def notes(self, facts: RunFacts) -> Iterator[str]:
        """Say so if the teacher has no effect."""
        if facts.teacher and self.teacher_weight == 0:
            yield "objective.teacher_weight = 0: no loss uses the scores of the teacher"

    def meet_teacher(self, problem: Problem) -> None:
        """Keep the scores of this process's images, if there are some and they have a weight. Call it in `setup`.

        Raises:
            ConfigError: the teacher has a weight, but there is none.
        """
        if problem.teacher is None and self.teacher_weight:
            raise ConfigError(f"objective.teacher_weight = {self.teacher_weight:g} {needs_teacher()}")
        self._teacher = None
        if problem.teacher is not None and self.teacher_weight != 0:
            self._teacher = TeacherScores(problem.teacher, shard=problem.shard, device=problem.device)

    def with_distillation(self, loss: Tensor, logs: dict[str, Tensor], logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss with the term D, which is added to the logs."""
        if self._teacher is None:
            return loss
        term = distillation(logits, batch.labels, self._teacher.read(batch.index))
        logs["distillation"] = term.detach()
        return loss + (1.0 if self.teacher_weight is None else self.teacher_weight) * term


def needs_teacher() -> str:
    """Return the end of an error of a setting that needs a teacher."""
    return f"needs the scores of a teacher; give {flag('teacher', 'SCORES')}."


def teacher_memory(facts: RunFacts) -> StoreMemory:
    """Return the memory of the teacher's scores."""
    remedy = f"train with more memory, on fewer images, or without {flag('teacher')}."
    return StoreMemory(
        name="teacher's scores", size=lambda n: teacher_bytes(n, facts.classes), remedy=lambda *_: remedy
    )
