"""Real label files, where they are there: exact classes and counts, as their READMEs or a count by hand give them."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from fewtags.formats.read import ReadOptions, read
from fewtags.labels import Label

DATA = Path(__file__).parents[3].parent / "shared/data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the development photos are not here")

VOC = (
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person pottedplant sheep"
)
# train + val + test of voc_mix/README.txt.
VOC_POSITIVES = [9, 32, 17, 14, 56, 229, 1044, 1548, 139, 306, 22, 1314, 498, 61, 1072, 80, 326, 102, 363, 56]
CCP = (
    "bag belt blazer_suit coat_cape jacket knitwear shirt_blouse tshirt_top vest dress_romper skirt shorts jeans pants \
legwear socks boots hat eyewear scarf jewellery_watch sandals gloves tie"
)
CCP_POSITIVES = [
    1489,
    365,
    308,
    472,
    254,
    403,
    721,
    520,
    107,
    500,
    477,
    141,
    241,
    672,
    306,
    159,
    196,
    270,
    714,
    176,
    832,
    244,
]


def test_voc_mix_class_columns():
    table = read(DATA / "voc_mix/labels.csv")
    assert " ".join(table.classes.ids) == f"{VOC} sofa train tvmonitor"
    assert table.matrix.counts(Label.POSITIVE).tolist() == VOC_POSITIVES
    assert table.matrix.counts(Label.UNKNOWN).sum() == 0
    assert {name: len(part) for name, part in table.named_splits().items()} == {"val": 541, "test": 1353, "train": 3520}
    assert table.root.name == "images"


def test_ccp_class_columns():
    table = read(DATA / "ccp/labels_merged.csv")
    assert table.classes.ids == tuple(CCP.split())
    assert table.matrix.counts(Label.POSITIVE).tolist() == [*CCP_POSITIVES, 45, 41]
    assert len(table) == 2078


def test_coco_small():
    table = read(DATA / "coco_small/instances.json", options=ReadOptions(complete=True))
    assert (len(table), len(table.classes), len(table.facts)) == (414, 80, 3328)
    assert table.classes.ids[:3] == ("person", "bicycle", "car")
    assert table.classes.ids[-1] == "toothbrush"
    counts = dict(zip(table.classes.ids, table.matrix.counts(Label.POSITIVE).tolist(), strict=True))
    assert (counts["person"], counts["dining table"], counts["hair drier"]) == (221, 52, 2)
    assert table.matrix.counts(Label.UNKNOWN).sum() == 0


def test_coco_boxes_are_fractions_of_photos_that_were_made_smaller():
    """The file speaks of the original pixels; a plain loop over it gives the same fractions."""
    file = json.loads((DATA / "coco_small/instances.json").read_text())
    sizes = {entry["id"]: (entry["width"], entry["height"]) for entry in file["images"]}
    expected = []
    for a in file["annotations"]:
        (x, y, w, h), (width, height) = a["bbox"], sizes[a["image_id"]]
        expected.append(np.clip([x / width, y / height, (x + w) / width, (y + h) / height], 0, 1))
    facts = read(DATA / "coco_small/instances.json").facts
    got = np.stack([facts[name].to_numpy() for name in ("x0", "y0", "x1", "y1")], 1)
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_boxes_and_columns_of_voc_mix_say_the_same():
    columns, boxes = read(DATA / "voc_mix/labels.csv"), read(DATA / "voc_mix/instances.json")
    assert boxes.classes == columns.classes
    assert boxes.images.to_pylist() == columns.images.to_pylist()
    assert boxes.split_names == columns.split_names
    np.testing.assert_array_equal(boxes.matrix.dense() == Label.POSITIVE, columns.matrix.dense() == Label.POSITIVE)


def test_class_folders_made_from_voc_mix(tmp_path):
    """The first 200 photos, linked into a folder per class: photos with several classes are found by their content."""
    with (DATA / "voc_mix/labels.csv").open() as file:
        rows = list(csv.DictReader(file))[:200]
    expected = {}
    for row in rows:
        names = [name for name, value in row.items() if value == "1"]
        expected[f"{names[0]}/{row['image']}"] = set(names)
        for name in names:
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / row["image"]).symlink_to(DATA / "voc_mix/images" / row["image"])
    table = read(tmp_path)
    dense = table.matrix.dense()
    got = {
        key: {table.classes.ids[c] for c in np.flatnonzero(line == Label.POSITIVE)}
        for key, line in zip(table.images.to_pylist(), dense, strict=True)
    }
    assert got == expected
