"""The layout of a YOLO data set: its photos, label files, splits and class names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import yaml

from fewtags.errors import DataError
from fewtags.formats.common import is_hidden, is_split, plain_text, text_of
from fewtags.formats.locate import extension, folder_of, is_photo, path_is
from fewtags.formats.locate_end import find_by_end, is_address, path_of
from fewtags.table.table import Excluded
from fewtags.text import counted, quoted, some

_PLAIN_TAGS = (
    None,
    "!",
    *(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")),
)
SPLITS = ("train", "val", "valid", "validation", "test")
CLASS_FILES = ("classes.txt", "labels/classes.txt", "obj.names", "labels/obj.names")
_DEEPEST = 20
_NESTED = re.compile(r"(?:[\[{]\s*){50}")
"""Brackets that the parser would look through many times before it gives the first event."""
_LARGEST, LARGEST_LABELS, _LARGEST_LIST = 1 << 20, 1 << 24, 1 << 30  # bytes
_NAMES = re.compile(r"^[\"']?names[\"']?\s*:", re.MULTILINE)


@final
@dataclass(frozen=True, kw_only=True)
class YoloFolder:
    """A YOLO data set.

    Attributes:
        named_in: the file with the class names.
        keypoints: number of keypoint values after a box.
        images: image names relative to `root`; without an extension if only the label file exists.
        labels: the label file of each image, or None.
        splits: the split of each image, or "".
        photos: whether any photo exists.
        messages: what else was found.
        repeated: images that are in several splits.
    """

    root: Path
    names: Mapping[int, str]
    named_in: Path
    keypoints: int
    images: Sequence[str]
    labels: Sequence[Path | None]
    splits: Sequence[str]
    photos: bool
    messages: tuple[str, ...]
    repeated: tuple[Excluded, ...]


def find_yolo(path: Path) -> YoloFolder:
    """Find all parts of a data set: `path` is its `data.yaml`, or a folder with that or with `classes.txt`.

    Raises:
        DataError: there are no class names or no label files, or a folder that the YAML file names does not exist.
    """
    home, file = _home(path)
    config = {} if file is None else _load(file)
    names, named_in = _class_names(home, file, config)
    given = config.get("path")
    # Paths in a YAML file are relative to its key `path`, or to its own folder.
    roots = [*([Path(os.path.normpath(home / given))] if isinstance(given, str) and given.strip() else []), home]
    parts = [*_parts(config, roots, home, file)]
    found = _Images(home=home)
    for split, where in parts or [("", home)]:
        found.add(split, where)
    if not any(found.labels_of.values()):
        raise DataError(f"{path}: there is no label file of a photo; expected images/ and, beside it, labels/.")
    within = (folder for folder in (home, *roots) if all(image.is_relative_to(folder) for image in found.labels_of))
    root = next(within, None) or Path(os.path.commonpath([image.parent for image in found.labels_of]))
    names_of = [image.relative_to(root).as_posix() for image in found.labels_of]
    splits = [*found.splits.values()] if parts else [*map(_split_of, names_of)]
    counted = str(config.get("nc", len(names))).strip()
    note = f"nc is {counted:.20}, but there are {len(names)} names; the names count"
    return YoloFolder(
        root=root,
        names=names,
        named_in=named_in,
        keypoints=_keypoints(config, file),
        images=names_of,
        labels=list(found.labels_of.values()),
        splits=splits,
        photos=found.photos,
        messages=(*([] if counted == str(len(names)) else [note]), *found.messages()),
        repeated=tuple(
            Excluded(image.relative_to(root).as_posix(), reason, str(home), "splits")
            for image, reason in found.repeated.items()
        ),
    )


def names_classes(file: Path) -> bool:
    """Return whether a file is a YAML file with a key `names`, as YOLO data sets have."""
    named = file.suffix.lower() in (".yaml", ".yml") and not file.name.startswith(".")
    if not named or not file.is_file() or file.stat().st_size > _LARGEST:
        return False
    try:
        return _NAMES.search(file.read_bytes().decode("utf-8-sig", "replace")) is not None
    except OSError:  # the reader reports it
        return False


def _home(path: Path) -> tuple[Path, Path | None]:
    """Return the folder of the data set, and its YAML file if there is one."""
    if not path.is_dir():
        if path.suffix.lower() not in (".yaml", ".yml"):
            raise DataError(f"{path}: expected the data.yaml of a YOLO data set, or its folder.")
        return folder_of(path), path
    home = Path(os.path.normpath(path.absolute()))
    if home.name == "labels":
        home = home.parent
    files = [file for file in sorted(home.iterdir()) if names_classes(file)]
    if len(files) > 1:
        raise DataError(f"{path}: {some([file.name for file in files])} all name classes; pass the one to read.")
    return home, files[0] if files else None


def _load(file: Path) -> dict[str, Any]:
    """Load a YAML file with every scalar as text, so that a class "no" or "1e3" keeps its name. Aliases are refused."""
    text = text_of(file, _LARGEST, "the data.yaml of a YOLO data set")
    try:
        if _NESTED.search(text):
            raise RecursionError
        _refuse_unread(file, yaml.parse(text, yaml.SafeLoader))
        if twice := _repeated_key(yaml.compose(text, yaml.BaseLoader)):
            raise DataError(f"{file}: {twice}; leave one of them.")
        found = yaml.load(text, yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        trouble = " ".join(str(error).split()) if isinstance(error, yaml.YAMLError) else "nested too deeply"
        raise DataError(f"{file}: not valid YAML ({trouble[:200]}).") from None
    if not isinstance(found, dict):
        raise DataError(f"{file}: expected keys such as train, val and names, as in the data.yaml of YOLO.")
    return found


def _refuse_unread(file: Path, events: Iterable[yaml.Event]) -> None:
    """Refuse aliases, tags and deep nesting, event by event: the time of parsing grows with the square of depth.

    Raises:
        DataError: there is one of them.
    """
    depth = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            raise DataError(f"{file}: uses YAML aliases (*name), which are not read; write the values out.")
        if (tag := getattr(event, "tag", None)) not in _PLAIN_TAGS:
            line = event.start_mark.line + 1
            raise DataError(f"{file}: line {line} uses the YAML tag {tag!r}, which is not read; remove it.")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise DataError(f"{file}: is nested more than {_DEEPEST} levels deep; a data.yaml needs two.")


def _repeated_key(node: yaml.Node | None) -> str:
    """Describe the first key that occurs twice, because parsers keep only the last one; return "" without such keys."""
    if isinstance(node, yaml.SequenceNode):
        return next(filter(None, map(_repeated_key, node.value)), "")
    if not isinstance(node, yaml.MappingNode):
        return ""
    lines: dict[str, int] = {}
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            line = key.start_mark.line + 1
            if key.value in lines:
                return f"{key.value[:40]!r} is in line {lines[key.value]} and again in line {line}"
            lines[key.value] = line
        if found := _repeated_key(value):
            return found
    return ""


def _class_names(home: Path, file: Path | None, config: Mapping[str, Any]) -> tuple[dict[int, str], Path]:
    if file is not None and "names" in config:
        found = config["names"]
        numbered = dict(enumerate(found)) if isinstance(found, list) else found
        if not isinstance(numbered, dict) or not all(isinstance(name, str) for name in numbered.values()):
            raise DataError(f"{file}: names must be a list, or number: name for each class.")
        if wrong := next((key for key in numbered if not _is_count(key)), None):
            raise DataError(f"{file}: names has the key {wrong!r:.40}; expected the number of a class.")
        names = {int(key): name.strip() for key, name in numbered.items()}
        if len(names) < len(numbered):
            raise DataError(f"{file}: names gives several names to one class number; leave one of them.")
        named_in = file
    else:
        listed = next((home / name for name in CLASS_FILES if (home / name).is_file()), None)
        if listed is None:
            where = home if file is None else file
            raise DataError(
                f"{where}: no file names the class numbers; expected names in a data.yaml, or a "
                "classes.txt with a name per line."
            )
        names, named_in = dict(enumerate(line.strip() for line in text_of(listed, LARGEST_LABELS).splitlines())), listed
    names = {key: name for key, name in sorted(names.items()) if name}
    if not names:
        raise DataError(f"{named_in}: names no class, so there is nothing to learn.")
    return names, named_in


def _is_count(text: object) -> bool:
    """Return whether a text is a count of at most nine plain digits."""
    return str(text).isascii() and str(text).isdigit() and len(str(text)) < 10


def _keypoints(config: Mapping[str, Any], file: Path | None) -> int:
    shape = config.get("kpt_shape")
    if shape is None:
        return 0
    if not isinstance(shape, list) or len(shape) != 2 or not all(map(_is_count, shape)):
        raise DataError(f"{file}: kpt_shape must be two numbers, as in [17, 3].")
    return int(shape[0]) * int(shape[1])


def _parts(
    config: Mapping[str, Any], roots: Sequence[Path], home: Path, file: Path | None
) -> Iterator[tuple[str, Path]]:
    """Yield the folders and lists of photos of each split, if their photos or their labels exist.

    Roboflow writes "../train/images" for a folder beside the YAML file.
    """
    for key in (key for key in config if is_split(key)):
        value = config[key]
        if value is None or value in ("", "null", "~"):
            continue
        for text in map(plain_text, value if isinstance(value, list) else [value]):
            if not text:
                raise DataError(f"{file}: {key} must be a folder, a list of photos, or several of them.")
            tried = [Path(os.path.normpath(root / part)) for part in (text, text.removeprefix("../")) for root in roots]
            for candidate in tried:
                labels = _swapped(candidate, "images", "labels", home)
                if path_is(Path.exists, candidate) or path_is(Path.is_dir, labels):
                    yield is_split(key), candidate
                    break
            else:
                places = some([*map(str, dict.fromkeys(tried))])
                raise DataError(
                    f"{file}: {key} is {quoted(text)}, which does not exist; tried {places}. Correct the path, or "
                    f"remove {key} if the data set has no such part."
                )


def _swapped(path: Path, old: str, new: str, home: Path) -> Path:
    """Return the path with its last part `old` below `home` replaced, or the path itself if it has no such part."""
    parts = list(path.parts)
    first = len(home.parts) if path.is_relative_to(home) else 0
    if old not in parts[first:]:
        return path
    parts[len(parts) - 1 - parts[::-1].index(old)] = new
    return Path(*parts)


@final
@dataclass(kw_only=True)
class _Images:
    """The images of a data set, with label file and split of each; grows while folders are added."""

    home: Path
    labels_of: dict[Path, Path | None] = field(default_factory=dict)
    splits: dict[Path, str] = field(default_factory=dict)
    photos: bool = False
    _stray: int = 0
    repeated: dict[Path, str] = field(default_factory=dict)
    by_end: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    _listed: dict[Path, frozenset[str]] = field(default_factory=dict)

    def add(self, split: str, where: Path) -> None:
        """Add all images of a folder, or of a file that lists them."""
        if where.is_file():
            images = self._of_list(where)
            self.photos = self.photos or any(path_is(Path.is_file, image) for image in images[:20])
        else:
            images = _files(where, is_photo)
            self.photos = self.photos or bool(images)
        labels = {image: self._label_of(image) for image in images}
        if not where.is_file():
            unused = [file for file in self._label_files(where) if file not in {*labels.values()}]
            labels |= {_swapped(file.with_suffix(""), "labels", "images", self.home): file for file in unused}
        for image, label in labels.items():
            if (first := self.splits.setdefault(image, split)) != split:
                self.repeated[image] = f"is in {first} and in {split}; the first of them counts"
            self.labels_of.setdefault(image, label)

    def messages(self) -> Iterator[str]:
        """Yield what was left out."""
        if self._stray:
            one, many = "file outside of labels/ has no photo", "files outside of labels/ have no photo"
            yield counted(
                self._stray, f".txt {one} of its name and is ignored", f".txt {many} of their name and are ignored"
            )
        for name, (n, line, key) in self.by_end.items():
            found = f"{counted(n, 'photo')} of {name} found by the end of the path"
            yield f"{found}, for example {quoted(key)} for {quoted(line)}"
        if self.repeated:
            yield counted(
                len(self.repeated),
                "photo is in several splits; the first of them counts",
                "photos are in several splits; the first of them counts",
            )

    def _label_files(self, folder: Path) -> list[Path]:
        """Return label files of a folder of photos: in `labels` instead of `images`, or in `labels` below it."""
        beside = _swapped(folder, "images", "labels", self.home)
        found = [file for file in _files(beside, lambda name: extension(name) == ".txt") if file.name != "classes.txt"]
        if beside != folder:
            return found
        inside = [file for file in found if "labels" in file.relative_to(folder).parts[:-1]]
        for file in {*found} - {*inside}:
            photos = {name.rpartition(".")[0] for name in self._listing(file.parent) if is_photo(name)}
            self._stray += file.with_suffix("").name not in photos
        return inside

    def _label_of(self, image: Path) -> Path | None:
        """Return the label file of a photo: in `labels` instead of `images`, or beside it."""
        name = f"{image.stem if is_photo(image.name) else image.name}.txt"
        folders = dict.fromkeys((_swapped(image.parent, "images", "labels", self.home), image.parent))
        return next((folder / name for folder in folders if name in self._listing(folder)), None)

    def _of_list(self, file: Path) -> list[Path]:
        """Return the photos that a file lists: relative to its folder or to one above, or by the end of their path."""
        lines = [line.strip() for line in text_of(file, _LARGEST_LIST).splitlines() if line.strip()]
        lines = [line for line in lines if not is_hidden(line.replace("\\", "/").rpartition("/")[2])]
        roots = (file.parent, *file.parent.parents[:2])
        sample = [Path(line) for line in lines[:: max(1, len(lines) // 20)]]

        def hits(root: Path) -> int:
            return sum(path_is(Path.is_file, root / p) or self._label_of(root / p) is not None for p in sample)

        root = max(roots, key=hits)
        images = {line: Path(os.path.normpath(root / line)) for line in lines}
        return [(images | self._by_end(images, file))[line] for line in lines]

    def _by_end(self, images: Mapping[str, Path], file: Path) -> dict[str, Path]:
        """Return the photos of lines that were written on another computer, by the end of their path."""
        lost = [line for line, image in images.items() if not self._is_known(image)]
        far = [line for line in lost if len(lost) * 2 > len(images) or is_address(line) or "\\" in line]
        if not far:
            return {}
        known = [image for image in images.values() if image.is_relative_to(self.home) and self._is_known(image)]
        taken = [image.relative_to(self.home).as_posix() for image in known]
        found, _ = find_by_end(far, self.home, taken=taken, split=is_split(file.stem))
        if found:
            self.by_end[file.name] = len(found), *next(iter(found.items()))
        # A photo that is not found stays below the folder of the data set, and is reported as missing.
        return {line: self.home / found.get(line, path_of(line).lstrip("/")) for line in far}

    def _is_known(self, image: Path) -> bool:
        return image.name in self._listing(image.parent) or self._label_of(image) is not None

    def _listing(self, folder: Path) -> frozenset[str]:
        if folder not in self._listed:
            there = path_is(Path.is_dir, folder)
            self._listed[folder] = frozenset(entry.name for entry in os.scandir(folder)) if there else frozenset()
        return self._listed[folder]


def _files(folder: Path, wanted: Callable[[str], bool]) -> list[Path]:
    """Return files below a folder, sorted, without hidden ones."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        found += [Path(parent, name) for name in sorted(names) if not is_hidden(name) and wanted(name)]
    return found


def _split_of(name: str) -> str:
    """Return the split that is in the path of an image: images/train/a.jpg or train/images/a.jpg."""
    parts = [part for part in name.split("/")[:-1] if part not in ("images", "labels")]
    return is_split(parts[0]) if parts else ""
