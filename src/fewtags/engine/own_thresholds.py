"""Thresholds that a user chooses for a trained model: numbers, files, or a wanted precision on validation."""

from __future__ import annotations

import csv
import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fewtags.engine.calibration import as_calibrated, keep_as_trained
from fewtags.engine.evaluate import sigmoid
from fewtags.engine.model import ModelInfo, load_model, save_model
from fewtags.engine.model_card import CARD_FILE, is_unedited, write_card
from fewtags.engine.onnx_net import ENDING
from fewtags.engine.places import model_path
from fewtags.engine.run_lock import locked
from fewtags.engine.train_run import write_evaluation
from fewtags.errors import CheckpointError, ConfigError, DataError
from fewtags.labels import ClassNames, Label
from fewtags.metrics.thresholds import ThresholdRule, Thresholds, precision_thresholds
from fewtags.table.storage import load
from fewtags.table.vocabulary import folded
from fewtags.text import MOST_NAMED, counted, flag, suggest

ENDINGS = (".csv", ".json", ".toml")
"""Endings of files with thresholds."""

Given = float | int | str | Path | Mapping[str, float]
"""A threshold for all classes, text as on the command line, a file, or thresholds by class."""

_CLASS_COLUMNS = ("class", "id", "name", "label")


@final
@dataclass(frozen=True)
class Entry:
    """One threshold that a user gave: where it was written, its class (None: all) and its value."""

    where: str
    name: str | None
    value: Any


def with_thresholds(
    info: ModelInfo,
    given: Given | Sequence[Given] | None = None,
    precision: float | None = None,
    run: Path | None = None,
) -> tuple[ModelInfo, list[str]]:
    """Return the metadata of a model with other thresholds, and messages about classes that keep their own.

    A threshold for all classes comes before `precision`, and thresholds by class come last; other classes keep theirs.

    Args:
        info: the model.
        given: thresholds by class, one for all, or files of them; one or several.
        precision: the lowest threshold with this precision on the validation photos of the run is chosen.
        run: the run folder, for `precision`.

    Raises:
        ConfigError: a number is outside 0..1, or one class has two thresholds; `precision` without a run folder.
        DataError: a class is not known, or a file cannot be read.
    """
    values, rules = [*info.thresholds], [*info.threshold_rules]
    notes: list[str] = []
    common, own = _collect(info.classes, [] if given is None else _listed(given))
    if common is not None:
        values, rules = [common] * len(values), [str(ThresholdRule.OWN)] * len(values)
    if precision is not None:
        chosen, notes = _by_precision(replace(info, thresholds=tuple(values)), precision, run, skip=set(own))
        for c, value in chosen.items():
            values[c], rules[c] = value, str(ThresholdRule.PRECISION)
    for c, value in own.items():
        values[c], rules[c] = value, str(ThresholdRule.OWN)
    return replace(info, thresholds=tuple(values), threshold_rules=tuple(rules)), notes


def class_position(classes: ClassNames, word: str, where: str = "") -> int:
    """Return the position of a class, given its id or display name in any spelling (`vocabulary.folded`).

    Raises:
        DataError: no class or several classes are called so; the closest is suggested.

    >>> class_position(ClassNames.of(["n02085936", "n02123045"], ["Maltese", "tabby"]), "Tabby")
    1
    """
    start = f"{where}: " if where else ""
    for names in (classes.ids, classes.display):
        if word in names:
            return names.index(word)
    alike = [
        c for c, pair in enumerate(zip(classes.ids, classes.names, strict=True)) if folded(word) in map(folded, pair)
    ]
    if len(alike) == 1:
        return alike[0]
    if alike:
        listed = " and ".join(repr(classes.ids[c]) for c in alike[:MOST_NAMED])
        raise DataError(f"{start}{word!r} could be the classes {listed}; write the id of one.")
    if not word:
        raise DataError(f"{start}the name of the class is missing.")
    known = dict.fromkeys((*classes.ids, *classes.display))
    raise DataError(f"{start}{word!r} is not a class of this model{suggest(word, known)}.")


def _listed(given: Given | Sequence[Given]) -> Sequence[Given]:
    return given if isinstance(given, Sequence) and not isinstance(given, str) else [given]


def _collect(classes: ClassNames, given: Iterable[Given]) -> tuple[float | None, dict[int, float]]:
    """Return the threshold of all classes, if one is given, and thresholds by position."""
    found: dict[int | None, tuple[float, str]] = {}
    for entry in (entry for one in given for entry in _entries(one)):
        value = _number(entry)
        if entry.name is not None and "=" in entry.name and entry.name not in (*classes.ids, *classes.display):
            raise ConfigError(f"{entry.where}: expected CLASS=NUMBER; for several classes, repeat {flag('threshold')}.")
        position = None if entry.name is None else class_position(classes, entry.name, entry.where)
        before, where = found.setdefault(position, (value, entry.where))
        if before != value:
            what = "" if position is None else f" of class {classes.ids[position]!r}"
            raise ConfigError(
                f"the threshold{what} is given twice, as {before:g} ({where}) and {value:g} ({entry.where}); give one."
            )
    common = found.pop(None, None)
    return None if common is None else common[0], {c: value for c, (value, _) in found.items() if c is not None}


