"""A finished run without any training: everything that a report reads, made by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image

from fewtags.check.check import check
from fewtags.engine.evaluate import evaluate_logits
from fewtags.engine.gallery import GalleryPhoto, Panel, choose_roles
from fewtags.engine.model import ModelInfo
from fewtags.labels import ClassNames, Label
from fewtags.nets.spatial import HeadPlan
from fewtags.report.load import RunData
from fewtags.table.table import LabelTable

MakeRun = Callable[..., RunData]


def make_table(folder: Path, name: str, classes: ClassNames, *, images: int, complete: bool, seed: int) -> LabelTable:
    """Images that hold class i mod C and class i + 1 mod C; all labels, or the first positive alone."""
    count = len(classes)
    dense = np.full((images, count), Label.NEGATIVE if complete else Label.UNKNOWN, np.int8)
    rng = np.random.default_rng(seed)
    keys = [f"{name}/<b>&{i}.png" if i == 0 else f"{name}/{i}.png" for i in range(images)]
    for i, key in enumerate(keys):
        dense[i, i % count] = Label.POSITIVE
        if complete:
            dense[i, (i + 1) % count] = Label.POSITIVE
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (30, 40, 3)).astype(np.uint8)).save(folder / key)
    image, class_ = np.nonzero(dense)
    return LabelTable.build(
        keys, classes, image=image, class_=class_, state=dense[image, class_], source="made", root=folder
    )


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Make a run in memory; its photos and tables are on disk."""

    def make(
        name: str = "first",
        names: tuple[str, ...] = ("cat", "dog", "owl"),
        *,
        images: int = 12,
        seed: int = 0,
        complete: bool = True,
        policy: Literal["coco", "imagenet", "none"] = "coco",
        quality: float = 1.0,
        ids: tuple[str, ...] | None = None,
    ) -> RunData:
        classes = ClassNames.of(ids or [f"c{i}" for i in range(len(names))], names)
        folder = tmp_path / "photos"
        train = make_table(folder, "train", classes, images=images, complete=False, seed=1)
        val = make_table(folder, "val", classes, images=images + seed, complete=complete, seed=2)
        rng = np.random.default_rng(seed)
        labels = val.matrix.dense()
        logits = (quality * labels + rng.normal(size=labels.shape)).astype(np.float32)
        thresholds = np.full(len(names), 0.5)
        found = evaluate_logits(logits, labels, classes, thresholds).to_dict()
        rules = tuple("fitted" for _ in names)
        gallery = tuple(
            _shown(split, table, i, rng) for split, table in (("train", train), ("val", val)) for i in (0, 1)
        )
        info = ModelInfo(
            backbone="test_resnet",
            output_stride=0,
            head=HeadPlan(),
            size=64,
            policy=policy,
            class_ids=classes.ids,
            class_names=classes.names,
            thresholds=tuple(thresholds.tolist()),
            threshold_rules=rules,
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
            method={"name": "bce"},
            selection="the last epoch (2), chosen",
            version="0.1.0",
        )
        history = [
            {"epoch": e, "stage": "main", "train/loss": 0.5 - 0.1 * e, "val/mAP": 0.4 + 0.1 * e,
             "train/sum_of_probabilities": 1.0, "val/predicted_positives": 1.5}
            for e in range(2)
        ]  # fmt: skip
        return RunData(
            path=tmp_path / name,
            name=name,
            info=info,
            history=history,
            environment={
                "method": {"name": "expected_negative", "positives_per_image": 2.0, "scl_weight": 0.1},
                "notes": ["positives per image: 2.00, a guess"],
                "python": "3.11", "packages": {"torch": "2"}, "device": "cpu", "gpu": None,
            },
            resolved={"weights": "none", "seed": 0},
            check=json.loads(check({"train": train, "val": val}).to_json()),
            evaluations={"val": {**found, "threshold_rules": list(rules)}},
            logits={"val": logits},
            tables={"train": train, "val": val},
            gallery=gallery,
            progress={0: gallery, 1: gallery},
        )  # fmt: skip

    return make


def _shown(split: str, table: LabelTable, index: int, rng: np.random.Generator) -> GalleryPhoto:
    labels = table.matrix.rows([index])[0]
    prob = rng.uniform(size=len(labels)).astype(np.float32)
    panels = [
        Panel(c, role, float(prob[c]), rng.uniform(size=(2, 3)).astype(np.float16))
        for c, role in choose_roles(labels, labels, prob)
    ]
    return GalleryPhoto(split, table.images[index].as_py(), tuple(panels))
