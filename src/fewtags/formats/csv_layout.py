"""Find the image, label and split columns of a text table."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

from fewtags.errors import DataError
from fewtags.formats.common import number_of
from fewtags.formats.csv_split import Splits, find_splits
from fewtags.formats.csv_tags import numbered
from fewtags.formats.locate import is_photo
from fewtags.formats.options import Points, ReadOptions, fold
from fewtags.formats.rated import SCORE_NAMES
from fewtags.formats.sheet import Sheet
from fewtags.formats.words import Meaning, Words, words_of
from fewtags.text import counted, setting, some

Form = Literal["classes", "tags", "facts"]

IMAGE_COLUMNS = (
    *("image", "images", "image_name", "image_path", "image_file", "image_index", "image_id", "img", "img_path"),
    *("filename", "file_name", "file", "filepath", "file_path", "path", "photo"),
)
"""Names of columns of images, likeliest first."""
TAG_NAMES = frozenset(
    {
        "tag",
        "tags",
        "label",
        "labels",
        "class",
        "classes",
        "category",
        "categories",
        "keywords",
        "finding labels",
        "choice",
        "choices",
    }
)
"""Names of columns of tags."""
_STATES = frozenset({"state", "present", "presence"})
"""Names of columns that say whether the class of the row is present."""
_NO_CLASSES = frozenset(
    [
        *("id", "index", "idx", "nr", "no", "no.", "#", "row", "number", "annotator", "annotators", "annotator_id"),
        *("annotated_by", "annotation_id", "task_id", "labeler", "labeller", "rater", "worker", "worker_id", "user"),
        *("user_id", "lead_time", "width", "height", "patient_id", "subject_id"),
    ]
)
"""Names of columns that are not classes, whatever their values are."""
_NAMELESS = re.compile(r"unnamed: [\d.]+(_level_\d+)?")
"""What pandas calls a column without a name, such as the row numbers that `to_csv` writes."""
_PAIRS = (("x", "y"), ("column", "row"), ("col", "row"))
_CORNERS = ("x0", "y0", "x1", "y1")
_SAMPLE = 100


@final
@dataclass(frozen=True, kw_only=True)
class Layout:
    """Positions of the columns of a sheet.

    Attributes:
        form: "classes", one column per class; "tags", one column of tags; "facts", one label a row, as `write_csv`.
        labels: the class columns, the tags column, or the column of the class and that of the state if there is one.
        splits: the split of each row, if the table names it.
        messages: which columns were found, and which are ignored.
        warnings: ignored columns that may have labels or places, and other doubts.
        point: columns with x and y of a point.
        unit: unit of x and y.
        size: columns with the width and height of the photo in pixels.
    """

    form: Form
    image: int
    labels: tuple[int, ...]
    splits: Splits | None
    messages: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    point: tuple[int, int] | None = None
    unit: Points | None = None
    size: tuple[int, int] | None = None


def find_layout(sheet: Sheet, options: ReadOptions) -> Layout:
    """Find image, label and split columns by the options, the header and the values.

    A column is a class if at least half of its values are words for present and absent. So a few wrong values are
    errors; they do not turn the column into an ignored one.

    Raises:
        DataError: the columns of images or labels are not clear; the option that names them is in the message.
    """
    words = words_of(sheet, options)
    image = sheet.find(options.image_column) if options.image_column else _image_column(sheet)
    chosen = None if options.columns is None else tuple(sheet.find(name) for name in options.columns)
    others = [j for j in range(len(sheet.header)) if j != image]
    splits, folds, warnings = find_splits(sheet, others, chosen or (), TAG_NAMES, words)
    rest = [j for j in others if j not in (splits.columns if splits else ()) and j not in folds]
    names = {fold(sheet.header[j]): j for j in rest}
    if chosen is None:
        _refuse_predictions(sheet, names)
    point, unit = _point_columns(sheet, image, names, options)
    if chosen is not None:
        form: Form = "tags" if _all_tags(sheet, chosen, words, options) else "classes"
        labels = chosen
    elif stated := _stated_class(sheet, names, words):
        form, labels = "facts", stated
    elif {"class", "x0", "y0", "x1", "y1"} <= names.keys():
        form, labels = "facts", (names["class"],)
    elif point:
        found = [names["class"]] if "class" in names else [j for name, j in names.items() if name in TAG_NAMES]
        if len(found) != 1:
            what = (
                f"{some([sheet.header[j] for j in found])} may all be" if found else "no column is called 'class' for"
            )
            raise DataError(f"{sheet.path}: {what} the class of each point; pass {setting('columns', ['COLUMN'])}.")
        form, labels = "facts", (found[0],)
    elif (boxed := _boxed_class(sheet, names)) is not None:
        form, labels = "facts", (boxed,)
    else:
        form, labels = _label_columns(sheet, rest, words, options)
    if form == "tags" and len(labels) == 1 and point and chosen is not None:
        form, labels = "facts", (*labels, *([names["state"]] if "state" in names else []))
    if form != "facts":
        point, unit = None, None
    sized = unit == "pixels" and {"width", "height"} <= names.keys()
    size = (names["width"], names["height"]) if sized else None
    used = {*labels, *(point or ()), *(size or ())}
    used |= {names[corner] for corner in _CORNERS if form == "facts" and corner in names}
    label_names = [sheet.header[j] for j in labels]
    labelled = f"{counted(len(labels), 'class column')} {some(label_names)}" if form == "classes" else "one label a row"
    if form == "tags":
        labelled = f"tags in {', '.join(map(repr, label_names))}"
    messages = [
        f"{sheet.path.name}: {counted(len(sheet), 'row')}"
        + (f", cells separated by {sheet.delimiter!r}" if sheet.delimiter else "")
        + f"; images in {sheet.header[image]!r}, {labelled}"
        + (f", points in {unit} in {' and '.join(repr(sheet.header[j]) for j in point)}" if point else "")
        + (f", split in {' and '.join(repr(sheet.header[j]) for j in splits.columns)}" if splits else "")
    ]
    ignored = [j for j in rest if j not in used]
    for j in ignored:
        name = sheet.header[j] or "(without a name)"
        examples = some([value for value, _ in sheet.values[j].most_common()], 3)
        messages.append(f"{sheet.path.name}: column {name!r} ignored, its values are {examples}")
    if chosen is None:
        scores = [j for j in ignored if _are_scores(sheet, j)]
        rated = [j for j in scores if SCORE_NAMES & set(re.split(r"[^a-z]+", fold(sheet.header[j])))]
        if (form == "classes" and len(scores) >= len(labels)) or rated:
            raise DataError(_scores_text(sheet, rated or scores))
        warnings += _doubts(sheet, ignored, form, words)
    return Layout(
        form=form,
        image=image,
        labels=labels,
        splits=splits,
        messages=tuple(messages),
        warnings=warnings,
        point=point,
        unit=unit,
        size=size,
    )


def _stated_class(sheet: Sheet, names: Mapping[str, int], words: Words) -> tuple[int, int] | None:
    """Return the columns of the class and of its state, for one label a row; None if there are no such columns."""
    if {"class", "state"} <= names.keys():
        return names["class"], names["state"]
    classes = [j for name, j in names.items() if name in TAG_NAMES]
    states = [j for name, j in names.items() if name in _STATES and _share(sheet, j, words) == 1.0]
    named = len(classes) == 1 and len(states) == 1 and _share(sheet, classes[0], words) < 0.5
    return (classes[0], states[0]) if named else None


def _boxed_class(sheet: Sheet, names: Mapping[str, int]) -> int | None:
    """Return the only column of labels beside boxes in fractions of the photo, x0, y0, x1 and y1; else None."""
    found = [j for name, j in names.items() if name in TAG_NAMES]
    if not set(_CORNERS) <= names.keys() or len(found) != 1:
        return None
    filled = [value for corner in _CORNERS for value in sheet.values[names[corner]] if value.strip()]
    return found[0] if filled and all(0 <= sheet.number(value) <= 1 for value in filled) else None


def _refuse_predictions(sheet: Sheet, names: Collection[str]) -> None:
    if {"class", "probability", "threshold"} <= set(names):
        raise DataError(
            f"{sheet.path}: the columns are those of `fewtags predict`; predictions are not labels. To train on tags "
            "that you have checked, keep the right rows, and remove the columns 'probability' and 'threshold'."
        )


def _scores_text(sheet: Sheet, scores: Sequence[int]) -> str:
    return (
        f"{sheet.path}: the values of {some([sheet.header[j] for j in scores])} are between 0 and 1, as the "
        "probabilities that a model predicts, and predictions are not labels. Write 1 for present and 0 for absent; if "
        f"other columns have the labels, list them: {setting('columns', ['CLASS', '...'])}."
    )


def _numbers(sheet: Sheet, column: int) -> list[float]:
    """Return the distinct numbers of a column; none if it has another value than numbers and blanks."""
    values = [sheet.number(value) for value in sheet.values[column] if value.strip()]
    return [] if any(math.isnan(value) for value in values) else values


def _are_scores(sheet: Sheet, column: int) -> bool:
    parts = {
        part for value in sheet.values[column] for part in re.split(r"[\s;|'\"]+|,\s+|,(?=')", value.strip("[](){} "))
    }
    values = [sheet.number(part[:-1]) / 100 if part.endswith("%") else sheet.number(part) for part in parts if part]
    return (
        not any(map(math.isnan, values))
        and bool(values)
        and all(0 <= value <= 1 for value in values)
        and any(0 < value < 1 for value in values)
    )


def _doubts(sheet: Sheet, ignored: Sequence[int], form: Form, words: Words) -> tuple[str, ...]:
    """Return warnings about ignored columns that may have labels or places."""
    warnings = []
    named = [j for j in ignored if sheet.header[j]]
    for j in named if form == "classes" else []:
        texts = [value for value in sheet.values[j] if words.meaning(value) is None]
        mark = len(texts) == 1 and len(sheet.values[j]) > 1 and math.isnan(number_of(texts[0]))
        if mark or (0 < _share(sheet, j, words) < 0.5 and len(texts) < 10 and not _numbers(sheet, j)):
            warnings.append(
                f"{sheet.path.name}: column {sheet.header[j]!r} is not read as a class, because {some(texts, 3)} means "
                f"neither present nor absent. If it is a class, say what the word means: "
                f"{setting('positive_words', [texts[0].strip()])}."
            )
    states = [j for j in named if form == "tags" and _says_absent(sheet, j, words)]
    warnings += [
        f"{sheet.path.name}: column {sheet.header[j]!r} beside the tags is not read, and has words for absent. If it "
        "says whether the tag of its row is present, call it 'state'; if it is a class, make one column for each class."
        for j in states
    ]
    warnings += [
        f"{sheet.path.name}: column {j + 1} has no name and is not read, but has values of a class, "
        f"{some([*sheet.values[j]], 3)}; if it is one, name it."
        for j in ignored
        if not sheet.header[j] and form == "classes" and j > 0 and _share(sheet, j, words) == 1.0
    ]
    numbers = [sheet.header[j] for j in named if j not in states and len(_numbers(sheet, j)) > 1]
    if form != "classes" and numbers:
        warnings.append(
            f"{sheet.path.name}: the numbers of {some(numbers)} beside the labels are not read. If they are places, "
            "call the columns x_px and y_px (points in pixels), or x0, y0, x1 and y1 (boxes in fractions of the "
            "photo), beside 'image' and 'class'."
        )
    return tuple(warnings)


def _says_absent(sheet: Sheet, column: int, words: Words) -> bool:
    """Return whether all values are words, and some mean absent."""
    absent = any(words.meaning(value) is Meaning.NEGATIVE for value in sheet.values[column])
    return absent and not _is_about_rows(sheet.header[column]) and _share(sheet, column, words) == 1.0


def _point_columns(
    sheet: Sheet, image: int, names: Mapping[str, int], options: ReadOptions
) -> tuple[tuple[int, int] | None, Points | None]:
    """Return the columns of points and their unit, which is never guessed.

    The header gives it (x_px, y_px; or Name, Row, Column, Label, as CoralNet writes pixels), or the option does.
    """
    coralnet = {"row", "column"} <= names.keys() and fold(sheet.header[image]) == "name" and options.points is None
    if {"x_px", "y_px"} <= names.keys():
        if options.points == "fractions":
            raise DataError(
                f"{sheet.path}: the columns x_px and y_px are pixels; leave out {setting('points', 'fractions')}."
            )
        return (names["x_px"], names["y_px"]), "pixels"
    if coralnet:
        return (names["column"], names["row"]), "pixels"
    if (pair := next((pair for pair in _PAIRS if set(pair) <= names.keys()), None)) is not None:
        first, second = (sheet.header[names[axis]] for axis in pair)
        if options.points is not None:
            return (names[pair[0]], names[pair[1]]), options.points
        if options.columns is None and TAG_NAMES & names.keys():
            raise DataError(
                f"{sheet.path}: are the columns {first!r} and {second!r} points in pixels or in fractions of the "
                f"photo? Pass {setting('points', 'pixels')} (or fractions), or call them x_px and y_px; if they are "
                f"not points, list the columns with labels: {setting('columns', ['COLUMN'])}."
            )
    elif options.points is not None:
        raise DataError(
            f"{sheet.path}: points is {options.points!r}, but there are no columns x and y; the columns are "
            f"{some(sheet.header, 12)}."
        )
    return None, None


def _image_column(sheet: Sheet) -> int:
    plain = [re.sub(r"[\s\-_]+", "", fold(name)) for name in sheet.header]
    named = [j for alias in IMAGE_COLUMNS for j, name in enumerate(plain) if name == alias.replace("_", "")]
    photos = [j for j, column in enumerate(sheet.columns) if _are_photos(column)]
    for candidates in ([j for j in named if j in photos], named, photos if len(photos) == 1 else []):
        if candidates:
            return candidates[0]
    raise DataError(
        f"{sheet.path}: no column is called 'image' or has photo names; its columns are {some(sheet.header, 12)}. "
        f"Pass {setting('image_column', 'COLUMN')}."
    )


def _are_photos(column: Sequence[str]) -> bool:
    sample = [value for value in column[:_SAMPLE] if value.strip()]
    return bool(sample) and sum(map(is_photo, map(str.strip, sample))) * 2 > len(sample)


def _share(sheet: Sheet, column: int, words: Words) -> float:
    """Return the share of words for present, absent and uncertain among values that are not blank or unknown."""
    counts = sheet.values[column].items()
    labels = sum(n for value, n in counts if words.is_label(value))
    filled = labels + sum(n for value, n in counts if words.meaning(value) is None)
    return labels / filled if filled else 0.0


def _is_about_rows(name: str) -> bool:
    """Return whether a column numbers rows, or says who made them: it is not a class, whatever its values are."""
    return re.sub(r"[\s\-_]+", "_", fold(name)) in _NO_CLASSES


def _blank(sheet: Sheet, column: int, words: Words) -> bool:
    return all(words.meaning(value) is not None and not words.is_label(value) for value in sheet.values[column])


def _are_tags(sheet: Sheet, column: int, words: Words, options: ReadOptions) -> bool:
    return options.tags_separator is not None or (
        _share(sheet, column, words) < 0.5 and not _blank(sheet, column, words)
    )


def _all_tags(sheet: Sheet, columns: Sequence[int], words: Words, options: ReadOptions) -> bool:
    """Return whether columns have tags; one of several can be blank."""
    plain = options if len(columns) == 1 else options.model_copy(update={"tags_separator": None})
    tags = [_are_tags(sheet, j, words, plain) for j in columns]
    return any(tags) and all(found or _blank(sheet, j, words) for j, found in zip(columns, tags, strict=True))


def _label_columns(
    sheet: Sheet, rest: Sequence[int], words: Words, options: ReadOptions
) -> tuple[Form, tuple[int, ...]]:
    named = [j for j in rest if sheet.header[j] and not _NAMELESS.fullmatch(fold(sheet.header[j]))]
    named = [j for j in named if not _is_about_rows(sheet.header[j])]
    exact = [j for j in named if fold(sheet.header[j]) in TAG_NAMES]
    about = [j for j in named if TAG_NAMES & set(re.split(r"[^a-z]+", fold(sheet.header[j])))]
    share = {j: _share(sheet, j, words) for j in named}
    certain = [j for j in named if share[j] == 1.0 and j not in exact]
    group = numbered(sheet, named)
    states = [j for j in certain if j not in group]
    others = [j for j in exact if j not in group] + (states if len(states) > 1 else [])
    if group and not others and (options.tags_separator is not None or _all_tags(sheet, group, words, options)):
        return "tags", tuple(group)
    named_states = [j for j in group if share[j] >= 0.5]
    if named_states and len(named_states) < sum(not _blank(sheet, j, words) for j in group):
        raise DataError(
            f"{sheet.path}: {some([sheet.header[j] for j in group])} may be one list of tags, but the values of "
            f"{sheet.header[named_states[0]]!r} ({some(sorted(sheet.values[named_states[0]]), 3)}) are those of a "
            f"class. If all are names of classes, pass {setting('tags_separator', '|')}; else the column to read, "
            f"{setting('columns', [sheet.header[group[0]]])}."
        )
    exact += [j for j in group if others and j not in exact]
    tags = [j for j in (about if not exact and not certain else exact) if _are_tags(sheet, j, words, options)]
    if len(tags) > 1 or (tags and len(certain) > 1):
        names = [sheet.header[j] for j in tags]
        both = [*names, *(sheet.header[j] for j in certain)]
        cure = (
            f"Pass the column of tags, {setting('columns', names[:1])}, or those of the classes, "
            f"{setting('columns', [sheet.header[j] for j in certain])}."
            if certain
            else f"Pass the one with the tags, {setting('columns', names[:1])}; or all that have tags, which are then "
            f"read as one list, {setting('columns', names)}."
        )
        raise DataError(f"{sheet.path}: {some(both)} may all be labels. {cure}")
    if tags:
        return "tags", tuple(tags)
    classes = [j for j in named if share[j] >= 0.5]
    if len(classes) == 1 and classes[0] in exact:
        name, values = sheet.header[classes[0]], some(sorted(sheet.values[classes[0]]))
        raise DataError(
            f"{sheet.path}: the values of {name!r} ({values}) may state whether {name!r} is present, or name classes; "
            f"pass {setting('columns', [name])} for the former, {setting('tags_separator', '|')} for the latter."
        )
    if classes:
        return "classes", tuple(j for j in named if j in classes or _blank(sheet, j, words))
    texts = [j for j in named if not _blank(sheet, j, words)]
    if len(texts) == 1 and not _are_scores(sheet, texts[0]):
        return "tags", tuple(texts)
    if scores := [j for j in texts if _are_scores(sheet, j)]:
        raise DataError(_scores_text(sheet, scores))
    if not texts and len(sheet):
        raise DataError(f"{sheet.path}: no column has labels; there are {some(sheet.header, 12)}.")
    raise DataError(
        f"{sheet.path}: it is not clear which of {some([sheet.header[j] for j in named], 12)} has labels. Pass the "
        f"column of tags, {setting('columns', ['COLUMN'])}, or those of the classes, "
        f"{setting('columns', ['CLASS', '...'])}."
    )
