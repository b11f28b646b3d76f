"""What the choices of Label Studio mean: classes, or answers to a question about the class that a control is called."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from fewtags.formats.common import plain_text
from fewtags.formats.options import ReadOptions, fold
from fewtags.formats.words import NO, UNSURE, YES
from fewtags.labels import Label

_ANSWERS = {
    **dict.fromkeys(("1", *YES), Label.POSITIVE),
    **dict.fromkeys(("0", "not present", *NO), Label.NEGATIVE),
    **dict.fromkeys(("unknown", "?", "can't tell", "n/a", "maybe", "vielleicht", "peut-être", *UNSURE), Label.UNKNOWN),
}


@final
@dataclass(frozen=True)
class Questions:
    """The controls with choices.

    Attributes:
        asked: controls whose choices are answers such as Yes and No.
        shared: choices that several other controls have.
        controls: number of controls that are read, with choices or regions.
    """

    asked: frozenset[str]
    shared: frozenset[str]
    controls: int

    def meaning(self, control: str, choice: str) -> tuple[str, Label]:
        """Return the class of a choice, and its state."""
        if control in self.asked:
            return control, _ANSWERS[fold(choice)]
        return (f"{control}: {choice}" if choice in self.shared else choice), Label.POSITIVE


def questions_of(tasks: Sequence[Mapping[str, Any]], options: ReadOptions) -> Questions:
    """Return what the choices of the controls that are read mean."""
    words: dict[str, set[str]] = defaultdict(set)
    controls = set()
    for kind, control, names in _results(tasks):
        if options.columns is None or control in options.columns:
            controls.add(control)
            if kind == "choices":
                words[control].update(names)
    answers = {control: {fold(word) for word in own if not options.is_none(word)} for control, own in words.items()}
    known = {word for word, state in _ANSWERS.items() if state != Label.UNKNOWN}
    asked = frozenset(control for control, own in answers.items() if control and own <= _ANSWERS.keys() and own & known)
    uses = Counter(word for control, own in words.items() if control not in asked for word in own)
    return Questions(asked, frozenset(word for word, n in uses.items() if n > 1), len(controls))


def _results(tasks: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield type, control and labels of each result of annotations that can be read."""
    for task in tasks:
        for annotation in task.get("annotations") or []:
            results = annotation.get("result")
            for item in results if isinstance(results, list) else []:
                value = item.get("value") if isinstance(item, dict) else None
                if isinstance(value, dict):
                    kind = plain_text(item.get("type"))
                    names = value.get(kind)
                    if kind.endswith(("choices", "labels", "taxonomy")) and isinstance(names, list):
                        yield kind, plain_text(item.get("from_name")), [*filter(None, map(plain_text, names))]