def _entries(given: Given) -> Iterator[Entry]:
    where = flag("threshold")
    if isinstance(given, Mapping):
        yield from (Entry(f"{where} {name}={value}", str(name), value) for name, value in given.items())
    elif isinstance(given, Path) or (isinstance(given, str) and given.lower().endswith(ENDINGS)):
        yield from _from_file(Path(given))
    elif isinstance(given, str) and "=" in given:
        name, _, value = given.rpartition("=")
        yield Entry(f"{where} {given}", name.strip(), value.strip())
    else:
        yield Entry(f"{where} {given}", None, given)


def _number(entry: Entry) -> float:
    """Return the value of an entry as a number in 0..1."""
    try:
        value = math.nan if isinstance(entry.value, bool) else float(entry.value)
    except (TypeError, ValueError):
        value = math.nan
    if 0 <= value <= 1:
        return value
    text = str(entry.value).strip()
    cure = ""
    for changed, scale in ((text.replace(",", ".", 1), 1), (text.rstrip("% "), 100), (text, 100)):
        try:
            meant = float(changed) / scale
        except ValueError:
            continue
        if 0 <= meant <= 1 and not cure and (scale == 1 or meant * scale >= 2):
            cure = f"; did you mean {meant:g}?"
    what = "a number from 0 to 1"
    if entry.name is None and not cure:
        what += f", CLASS=NUMBER or a file ({', '.join(ENDINGS)})"
    raise ConfigError(f"{entry.where}: {text!r} is not a threshold; expected {what}{cure or '.'}")


def _from_file(path: Path) -> Iterator[Entry]:
    """Yield the thresholds of a CSV (columns class and threshold), or of JSON or TOML ({class: threshold})."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise DataError(f"{path}: expected a file of thresholds ending in {', '.join(ENDINGS)}.")
    try:
        text = path.read_text("utf-8-sig")
        if ending == ".csv":
            yield from _rows(path, text)
            return
        content = json.loads(text, object_pairs_hook=_unrepeated) if ending == ".json" else tomllib.loads(text)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8; save it as UTF-8.") from None
    except (ValueError, RecursionError, csv.Error) as error:  # not UTF-8, JSON, TOML or CSV
        raise DataError(f"{path} cannot be read as {ending[1:].upper()}: {error}.") from None
    if isinstance(content, dict) and isinstance(inside := content.get("thresholds"), dict | list):
        content = inside
    if isinstance(content, list) and all(isinstance(row, dict) and {"class", "threshold"} <= {*row} for row in content):
        pairs = [(row["class"], row["threshold"]) for row in content]
    elif isinstance(content, dict):
        pairs = [*content.items()]
    else:
        raise DataError(f'{path}: expected {{"class": threshold, ...}}.')
    if not pairs:
        raise DataError(f"{path} has no threshold.")
    yield from (Entry(f"{path}, {name}", str(name), value) for name, value in pairs)


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object of its pairs, of which a parser keeps the last with each name."""
    content = dict(pairs)
    if len(content) < len(pairs):
        name = next(name for n, (name, _) in enumerate(pairs) if name in dict(pairs[:n]))
        raise ValueError(f"{name!r} is there twice; remove one")
    return content


def _rows(path: Path, text: str) -> Iterator[Entry]:
    """Yield the thresholds of a CSV with the columns class and threshold, or with two columns in this order."""
    lines = text.splitlines()
    # Excel begins a file with a line such as "sep=;".
    stated = lines[0].casefold() if lines else ""
    begin = int(len(stated) == 5 and stated.startswith("sep="))
    delimiter = stated[4] if begin else max(",;\t", key=stated.count)
    read = enumerate(csv.reader(lines[begin:], delimiter=delimiter), begin + 1)
    rows = [(n, row) for n, row in read if any(row)]
    names = [word.strip().casefold() for word in rows[0][1]] if rows else []
    columns = [0, 1]
    if "threshold" in names and (known := [word for word in _CLASS_COLUMNS if word in names]):
        columns, rows = [names.index(known[0]), names.index("threshold")], rows[1:]
    elif len(names) != 2:
        raise DataError(f"{path}: expected the columns class and threshold, found {', '.join(names) or 'nothing'}.")
    if not rows:
        raise DataError(f"{path} has no threshold.")
    for n, row in rows:
        if len(row) <= max(columns):
            raise DataError(f"{path} row {n}: {counted(len(row), 'cell')}; expected a class and a threshold.")
        value = row[columns[1]].strip()
        # Beside a semicolon, spreadsheets of many countries write a comma for the decimal point.
        yield Entry(f"{path} row {n}", row[columns[0]].strip(), value.replace(",", ".") if delimiter == ";" else value)


