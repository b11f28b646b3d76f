"""Label Studio: the JSON export, a list of tasks with their annotations."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from fewtags.errors import DataError
from fewtags.formats.common import first_character, plain_text, read_json
from fewtags.formats.json_kinds import kind_of_json
from fewtags.formats.labelstudio_questions import Questions, questions_of
from fewtags.formats.labelstudio_regions import region_of
from fewtags.formats.labelstudio_trees import Trees, paths_of, trees_of
from fewtags.formats.locate import is_photo, locate, spelling, usual_folders
from fewtags.formats.options import ReadOptions
from fewtags.formats.real import is_list_of_lists
from fewtags.formats.stated import Source, Stated, count_messages, value_readings
from fewtags.labels import ClassNames, Label
from fewtags.table.table import Excluded, LabelTable, Notes
from fewtags.text import setting, some, suggest

_Record = dict[str, Any]
_LABELLED = ("choices", "labels")  # and whatever ends with the latter
_SHAPES = frozenset({"rectangle", "polygon", "ellipse", "brush", "keypoint", "bitmask", "vector", "relation"})
"""Types of results that belong to others with labels."""


def recognise(path: Path) -> str:
    """Return why a JSON file is an export of Label Studio, or "" if it is not."""
    return "its JSON is a list" if first_character(path) == "[" and not is_list_of_lists(path) else ""


def read_labelstudio(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read the JSON export of Label Studio (not JSON-MIN).

    - Each choice states that its class is present. A region states it for each of its labels, and where: keypoints,
      rectangles (the bounding box of a rotated one), bounding boxes of polygons, ellipses and brush masks. With
      `places="points"` or "outlines", a random point is drawn in each of the latter and in each rotated rectangle.
      Numbers are per cent of the photo as it is displayed.
    - A choice named like `none_folder` states that the photo shows none of the classes of its control.
    - A control whose choices are all Yes, No or Unsure is a question about the class that the control is called.
      A choice that several controls have is a class of each: "front: dirty" and "rear: dirty".
    - An entry of a taxonomy states that its class is present, and so are the classes above it: "Animal > Dog" is a dog
      and an animal. Names at several places of the tree stay apart: "Animal: other" and "Plant: other".
    - Other answers (rating, textarea, number, ranker, pairwise) name no class and are counted.
    - A class that any annotator of a task names is positive; with `complete`, a class that not all of them name is
      unknown. If annotations are marked as ground truth, only these are read. Cancelled annotations, drafts and
      predictions are not read.
    - Tasks without annotation are kept, with nothing known. Classes that are not named are unknown; with `complete`,
      they are absent in photos that have an annotation.
    - Classes are sorted by name. `image_column` is the key of the photo in `data`; `columns` are the controls to read,
      by their `from_name`.
    - An address ("/data/upload/...", "...?d=...", "https://...") is read as a path, as a file name, or as a file name
      without the prefix of uploads: the first of them for which the photos exist is used.

    Raises:
        DataError: the file is of another kind, no key has the photos, or most photos are missing.
    """
    options = options or ReadOptions()
    tasks = _load(path)
    key = _image_key(path, tasks, options.image_column)
    read = _Tasks(options=options, stated=Stated(options), where=str(path), questions=questions_of(tasks, options))
    read.trees = trees_of(tasks, options)
    texts = []
    for number, task in enumerate(tasks, 1):
        name, text = f"task {task.get('id', number)}", plain_text(task["data"].get(key))
        if not text or text.startswith("data:"):
            read.leave_out(name, f"has its photo embedded in {key!r}" if text else f"has no {key!r} in data")
            continue
        texts.append(text)
        read.task(name, task)
    if wrong := [name for name in options.columns or () if name not in read.controls]:
        hint, known = suggest(wrong[0], read.controls), some([*read.controls], 12)
        raise DataError(f"{path}: no result is from {wrong[0]!r}{hint}; there are {known}.")
    if not read.classes:
        unread = [f"{kind} ({n:,})" for (kind, what), n in read.kinds.items() if what == "ignored" and n]
        seen = f" What is not read: {', '.join(unread)}." if unread else ""
        raise DataError(f"{path}: no annotation names a class, so there is nothing to learn.{seen}")
    classes = ClassNames.of(sorted(read.classes))
    read.state_denied()
    order = np.array([classes.index(name) for name in read.classes], np.int64)
    labels = read.stated.labels()
    beside = usual_folders(path)
    names = spelling([*zip(*map(_spellings, texts), strict=True)], file=path, images=images, beside=beside)
    return Source(
        options=options,
        path=path,
        classes=classes,
        labels=replace(labels, class_=order[labels.class_]),
        photos=locate(names, file=path, images=images, beside=beside),
        unit="percent",
        sizes=np.array(read.sizes, np.float64).reshape(-1, 2),
        complete=np.array(read.annotated, np.bool_) & options.complete,
        empty=np.array(read.empty, np.bool_),
        origin=read.stated.origins.__getitem__,
        sources=(path.resolve().name, f"{path.resolve().name}: another annotator") if read.disputed else (),
        notes=_notes(path, read, names, options),
    ).table()


