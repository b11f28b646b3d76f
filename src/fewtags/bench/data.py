"""The data of a protocol, from the files as they are published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import final

import numpy as np
from numpy.typing import NDArray

from fewtags.bench.located import Places, boxed_places, masked_places, share_on_object
from fewtags.bench.protocol import Job, Protocol, budget_of, kind_of
from fewtags.bench.sections import Part
from fewtags.budget.cole import coco_in_order, cole_benchmark, refuse_missing, voc_in_order
from fewtags.budget.costs import Annotation, CostModel, find_cost
from fewtags.budget.purchase import PointRule, simulate_budget
from fewtags.budget.simulate import COLE_SEED, cole_split, single_positive
from fewtags.errors import ConfigError, DataError
from fewtags.formats.common import read_json
from fewtags.formats.options import ReadOptions
from fewtags.formats.read import detect, read
from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable
from fewtags.text import quoted


@final
@dataclass(frozen=True, eq=False)
class Observed:
    """What a run learns from.

    Attributes:
        labels: the known labels of the training images.
        truth: their complete labels, if the method may see images without known labels; else None.
        cost: of annotation, if a budget bought the labels.
    """

    labels: LabelTable
    truth: LabelTable | None = None
    cost: CostModel | None = None


@final
class SetData:
    """A data set of a protocol; files are read when they are asked for.

    Args:
        protocol: what is read.
        set_name: one of its data sets.
        root: folder with labels and photos in their published layout.
    """

    def __init__(self, protocol: Protocol, set_name: str, root: Path) -> None:
        self.protocol, self.own, self.root = protocol, protocol.sets[set_name], root
        self.set_name = set_name
        self._pointed = lru_cache(maxsize=3)(self._read_pointed)
        self._listed = lru_cache(maxsize=2)(self._read_listed)

    # --- what runs use

    def observed(self, job: Job) -> Observed:
        """What a run learns from."""
        row = self.protocol.rows[job.row]
        if self.own.draw == "purchase":
            return self._bought(job, row.unlabelled)
        if self.own.draw == "cole":
            return Observed(self._complete_train if row.labels == "complete" else self._cole["train"])
        return Observed(self._listed(job.known, row.labels == "complete"))

    @cached_property
    def val(self) -> LabelTable:
        """Complete labels of the images that choose an epoch and a combination of the grid."""
        return self._cole["val"] if self.own.draw == "cole" else self._test.subset(self._chosen[0])

    @cached_property
    def val_boxes(self) -> LabelTable:
        """The objects of the validation images of Cole's benchmark, with their boxes; in the order of `val`."""
        assert self.own.draw == "cole"
        part = self.own.train.model_copy(update={"options": {**self.own.train.options, "places": "boxes"}})
        table = self._read(part)
        row = {key: n for n, key in enumerate(table.images.to_pylist())}
        val = self.official.subset(self._parts[1])  # with the names of images that the file has
        return table.subset([row[key] for key in val.images.to_pylist()])

    @cached_property
    def test(self) -> LabelTable:
        """Complete labels of the images that are measured on."""
        return self._cole["test"] if self.own.draw == "cole" else self._test.subset(self._chosen[1])

    @cached_property
    def single(self) -> NDArray[np.int64] | None:
        """int64 [N]: the class of each test photo's folder, if the data set has such folders.

        Raises:
            DataError: a folder is not a class.
        """
        if not self.own.single:
            return None
        keys, classes = self.test.images.to_pylist(), self.test.classes
        folders = [PurePosixPath(key).parent.name for key in keys]
        if other := next((key for key, folder in zip(keys, folders, strict=True) if folder not in classes), None):
            raise DataError(
                f"{self.root / str(self.own.test.images)}: {quoted(other)} is not in the folder of a class, such as "
                f"{classes.ids[0]}/; the top-1 accuracy on single labels needs these folders."
            )
        return np.array([classes.index(folder) for folder in folders], np.int64)

    @cached_property
    def located(self) -> NDArray[np.int64]:
        """Which images of `test` heatmaps are measured on."""
        count = 0 if self.protocol.purchase is None else self.protocol.purchase.located_images
        return np.sort(np.random.default_rng(0).permutation(len(self.test))[:count])

    @cached_property
    def places(self) -> Places:
        """Where the classes are in the located images."""
        part, purchase = self.test.subset(self.located), self.protocol.purchase
        masked = purchase is not None and purchase.masks
        return masked_places(self.root / self.own.test.labels, part) if masked else boxed_places(part)

    def on_object(self, job: Job, grid: tuple[int, int]) -> float | None:
        """The share of labelled patches that masks fill to half; None without masks, or for tags. See `located`."""
        purchase = self.protocol.purchase
        if purchase is None or not purchase.masks or not len(self.located) or kind_of(job.known) is Annotation.TAGS:
            return None
        given = self._of("test", job.known, job.seed).subset(self._chosen[1][self.located])
        return share_on_object(given, self.places, grid)

    def sizes(self) -> dict[str, int]:
        """Numbers of images: train, val and test."""
        first = next(iter(self.protocol.knowns))
        if self.own.draw == "purchase":
            train = len(self._of("train", first, 0))
        else:
            train = len(self._cole["train"] if self.own.draw == "cole" else self._listed(first, False))
        return {"train": train, "val": len(self.val), "test": len(self.test)}

    @property
    def is_real(self) -> bool:
        """Whether images without any label are left out of counts, as those of ReaL."""
        return self.own.draw == "none"

    def complete_parts(self) -> dict[str, LabelTable]:
        """All labels of train, val and test; val only if it is apart from the test images."""
        if self.own.draw != "cole":
            return {"train": self._listed(next(iter(self.protocol.knowns)), False), "test": self._test}
        train, val = (self.official.subset(index) for index in self._parts)
        return {"train": train, "val": val, "test": self.test}

    def drawn_parts(self) -> dict[str, LabelTable]:
        """The drawn labels of train, and those that would be drawn of val; none if nothing is drawn."""
        if self.own.draw != "cole":
            return {}
        drawn = single_positive(self.official, COLE_SEED, "cole")
        return {name: drawn.subset(index) for name, index in zip(("train", "val"), self._parts, strict=True)}

    # --- Cole's benchmark

    @cached_property
    def official(self) -> LabelTable:
        """Complete labels of the official training images, in the published order."""
        return self._in_order(self.own.train)

    @cached_property
    def _cole(self) -> dict[str, LabelTable]:
        return cole_benchmark(self.official, self._in_order(self.own.test)).named_splits()

    @cached_property
    def _complete_train(self) -> LabelTable:
        return self.official.subset(self._parts[0])

    @cached_property
    def _parts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return cole_split(len(self.official))

    def _in_order(self, part: Part) -> LabelTable:
        """Read complete labels; COCO and VOC are put in the order of the published labels."""
        path = self.root / part.labels
        table = self._read(part)
        kind = part.format or detect(path)[0]
        if kind == "coco":
            return coco_in_order(path, self._images(part), table)
        if kind == "voc":
            return voc_in_order(path, table)
        refuse_missing(path, table)
        return table

    # --- labels as they are, and purchases

    @cached_property
    def _test(self) -> LabelTable:
        if self.own.draw == "purchase":
            return self._of("test", "SB", 0)
        return self._numbered(self._read(self.own.test))

    @cached_property
    def _chosen(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Validation and test images, in the order of the file."""
        n, val = len(self._test), self.own.val_images
        if not 0 < val < n:
            raise ConfigError(
                f"sets.{self.set_name}.val_images is {val}, but the test part has {n:,} images; choose at least 1, "
                "and fewer."
            )
        order = np.random.default_rng(0).permutation(n)
        return np.sort(order[:val]), np.arange(n) if self.own.monitor else np.sort(order[val:])

    def _bought(self, job: Job, unlabelled: bool) -> Observed:
        purchase = self.protocol.purchase
        assert purchase is not None
        truth = self._of("train", job.known, job.seed)
        cost = find_cost(purchase.cost, truth)
        rule: PointRule = "centre" if purchase.points == "centre" else "uniform"  # a point in a mask is one already
        kind = job.known.partition(" ")[0]
        bought = simulate_budget(truth, budget_of(job.known), kind, job.seed, cost, mode=purchase.mode, points=rule)
        if unlabelled:
            return Observed(bought, truth, cost)
        return Observed(bought.subset(bought.matrix.image_counts(Label.UNKNOWN) < len(bought.classes)), None, cost)

    def complete_train(self, job: Job) -> LabelTable:
        """Complete labels of the training images that a budget buys from."""
        return self._of("train", job.known, job.seed)

    def _of(self, part: str, known: str, seed: int) -> LabelTable:
        purchase = self.protocol.purchase
        assert purchase is not None
        pointed = kind_of(known).pointed and purchase.points == "mask"
        return self._pointed(part, pointed, seed if pointed else 0)

    def _read_pointed(self, part: str, pointed: bool, seed: int) -> LabelTable:
        files = self.own.train if part == "train" else self.own.test
        places = {"places": "points" if pointed else "boxes", "point_seed": seed}
        return self._read(files.model_copy(update={"options": {**files.options, **places}}))

    def _read_listed(self, known: str, complete: bool) -> LabelTable:
        """Read the labels of a condition."""
        condition = self.protocol.conditions.get(known)
        labels = self.own.train.labels if condition is None or condition.labels is None else condition.labels
        options = {**self.own.train.options, "complete": complete}
        return self._numbered(self._read(self.own.train.model_copy(update={"labels": labels, "options": options})))

    def _numbered(self, table: LabelTable) -> LabelTable:
        """Return a table of numbered classes with the names of a COCO file's categories, in the order of their ids."""
        if self.own.classes is None or not all(name.isdigit() for name in table.classes.ids):
            return table
        file = self.root / self.own.classes
        names = [record["name"] for record in sorted(read_json(file)["categories"], key=lambda record: record["id"])]
        if (last := max(map(int, table.classes.ids))) >= len(names):
            raise DataError(f"class {last} of the labels is not among the {len(names)} categories of {file}.")
        return replace(table, classes=ClassNames.of(names[int(i)] for i in table.classes.ids))

    # --- files

    def missing(self) -> list[str]:
        """The files and folders that the data set needs, and that do not exist."""
        parts = [self.own.train, self.own.test]
        needed = [path for part in parts for path in (part.labels, part.images) if path is not None]
        labels = [c.labels for c in self.protocol.conditions.values() if c.labels is not None]
        needed = [*(labels or []), *(path for path in needed if not labels or path != self.own.train.labels)]
        needed += [self.own.classes] if self.own.classes is not None else []
        return [path for path in dict.fromkeys(needed) if not (self.root / path).exists()]

    def _images(self, part: Part) -> Path | None:
        return None if part.images is None else self.root / part.images

    def _read(self, part: Part) -> LabelTable:
        options = ReadOptions(**{"complete": True, **part.options})
        table = read(self.root / part.labels, images=self._images(part), format=part.format, options=options)
        if part.split is None:
            return table
        named = {} if table.split_names is None else table.named_splits()
        if part.split not in named:
            raise DataError(f"{self.root / part.labels}: there is no split {part.split!r}, only {', '.join(named)}.")
        return named[part.split]


def missing_folders(protocol: Protocol, name: str, root: Path) -> list[str]:
    """The folder of a task if it does not exist; what lacks in it is reported when it is read."""
    folder = protocol.tasks[name].folder
    return [] if (root / folder).is_dir() else [folder]


def refuse_missing_files(protocol: Protocol, set_names: Sequence[str], root: Path) -> None:
    """Raise DataError that names all files that do not exist, and where to get them."""
    lacking = {
        name: SetData(protocol, name, root).missing()
        if name in protocol.sets
        else missing_folders(protocol, name, root)
        for name in set_names
    }
    sets = protocol.data
    lines = [f"{sets[n].title}: {', '.join(files)}. Get them: {sets[n].get}" for n, files in lacking.items() if files]
    photos = protocol.pretraining
    if photos is not None and not (root / photos.photos).exists():
        lines.append(f"photos to pretrain on: {photos.photos}. Get them: {photos.get}")
    if lines:
        where = f"{root} is not a folder" if not root.is_dir() else f"{root} lacks files of {protocol.name}"
        raise DataError("\n  ".join([f"{where}:", *lines]))
