"""Points that are drawn on objects: in the outline wherever a file has one, in every format."""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from annotated import PHOTOS, WRITERS, save_photo, write_text
from PIL import Image

from fewtags.formats.options import ReadOptions
from fewtags.formats.places import choose_places
from fewtags.formats.read import read
from fewtags.formats.stated import Stated
from fewtags.labels import Label

WIDTH, HEIGHT = 60, 40
TRIANGLE = [(10, 10), (50, 10), (10, 34)]  # in pixels; the box is (10, 10) to (50, 34), and half of it is outside
OBJECTS = 40


def in_triangle(x, y, slack=0.0):
    """Whether a point is in the triangle, in pixels; the hypotenuse is x / 40 + y / 24 = 1 from its corner."""
    return x >= 10 - slack and y >= 10 - slack and (x - 10) / 40 + (y - 10) / 24 <= 1 + slack / 15


def triangle_mask():
    y, x = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    return (x >= 10) & (y >= 10) & ((x - 10) / 40 + (y - 10) / 24 <= 1)


def runs_by_rows(mask):
    """Return run lengths, first outside, in plain Python."""
    counts, inside = [0], False
    for pixel in mask.ravel().tolist():
        if pixel != inside:
            counts.append(0)
            inside = pixel
        counts[-1] += 1
    return counts