def _load(path: Path) -> list[_Record]:
    data = read_json(path, _packed)
    if not isinstance(data, list):
        what = some([*data], 8) if isinstance(data, dict) else repr(data)[:40]
        raise DataError(f"{path}: expected a list of tasks as Label Studio exports it; the file has {what}.")
    for i, task in enumerate(data):
        if not isinstance(task, dict) or not isinstance(task.get("data"), dict):
            what = some(list(task), 6) if isinstance(task, dict) else repr(task)[:40]
            if isinstance(task, dict) and (kind := kind_of_json(task)):
                raise DataError(f"{path}: {kind}.")
            raise DataError(
                f"{path}: task {i + 1} of the list has {what}; expected data and annotations. Export as 'JSON', not "
                "as 'JSON-MIN'."
            )
        for part in ("annotations", "predictions", "drafts"):
            if not isinstance(task.get(part) or [], list):
                raise DataError(f"{path}: {part} of task {i + 1} is not a list.")
        if any(not isinstance(annotation, dict) for annotation in task.get("annotations") or []):
            raise DataError(f"{path}: task {i + 1} has numbers for annotations; export the annotations with the tasks.")
    if not any("annotations" in task for task in data):
        raise DataError(f"{path}: no task has annotations; export as 'JSON' after something is annotated.")
    return data


def _packed(record: _Record) -> _Record:
    """Store the numbers of a brush mask as bytes, which need less memory."""
    if isinstance(rle := record.get("rle"), list):
        try:
            record["rle"] = bytes(rle)
        except (TypeError, ValueError):
            record["rle"] = None
    return record


def _image_key(path: Path, tasks: Sequence[_Record], given: str | None) -> str:
    """Return the key of `data` with the photo."""
    uses: Counter[str] = Counter(key for task in tasks for key in task["data"])
    if given is not None:
        if given not in uses:
            raise DataError(
                f"{path}: no task has {given!r} in data{suggest(given, uses)}; there are {some([*uses], 12)}."
            )
        return given
    texts = {key: [text for task in tasks if (text := plain_text(task["data"].get(key)))] for key in uses}
    shown = {key: sum(is_photo(_spellings(text)[0]) for text in found) for key, found in texts.items()}
    photos = [key for key, found in texts.items() if shown[key] * 2 > len(found)]
    named = photos or [key for key in uses if key in ("image", "img", "photo", "picture") and texts[key]]
    if len(named) != 1:
        what = f"{some(named)} may all be the photos" if named else f"none of {some([*uses], 12)} is a photo"
        raise DataError(f"{path}: in the data of the tasks, {what}; pass {setting('image_column')}.")
    return named[0]


def _spellings(text: str) -> tuple[str, str, str]:
    """Return the path in the address of a photo, its file name, and the file name without the prefix of an upload.

    >>> _spellings("/data/upload/3/0a1b2c3d-a%20b.jpg")
    ('upload/3/0a1b2c3d-a b.jpg', '0a1b2c3d-a b.jpg', 'a b.jpg')
    >>> _spellings("/data/local-files/?d=set/b.jpg")
    ('set/b.jpg', 'b.jpg', 'b.jpg')
    """
    try:
        parts = urlsplit(text)
        local = parse_qs(parts.query).get("d", [""])[0]
    except ValueError:
        return text, text, text
    served = parts.path.startswith("/data/")
    if local:
        full = local.lstrip("/")
    elif len(parts.scheme) > 1 or served:
        full = unquote(parts.path).removeprefix("/data/").lstrip("/")
    else:
        full = text
    base = full.replace("\\", "/").rpartition("/")[2]
    return full, base, re.sub("^[0-9a-f]{8}-", "", base) if "upload/" in full else base