def _by_precision(
    info: ModelInfo, wanted: float, run: Path | None, skip: set[int]
) -> tuple[dict[int, float], list[str]]:
    """Return thresholds by position, chosen on the stored validation scores, and messages about the other classes."""
    where = flag("precision")
    if not 0 < wanted <= 1:
        meant = f" (did you mean {wanted / 100:g}?)" if 1 < wanted <= 100 else ""
        raise ConfigError(f"{where} {wanted:g}: expected a number above 0 and at most 1{meant}.")
    logits, labels = validation_scores(info, run)
    found = precision_thresholds(sigmoid(logits), labels, wanted)
    chosen = {c: float(found.values[c]) for c in np.flatnonzero(np.isfinite(found.values)).tolist() if c not in skip}
    display = info.classes.display
    groups: dict[str, list[str]] = {"few": [], "missed": []}
    for c in range(len(display)):
        if c in chosen or c in skip:
            continue
        kept = f"keeps {info.thresholds[c]:.3g}"
        if found.judged[c]:
            groups["missed"].append(f"{display[c]} (at best {found.best[c]:.2f}; {kept})")
        else:
            have = counted(int((labels[:, c] == Label.POSITIVE).sum()), "positive")
            groups["few"].append(f"{display[c]} ({have}; {kept})")
    texts = {
        "missed": f"the precision {wanted:g} on validation with 5 positives or more",
        "few": "the 5 positives and the negative in validation that a precision needs",
    }
    notes = [
        f"warning: {counted(len(names), 'class does', 'classes do')} not {'reach' if kind == 'missed' else 'have'} "
        f"{texts[kind]}: {', '.join(names[:MOST_NAMED])}{', ...' if len(names) > MOST_NAMED else ''}"
        for kind, names in groups.items()
        if names
    ]
    return chosen, notes


def store_thresholds(place: Path, info: ModelInfo) -> list[str]:
    """Write thresholds into the model of a run folder, or into a model file; return messages about what was written.

    The evaluations of a run folder are computed again from its stored scores.

    Raises:
        CheckpointError: there is no model, another process works in the folder, or the model was calibrated after
            `info` was read.
        ConfigError: it is an ONNX file.
    """
    path = model_path(place)
    if path.suffix.lower() == ENDING:
        raise ConfigError(
            f"{path} is an exported file, which does not change; store thresholds in the run folder, then export again."
        )
    chosen = Thresholds(np.array(info.thresholds), tuple(map(ThresholdRule, info.threshold_rules)))
    messages = []
    with locked(path.parent) if place.is_dir() else nullcontext():
        net, before = load_model(path)
        if before.calibration != info.calibration:
            raise CheckpointError(f"{path} was calibrated while its thresholds were chosen; give the command again.")
        unedited = place.is_dir() and is_unedited(place, before)
        if place.is_dir() and before.calibration is not None:
            keep_as_trained(place, before)
        for scores in sorted((place / "evaluation").glob("*.npy")) if place.is_dir() else ():
            table = place / "tables" / f"{scores.stem}.parquet"
            if table.exists():
                logits = as_calibrated(before, place, scores.stem)
                write_evaluation(place, scores.stem, logits, load(table), chosen, info.groups)
                messages.append(f"evaluation of {scores.stem} is computed again at these thresholds")
        if unedited:
            write_card(place, info)
        save_model(path, net, info)
    if place.is_dir() and (place / CARD_FILE).exists() and not unedited:
        messages.append(f"{place / CARD_FILE} was edited, so it keeps the earlier thresholds and metrics")
    if (place / "report.html").exists():
        messages.append(f"report.html shows the earlier thresholds; write it again with `fewtags report {place}`")
    return [f"stored in {path}", *messages]


def validation_scores(
    info: ModelInfo, run: Path | None, what: str = ""
) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Return the logits [N, C] of the validation photos of a run, and their labels int8 [N, C].

    `what` is the option that needs them, for messages; default: the precision.

    Raises:
        ConfigError: there is no run folder with validation scores.
        CheckpointError: a file is damaged.
    """
    scores, table = (None, None) if run is None else (run / "evaluation" / "val.npy", run / "tables" / "val.parquet")
    if run is None or scores is None or table is None or not (scores.exists() and table.exists()):
        raise ConfigError(
            f"{what or flag('precision')} needs the validation scores of the run; give the run folder"
            f"{'' if run is None else f' ({run} has none)'}, not only its model."
        )
    logits, labels = as_calibrated(info, run, "val"), load(table).matrix.dense()
    if logits.shape != labels.shape or labels.shape[1] != len(info.class_ids):
        raise ConfigError(
            f"{scores} and {table} do not belong together, or not to this model; give another run folder."
        )
    return logits, labels
