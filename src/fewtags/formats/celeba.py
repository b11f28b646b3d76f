"""Lists in the shape of CelebA: a count, the names of attributes, and a row for each photo, between blanks.

The columns of the CSV that Kaggle has made of it are recognised by their names. In both, -1 means absent.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from fewtags.errors import DataError
from fewtags.formats.common import clean_name, text_of
from fewtags.formats.locate import is_photo
from fewtags.formats.options import ReadOptions, fold
from fewtags.formats.sheet import Sheet
from fewtags.table.table import Notes
from fewtags.text import counted, quoted, setting, some

_IMAGE = frozenset({"image_id", "image_name", "image", "filename", "file_name"})
_CELEBA = frozenset(
    [
        *("5_o_clock_shadow", "arched_eyebrows", "bags_under_eyes", "bangs", "big_lips", "big_nose", "blurry"),
        *("bushy_eyebrows", "double_chin", "heavy_makeup", "high_cheekbones", "mouth_slightly_open", "narrow_eyes"),
        *("no_beard", "oval_face", "pale_skin", "pointy_nose", "receding_hairline", "rosy_cheeks", "sideburns"),
        *("wavy_hair", "wearing_earrings", "wearing_hat", "wearing_lipstick", "wearing_necklace", "wearing_necktie"),
    ]
)
_FEW = 3
_SPLITS = {"0": "train", "1": "val", "2": "test"}
_PLACE = re.compile(r"(?:x|y|w|h|width|height|[xy]_?\d+|.+_[xy]|landmark_.+|clothes_type|variation_type)")
_OTHERS = re.compile(r"list_eval_partition|identity_celeba|list_bbox(_celeba|_inshop)?|list_landmarks(_\w+)?")
_PAIR = re.compile(r"\s*(\S+?)[\s,;]+(\S+)\s*")
_ENDINGS = (".txt", ".csv")
_LABELS = "pass list_attr_celeba.txt (or .csv), which has the attributes"


def is_counted_list(path: Path) -> bool:
    """Whether a text table begins with a number alone, a row of names and a row about a photo, between blanks."""
    if path.suffix.lower() not in (".txt", ".csv", ".tsv"):
        return False
    with path.open("rb") as stream:
        head = stream.read(1 << 16)
    code = "utf-16" if head.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    lines = head.decode(code, "ignore").splitlines()
    if len(lines) < 3:
        return False
    count, names, row = (line.split() for line in lines[:3])
    return len(count) == 1 and count[0].isdecimal() and bool(names) and bool(row) and is_photo(row[0])


def check_list(path: Path) -> None:
    """Raise an error for the lists of CelebA that have no labels, by their names.

    Raises:
        DataError: the file is such a list.
    """
    name = fold(path.stem)
    if not _OTHERS.fullmatch(name):
        return
    if name.startswith("list_eval_partition"):
        raise DataError(
            f"{path}: a list of splits (0 train, 1 val, 2 test), which are not labels; {_LABELS}. A "
            f"list_eval_partition beside that file is read with it."
        )
    if name.startswith("identity"):
        raise DataError(f"{path}: a list of the numbers of persons, which are not attributes; {_LABELS}.")
    what = "boxes" if name.startswith("list_bbox") else "landmarks"
    raise DataError(f"{path}: a list of {what} of faces or clothes without classes; {_LABELS}.")


def read_counted_list(path: Path) -> tuple[Sheet, Notes]:
    """Read a list whose first line is the number of photos and whose second line has the names of the columns.

    Raises:
        DataError: the columns are places, names repeat, or a row has another number of cells.
    """
    lines = text_of(path).splitlines()
    names = [clean_name(word) for word in lines[1].split()]
    if fold(names[0]) in _IMAGE:
        names = names[1:]
    if names and all(map(_PLACE.fullmatch, map(fold, names))):
        raise DataError(f"{path}: the columns {some(names)} are places, not labels; {_LABELS}.")
    if repeated := [name for name, n in Counter(names).items() if n > 1]:
        raise DataError(f"{path} row 2: several columns are called {repeated[0]!r}; rename them.")
    rows, places = [], []
    for number, line in enumerate(islice(lines, 2, None), 3):
        cells = line.split()
        if not cells:
            continue
        if len(cells) != len(names) + 1:
            raise DataError(_wrong_length(f"{path} row {number}", cells, names))
        rows.append([cells[0], *map(sys.intern, cells[1:])])  # millions of cells have a few values
        places.append(number)
    columns = tuple([*column] for column in zip(*rows, strict=True))
    sheet = Sheet(
        path=path,
        delimiter=" ",
        header=("image_id", *names),
        columns=columns,
        lines=np.array(places, np.int64),
    )
    stated = int(lines[0])
    text = f"{path.name}: line 1 says {stated:,}, but there are {counted(len(rows), 'row')}; is the file complete?"
    return sheet, Notes(warnings=(text,) if stated != len(rows) else ())


def _wrong_length(where: str, cells: Sequence[str], names: Sequence[str]) -> str:
    start = f"{where}: {quoted(cells[0])} has {counted(len(cells) - 1, 'value')}, but line 2 has "
    start += f"{counted(len(names), 'name')} of columns"
    if len(names) == 1 and len(cells) > 2:
        start += ", as in DeepFashion, whose names are in another file (list_attr_cloth.txt)"
    return f"{start}; write one name for each value, without blanks inside, such as Big_Nose."


def with_states(sheet: Sheet, options: ReadOptions, *, whole: bool) -> tuple[ReadOptions, Notes]:
    """Return the options with which -1 means absent, unless the user has given it a meaning.

    Args:
        sheet: the table.
        options: how labels are read.
        whole: whether it is a list with a count, where 0 beside -1 means unknown.
    """
    own = {fold(word) for word in (*options.positive_words, *options.negative_words, *options.unknown_words)}
    if options.uncertain != "ignore" or "-1" in own:
        return options, Notes()
    values = {value.strip() for counts in sheet.values[1:] for value in counts}
    minus, zero = (sorted(v for v in values - own if sheet.number(v) == number) for number in (-1, 0))
    if not minus:
        return options, Notes()
    given = {"negative_words": (*options.negative_words, *minus)}
    text = "-1 means absent, as in CelebA"
    if whole and zero:
        given["unknown_words"] = (*options.unknown_words, *zero)
        text += ", and 0 means unknown"
    message = f"{sheet.path.name}: {text}; other meaning of -1: {setting('uncertain', 'ones')}"
    return options.model_copy(update=given), Notes(messages=(message,))


def is_celeba(sheet: Sheet) -> bool:
    """Whether the columns of a table are attributes of CelebA, with no other values than 1, -1, perhaps 0 and blank."""
    known = [j for j, name in enumerate(sheet.header) if re.sub(r"[\s-]+", "_", fold(name)) in _CELEBA]
    return len(known) >= _FEW and all(
        not value.strip() or sheet.number(value) in (-1, 0, 1) for j in known for value in sheet.values[j]
    )


def with_partition(sheet: Sheet) -> tuple[Sheet, Notes]:
    """Return the sheet with the splits of a list_eval_partition that is beside it, or in the folder Eval.

    A column `partition` with the numbers of that list gets the names of the splits.

    Raises:
        DataError: a line of that file has another form.
    """
    own = next((j for j, name in enumerate(sheet.header) if fold(name) == "partition"), None)
    if own is not None and {value.strip() for value in sheet.values[own]} <= _SPLITS.keys():
        named = [_SPLITS[value.strip()] for value in sheet.columns[own]]
        message = f"{sheet.path.name}: the partitions 0, 1 and 2 are train, val and test, as in CelebA"
        columns = tuple(named if j == own else column for j, column in enumerate(sheet.columns))
        return replace(sheet, columns=columns), Notes(messages=(message,))
    above = sheet.path.absolute().parent
    near = [folder / f"list_eval_partition{ending}" for folder in (above, above.parent / "Eval") for ending in _ENDINGS]
    file = next((file for file in near if file.is_file()), None)
    if file is None or any(fold(name) in ("split", "subset", "partition") for name in sheet.header):
        return sheet, Notes()
    splits = _partition(file)
    names = [splits.get(name.strip(), "") for name in sheet.columns[0]]
    if not any(names):
        text = f"{file.name}: has none of the photos of {sheet.path.name}, and is not used"
        return sheet, Notes(warnings=(text,))
    message = f"{file.name}: names the split of {sum(map(bool, names)):,} of {counted(len(names), 'row')}"
    return replace(sheet, header=(*sheet.header, "split"), columns=(*sheet.columns, names)), Notes(messages=(message,))


def photo_folders(usual: Sequence[Path]) -> list[Path]:
    """Return where the photos are beside the files of CelebA, as they are published and on Kaggle."""
    above = usual[0]
    names = ("img_align_celeba", "img_align_celeba/img_align_celeba", "img_celeba", "CelebA-HQ-img")
    return [*usual, *(folder / name for folder in (above, above.parent / "Img") for name in names)]


def _partition(file: Path) -> Mapping[str, str]:
    found = {}
    for number, line in enumerate(text_of(file).splitlines(), 1):
        match = _PAIR.fullmatch(line)
        if match and match[2] in _SPLITS:
            found[match[1]] = _SPLITS[match[2]]
        elif line.strip() and not (number == 1 and match and not is_photo(match[1])):
            raise DataError(
                f"{file} row {number}: {quoted(line[:60])}; expected a photo and 0 (train), 1 (val) or 2 (test). Fix "
                "it, or move the file elsewhere."
            )
    return found