@final
@dataclass(kw_only=True)
class _Tasks:
    """The contents of the tasks; grows while they are read. Sizes, `annotated` and `empty` have one entry per task.

    Attributes:
        where: the file, for the excluded list.
        questions: what the choices of each control mean.
        trees: the classes of taxonomies.
        answers: number of results of each type that names no class.
        denied: image and control of each choice of "none".
        own: classes of each control.
        sizes: width and height of each photo, NaN if no region gives it.
        annotated: whether each task has an annotation that is read.
        controls: number of results of each `from_name`.
        kinds: number of results of each kind, and how it was read.
        several: number of tasks with several annotations that are read.
        disputed: number of labels that only some annotators of a task name.
    """

    options: ReadOptions
    where: str
    questions: Questions
    trees: Trees = field(default_factory=lambda: Trees({}))
    classes: dict[str, int] = field(default_factory=dict)
    stated: Stated = field(default_factory=Stated)
    sizes: list[tuple[float, float]] = field(default_factory=list)
    annotated: list[bool] = field(default_factory=list)
    empty: list[bool] = field(default_factory=list)
    controls: Counter[str] = field(default_factory=Counter)
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    denied: list[tuple[int, str, str]] = field(default_factory=list)
    own: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    several: int = 0
    disputed: int = 0
    excluded: list[Excluded] = field(default_factory=list)

    def task(self, name: str, task: _Record) -> None:
        """Read one task; messages call it `name`."""
        given = task.get("annotations") or []
        kept = [a for a in given if not a.get("was_cancelled")]
        truth = [a for a in kept if a.get("ground_truth")]
        counted = truth or kept
        self.kinds["annotation that was cancelled", "ignored"] += len(given) - len(kept)
        self.kinds["annotation beside one that is ground truth", "ignored"] += len(kept) - len(counted)
        self.kinds["prediction", "ignored"] += len(task.get("predictions") or [])
        self.kinds["draft", "ignored"] += len(task.get("drafts") or [])
        self.kinds["task without annotation", "nothing known"] += not counted
        self.sizes.append((math.nan, math.nan))
        self.annotated.append(bool(counted))
        self.empty.append(False)
        self.several += len(counted) > 1
        image = len(self.sizes) - 1
        named = [{*self._annotation(name, image, annotation)} for annotation in counted]
        if self.options.complete:
            disputed = {class_ for one in named for class_ in one if not all(class_ in other for other in named)}
            self.disputed += len(disputed)
            for class_ in sorted(disputed):
                self.stated.add(image, class_, state=Label.NEGATIVE, source=1, origin=name)

    def _annotation(self, name: str, image: int, annotation: _Record) -> Iterator[int]:
        """Add the labels of an annotation, and yield their classes."""
        results = annotation.get("result")
        if not results:
            meaning = "none of the classes (complete)" if self.options.complete else "nothing known"
            self.kinds["annotation without result", meaning] += 1
        for item in results if isinstance(results, list) else [results]:
            if isinstance(item, dict):
                yield from self._result(f"{name}, region {item.get('id', '?')}", image, item)
            else:
                self.leave_out(name, f"has {item!r:.40} instead of a result")

    def _result(self, name: str, image: int, item: _Record) -> Iterator[int]:
        kind, value = plain_text(item.get("type")), item.get("value")
        if kind and kind != "taxonomy" and not kind.endswith(_LABELLED):
            self.kinds[f"result of type {kind!r}", "ignored"] += 1
            self.answers[kind] += kind not in _SHAPES
            return
        if not kind or not isinstance(value, dict):
            self.leave_out(name, "has no value" if kind else "has no type")
            return
        control = plain_text(item.get("from_name"))
        self.controls[control] += 1
        if self.options.columns is not None and control not in self.options.columns:
            self.kinds[f"result of {control!r}", "ignored, it is not among the columns"] += 1
            return
        if kind == "taxonomy":
            yield from self._taxonomy(name, image, control, item)
            return
        stated = value.get(kind)
        names = [*filter(None, map(plain_text, stated))] if isinstance(stated, list) else []
        if not names:
            self.leave_out(name, f"has no label in {kind!r}")
        elif isinstance(stated, list) and len(names) < len(stated):
            wrong = next(label for label in stated if not plain_text(label))
            self.leave_out(name, f"has {wrong!r:.40} among its {kind}, which is not a name")
        region = region_of(kind, item, value)
        if region.size is not None:
            self.sizes[image] = region.size
        for label in names:
            if kind == "choices" and self.options.is_none(label):
                self.denied.append((image, control, name))
                what = "none of the classes" + (f" of {control!r}" if self.questions.controls > 1 else "")
                self.kinds[f"{kind} {label!r}", what] += 1
                continue
            class_name, state = (label, Label.POSITIVE) if kind != "choices" else self.questions.meaning(control, label)
            if state == Label.NEGATIVE and region.meaning:
                state = Label.UNKNOWN  # the answer is about one object, and others may have another one
            class_ = self.classes.setdefault(class_name, len(self.classes))
            if kind == "choices":
                self.own[control].add(class_)
            origin, box, point = f"{name} ({label})", region.box, region.point
            places: _Record = {"box": box, "point": point, "outline": region.outline, "unread": region.unread}
            self.stated.add(image, class_, state=state, **places, origin=origin)
            shown = f"{kind} {label!r}" + (f" of {control!r}" if class_name != label else "")
            what = "" if class_name == label else f": {class_name}"
            self.kinds[shown, f"{state.name.lower()}{what}{region.meaning}"] += 1
            if state == Label.POSITIVE:
                yield class_

    def _taxonomy(self, name: str, image: int, control: str, item: _Record) -> Iterator[int]:
        """Add the labels of a taxonomy, and yield their classes."""
        paths, wrong = paths_of(item["value"])
        if wrong or not paths:
            what = f"has {wrong[0]!r:.40} among its taxonomy, which is not a list of names" if wrong else ""
            self.leave_out(name, what or "has no label in 'taxonomy'")
        region = region_of("taxonomy", item, item["value"])
        if region.size is not None:
            self.sizes[image] = region.size
        seen: dict[str, None] = {}
        for path in paths:
            shown = f"taxonomy {' > '.join(path)!r}"
            if len(path) == 1 and self.options.is_none(path[0]):
                self.denied.append((image, control, name))
                what = "none of the classes" + (f" of {control!r}" if self.questions.controls > 1 else "")
                self.kinds[shown, what] += 1
                continue
            names = self.trees.classes(control, path)
            self.kinds[shown, f"positive: {', '.join(names)}{region.meaning}"] += 1
            seen |= dict.fromkeys(names)
        for label in seen:
            class_ = self.classes.setdefault(label, len(self.classes))
            self.own[control].add(class_)
            origin, box, point = f"{name} ({label})", region.box, region.point
            places: _Record = {"box": box, "point": point, "outline": region.outline, "unread": region.unread}
            self.stated.add(image, class_, **places, origin=origin)
            yield class_

    def state_denied(self) -> None:
        """State what "none" means: no class of its control, or no class at all if there is one control only."""
        for image, control, name in self.denied:
            if self.questions.controls < 2:
                self.empty[image] = True
                continue
            for class_ in sorted(self.own[control]):
                self.stated.add(image, class_, state=Label.NEGATIVE, origin=name)

    def leave_out(self, name: str, reason: str) -> None:
        """Add an item to the excluded list."""
        self.excluded.append(Excluded(name, reason, self.where, "unusable"))