def brush_of(mask):
    """Return the bytes of a brush mask of Label Studio, whose four channels are 255 or 0."""
    values = np.repeat(mask.ravel(), 4).astype(int) * 255
    bits = f"{len(values):032b}" + f"{7:05b}" + f"{15:04b}" * 4
    ends = [*(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    start = 0
    for n, end in enumerate(ends):
        if n == 1:  # one run is written value by value
            bits += "0" + "00" + f"{end - start - 1:016b}" + "".join(f"{v:08b}" for v in values[start:end].tolist())
        else:
            bits += "1" + "00" + f"{end - start - 1:016b}" + f"{values[start]:08b}"
        start = end
    bits += "0" * (-len(bits) % 8)
    return [int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)]


def coco(root, shape):
    column_runs = {"size": [HEIGHT, WIDTH], "counts": runs_by_rows(triangle_mask().T)}
    outline = [[n for p in TRIANGLE for n in p]] if shape == "polygon" else column_runs
    one = {"image_id": 1, "category_id": 1, "bbox": [10, 10, 40, 24], "segmentation": outline}
    image = {"id": 1, "file_name": "a.jpg", "width": WIDTH, "height": HEIGHT}
    annotations = [one | {"id": i} for i in range(OBJECTS)]
    content = {"images": [image], "annotations": annotations, "categories": [{"id": 1, "name": "cat"}]}
    return write_text(root / "c.json", json.dumps(content))


def cvat(root, shape):
    mask = triangle_mask()[10:34, 10:50]
    text = {
        "polygon": f'<polygon label="cat" points="{";".join(f"{x},{y}" for x, y in TRIANGLE)}"/>',
        "mask": '<mask label="cat" left="10" top="10" width="40" height="24" '
        f'rle="{", ".join(map(str, runs_by_rows(mask)))}"/>',
    }[shape]
    image = f'<image name="a.jpg" width="{WIDTH}" height="{HEIGHT}">{text * OBJECTS}</image>'
    return write_text(root / "a.xml", f"<annotations>{image}</annotations>")


def labelstudio(root, shape):
    corners = [[100 * x / WIDTH, 100 * y / HEIGHT] for x, y in TRIANGLE]
    value = {
        "polygon": {"points": corners, "polygonlabels": ["cat"]},
        "mask": {"format": "rle", "rle": brush_of(triangle_mask()), "brushlabels": ["cat"]},
    }[shape]
    kind = next(key for key in value if key.endswith("labels"))
    one = {"type": kind, "original_width": WIDTH, "original_height": HEIGHT, "value": value}
    task = {"data": {"image": "a.jpg"}, "annotations": [{"result": [one | {"id": str(i)} for i in range(OBJECTS)]}]}
    return write_text(root / "t.json", json.dumps([task]))


def datumaro(root, shape):
    place = {
        "polygon": {"points": [n for p in TRIANGLE for n in p]},
        "mask": {"rle": {"size": [HEIGHT, WIDTH], "counts": runs_by_rows(triangle_mask().T)}},
    }[shape]
    item = {"id": "a", "annotations": [{"type": shape, "label_id": 0} | place] * OBJECTS}
    item["image"] = {"path": "a.jpg", "size": [HEIGHT, WIDTH]}
    content = {"categories": {"label": {"labels": [{"name": "cat"}]}}, "items": [item]}
    return write_text(root / "annotations/default.json", json.dumps(content))


def labelme(root, shape):
    place = {
        "polygon": {"points": TRIANGLE},
        "mask": {"points": [[10, 10], [49, 33]], "mask": png_of(triangle_mask()[10:34, 10:50])},
    }[shape]
    shapes = [{"label": "cat", "shape_type": shape} | place] * OBJECTS
    content = {"shapes": shapes, "imagePath": "a.jpg", "imageWidth": WIDTH, "imageHeight": HEIGHT}
    return write_text(root / "a.json", json.dumps(content))


def png_of(mask):
    """Return a mask as LabelMe writes it, a PNG in base64."""
    file = io.BytesIO()
    Image.fromarray(mask.astype(np.uint8) * 255).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def yolo(root, shape):
    row = " ".join(f"{x / WIDTH} {y / HEIGHT}" for x, y in TRIANGLE)
    write_text(root / "a.txt", f"0 {row}\n" * OBJECTS)
    return write_text(root / "data.yaml", "names: [cat]\ntrain: .\n")


def voc(root, shape):
    box = "<bndbox><xmin>11</xmin><ymin>11</ymin><xmax>50</xmax><ymax>34</ymax></bndbox>"
    size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height></size>"
    bands = np.where(triangle_mask(), 1 + np.arange(HEIGHT)[:, None] % 2, 0)  # two objects, row by row
    picture = Image.fromarray(bands.astype(np.uint8))
    picture.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    (root / "SegmentationObject").mkdir()
    picture.save(root / "SegmentationObject/a.png")
    objects = f"<object><name>cat</name>{box}</object>" * 2
    write_text(root / "Annotations/a.xml", f"<annotation>{size}{objects}</annotation>")
    return root


def voc_outline(root, shape):
    corners = "".join(f"<x{i}>{x}</x{i}><y{i}>{y}</y{i}>" for i, (x, y) in enumerate(TRIANGLE, 1))
    place = {
        "polygon": f"<polygon>{corners}</polygon>",
        "points": f"<polygon>{''.join(f'<pt><x>{x}</x><y>{y}</y></pt>' for x, y in TRIANGLE)}</polygon>",
    }[shape]
    size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height></size>"
    objects = f"<object><name>cat</name>{place}</object>" * OBJECTS
    write_text(root / "Annotations/a.xml", f"<annotation>{size}{objects}</annotation>")
    return root


SHAPES = [
    (voc_outline, "polygon"),
    (voc_outline, "points"),
    *((writer, shape) for writer in (coco, cvat, labelstudio, datumaro, labelme) for shape in ("polygon", "mask")),
    (yolo, "polygon"),
    (voc, "mask"),
]


@pytest.mark.parametrize("places", ["points", "outlines"])
@pytest.mark.parametrize(("write", "shape"), SHAPES, ids=[f"{w.__name__}-{s}" for w, s in SHAPES])
def test_points_lie_in_the_outline(write, shape, places, tmp_path):
    """Half of the box is outside of the triangle, so 40 points in the box would be inside with probability 2^-40."""
    save_photo(tmp_path / "a.jpg", (WIDTH, HEIGHT))
    path = write(tmp_path, shape)
    table = read(path, options=ReadOptions(places=places, point_seed=3))
    points = table.locations.boxes.astype(float) * [WIDTH, HEIGHT, WIDTH, HEIGHT]
    assert len(points) == (2 if write is voc else OBJECTS)
    assert (points[:, :2] == points[:, 2:]).all()
    assert all(in_triangle(x, y, slack=1.0) for x, y, *_ in points.tolist())
    assert len(np.unique(points, axis=0)) == len(points)
    if write is voc:  # each object has its own rows of pixels
        assert (np.floor(points[:, 1]) % 2).tolist() == [0, 1]
    assert any(f"{len(points)} points drawn in masks, 0" in message for message in table.notes.messages)
    assert not any("nothing" in e.reason or "cannot" in e.reason for e in table.notes.excluded)
    again = read(path, options=ReadOptions(places=places, point_seed=3))
    other = read(path, options=ReadOptions(places=places, point_seed=4))
    assert again.fingerprint == table.fingerprint != other.fingerprint


@pytest.mark.parametrize(("write", "shape"), SHAPES, ids=[f"{w.__name__}-{s}" for w, s in SHAPES])
def test_boxes_are_those_of_the_outline(write, shape, tmp_path):
    """By default, the bounding box of an outline is read, and without places, the label only."""
    save_photo(tmp_path / "a.jpg", (WIDTH, HEIGHT))
    path = write(tmp_path, shape)
    table = read(path)
    boxes = table.locations.boxes.astype(float) * [WIDTH, HEIGHT, WIDTH, HEIGHT]
    assert np.allclose(boxes, [10, 10, 50, 34], atol=1.0)
    none = read(path, options=ReadOptions(places="none"))
    assert len(none.locations) == 0
    assert none.matrix.dense().tolist() == [[Label.POSITIVE]]


@pytest.mark.parametrize("name", sorted(name for name in WRITERS if WRITERS[name].located and name != "parquet"))
def test_boxes_without_an_outline(name, tmp_path):
    """With "points", a point in each box replaces it, in every format with boxes; with "outlines" boxes stay."""
    for photo in PHOTOS:
        save_photo(tmp_path / f"images/{photo.name}.jpg", photo.size)
    path = WRITERS[name].write(tmp_path, [replace(photo) for photo in PHOTOS])
    boxes = read(path)
    stay = read(path, options=ReadOptions(places="outlines"))
    assert stay.fingerprint == boxes.fingerprint
    points = read(path, options=ReadOptions(places="points"))
    inside, outside = points.locations.boxes, boxes.locations.boxes
    assert len(inside) == len(outside) == 5
    assert (inside[:, :2] == inside[:, 2:]).all()
    assert (inside[:, :2] >= outside[:, :2]).all()
    assert (inside[:, 2:] <= outside[:, 2:]).all()
    assert any("0 points drawn in masks, 5 in boxes without a mask" in m for m in points.notes.messages)


def test_absent_classes_and_points_of_the_file_stay_as_they_are():
    stated = Stated(ReadOptions(places="points"))
    stated.add(0, 0, box=(0.1, 0.1, 0.5, 0.5))
    stated.add(0, 1, state=Label.NEGATIVE, box=(0.1, 0.1, 0.5, 0.5))
    stated.add(0, 2, point=(0.3, 0.4))
    labels, text = choose_places(stated.labels(), None, np.ones(3, bool), str, ReadOptions(places="points"))
    assert labels.point.tolist() == [True, False, True]
    assert labels.corners[1:].tolist() == [[0.1, 0.1, 0.5, 0.5], [0.3, 0.4, 0.3, 0.4]]
    assert text == "0 points drawn in masks, 1 in boxes without a mask; point_seed 0"


def test_an_ellipse_and_turned_boxes_of_cvat(tmp_path):
    """A box of 20 x 2 that is turned by 45 degrees covers 40 of the 242 pixels of its bounding box."""
    save_photo(tmp_path / "a.jpg", (WIDTH, HEIGHT))
    box = '<box label="box" xtl="20" ytl="19" xbr="40" ybr="21" rotation="45"/>'
    ellipse = '<ellipse label="ellipse" cx="30" cy="20" rx="10" ry="5"/>'
    image = f'<image name="a.jpg" width="{WIDTH}" height="{HEIGHT}">{(box + ellipse) * 10}</image>'
    path = write_text(tmp_path / "a.xml", f"<annotations>{image}</annotations>")
    table = read(path, options=ReadOptions(places="outlines"))
    x, y = (table.locations.boxes[:, :2].astype(float) * [WIDTH, HEIGHT]).T - [[30], [20]]
    turned = table.locations.classes == table.classes.index("box")
    assert (abs(x - y)[turned] / np.sqrt(2) <= 1 + 0.8).all()  # the distance from its axis, within a pixel
    assert (np.hypot(x / 10, y / 5)[~turned] <= 1.1).all()


def test_a_picture_of_objects_that_cannot_be_read(tmp_path):
    from fewtags.errors import DataError

    save_photo(tmp_path / "a.jpg", (WIDTH, HEIGHT))
    voc(tmp_path, "mask")
    Path(tmp_path / "SegmentationObject/a.png").write_bytes(b"no picture")
    assert len(read(tmp_path).locations) == 2  # not needed
    with pytest.raises(DataError, match=r"SegmentationObject/a\.png: cannot be read"):
        read(tmp_path, options=ReadOptions(places="points"))
