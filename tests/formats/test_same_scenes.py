"""The same boxes written in every format for objects give the same table, also for photos that EXIF turns."""

import json
from itertools import groupby

import numpy as np
import pytest

from fewtags.formats.read import read

CLASSES = ("cat", "dog", "person")


@pytest.fixture
def scenes(make_photo):
    """(name, width, height, boxes) of ten photos as they are displayed; a box is class, x0, y0, x1, y1 in pixels."""
    rng = np.random.default_rng(0)
    made = []
    for i in range(10):
        stored, orientation = (int(rng.integers(60, 90)), int(rng.integers(30, 50))), [1, 6, 8][i % 3]
        make_photo(f"images/p{i}.jpg", i, size=stored, orientation=orientation)
        width, height = stored if orientation == 1 else stored[::-1]
        corners = rng.uniform(0, 1, (int(rng.integers(0, 4)), 2, 2)) * (width, height)
        low, high = corners.min(1), corners.max(1) + 1
        boxes = np.concatenate([low, high.clip(None, (width, height))], 1)
        made.append((f"p{i}", width, height, [(int(rng.integers(3)), *map(float, box)) for box in boxes]))
    return made


def coco(scenes):
    images = [{"id": i, "file_name": f"{n}.jpg", "width": w, "height": h} for i, (n, w, h, _) in enumerate(scenes)]
    annotations = [
        {"id": 1, "image_id": i, "category_id": c, "bbox": [x0, y0, x1 - x0, y1 - y0]}
        for i, (*_, boxes) in enumerate(scenes)
        for c, x0, y0, x1, y1 in boxes
    ]
    categories = [{"id": i, "name": name} for i, name in enumerate(CLASSES)]
    return {"coco.json": json.dumps({"images": images, "annotations": annotations, "categories": categories})}


def voc(scenes):
    return {
        f"Annotations/{name}.xml": f"<annotation><size><width>{w}</width><height>{h}</height></size>"
        + "".join(
            f"<object><name>{CLASSES[c]}</name><bndbox><xmin>{x0 + 1}</xmin><ymin>{y0 + 1}</ymin><xmax>{x1}</xmax>"
            f"<ymax>{y1}</ymax></bndbox></object>"
            for c, x0, y0, x1, y1 in boxes
        )
        + "</annotation>"
        for name, w, h, boxes in scenes
    }


def yolo(scenes):
    rows = {
        f"labels/{name}.txt": "".join(
            f"{c} {(x0 + x1) / 2 / w} {(y0 + y1) / 2 / h} {(x1 - x0) / w} {(y1 - y0) / h}\n"
            for c, x0, y0, x1, y1 in boxes
        )
        for name, w, h, boxes in scenes
    }
    return {"data.yaml": f"train: images\nnames: [{', '.join(CLASSES)}]\n", **rows}


def openimages(scenes):
    rows = [
        f"{name},xclick,/m/{c},1,{x0 / w},{x1 / w},{y0 / h},{y1 / h}\n"
        for name, w, h, boxes in scenes
        for c, x0, y0, x1, y1 in boxes
    ]
    head = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax\n"
    return {"b.csv": head + "".join(rows), "c.csv": "".join(f"/m/{c},{name}\n" for c, name in enumerate(CLASSES))}


def labelstudio(scenes):
    def region(c, x0, y0, x1, y1, w, h):
        value = {"x": 100 * x0 / w, "y": 100 * y0 / h, "width": 100 * (x1 - x0) / w, "height": 100 * (y1 - y0) / h}
        labels = {"rectanglelabels": [CLASSES[c]], "rotation": 0}
        size = {"original_width": w, "original_height": h, "image_rotation": 0}
        return {"type": "rectanglelabels", "value": value | labels, **size}

    tasks = [
        {
            "data": {"image": f"/data/local-files/?d=images/{name}.jpg"},
            "annotations": [{"result": [region(*box, w, h) for box in boxes]}],
        }
        for name, w, h, boxes in scenes
    ]
    return {"ls.json": json.dumps(tasks)}


def cvat(scenes):
    images = [
        f'<image name="{name}.jpg" width="{w}" height="{h}">'
        + "".join(
            f'<box label="{CLASSES[c]}" xtl="{x0}" ytl="{y0}" xbr="{x1}" ybr="{y1}"/>' for c, x0, y0, x1, y1 in boxes
        )
        + "</image>"
        for name, w, h, boxes in scenes
    ]
    return {"annotations.xml": f"<annotations>{''.join(images)}</annotations>"}


def content(table):
    """Per photo its (class, box) in order."""
    rows = [
        (
            table.images[f["image"]].as_py().rpartition("/")[2],
            table.classes.ids[f["class"]],
            tuple(round(f[n], 5) for n in ("x0", "y0", "x1", "y1")),
        )
        for f in table.facts.to_pylist()
    ]
    return {name: [row[1:] for row in group] for name, group in groupby(sorted(rows), lambda row: row[0])}


@pytest.mark.parametrize(
    ("write", "path"),
    [
        (coco, "coco.json"),
        (voc, "Annotations"),
        (yolo, "data.yaml"),
        (openimages, "b.csv"),
        (labelstudio, "ls.json"),
        (cvat, "annotations.xml"),
    ],
)
def test_every_format_gives_the_same_boxes(scenes, tmp_path, write, path):
    for name, text in write(scenes).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    expected = {
        f"{name}.jpg": sorted(
            (CLASSES[c], tuple(round(float(np.float32(v)), 5) for v in (x0 / w, y0 / h, x1 / w, y1 / h)))
            for c, x0, y0, x1, y1 in boxes
        )
        for name, w, h, boxes in scenes
        if boxes
    }
    table = read(tmp_path / path)
    got = content(table)
    assert got.keys() == expected.keys()
    for name, rows in expected.items():
        assert [row[0] for row in got[name]] == [row[0] for row in rows]
        np.testing.assert_allclose([row[1] for row in got[name]], [row[1] for row in rows], atol=2e-5)
    assert table.root is not None