def _notes(path: Path, read: _Tasks, names: Sequence[str], options: ReadOptions) -> Notes:
    unnamed = read.stated.labels().count_unnamed(len(names), len(read.classes))
    rest = "negative where there is an annotation (complete)" if options.complete else "unknown"
    kinds = (
        *((kind, meaning, n) for (kind, meaning), n in sorted(read.kinds.items())),
        ("class that is not named in a task", rest, unnamed),
    )
    counts = (
        (
            *(len(names) - len(set(names)), "task names a photo that another one names, and is joined with it"),
            "tasks name photos that other ones name, and are joined with them",
        ),
        (
            *(read.several, "task has several annotations; what any of them names is positive"),
            "tasks have several annotations; what any of them names is positive",
        ),
        (
            *(read.disputed, "label is named by one annotator of a task and not by another: unknown"),
            "labels are named by one annotator of a task and not by another: unknown",
        ),
        (
            *(len(read.excluded), "task or region left out, see the excluded list"),
            "tasks or regions left out, see the excluded list",
        ),
    )
    listed = ", ".join(f"{kind} ({n:,})" for kind, n in sorted(read.answers.items()) if n)
    text = f"{path.name}: answers that name no class are not read: {listed}"
    messages = count_messages(path, counts) + ((text,) if listed else ())
    return Notes(value_readings(path.name, kinds), tuple(read.excluded), messages)
