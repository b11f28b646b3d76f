"""Names that state an absence are never silently classes, in any format."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import fewtags as ft
from fewtags.errors import DataError
from fewtags.formats.options import ReadOptions
from fewtags.labels import Label

Photos = dict[str, list[str]]


def _photo(path: Path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 20), (value % 256, 7 * value % 256, 50)).save(path)


def _folder(root: Path, photos: Photos) -> Path:
    for n, (name, labels) in enumerate(photos.items()):
        _photo(root / ",".join(labels) / f"{name}.png", n + 1)
    return root


def _tags(root: Path, photos: Photos) -> Path:
    (root / "a.csv").write_text("image,tags\n" + "".join(f"{k}.png,{'|'.join(v)}\n" for k, v in photos.items()))
    return root / "a.csv"


def _rows(root: Path, photos: Photos) -> Path:
    rows = "".join(f"{k}.png,{label}\n" for k, labels in photos.items() for label in labels)
    (root / "a.csv").write_text(f"image,class\n{rows}")
    return root / "a.csv"


def _coco(root: Path, photos: Photos) -> Path:
    names = sorted({label for labels in photos.values() for label in labels})
    content = {
        "images": [{"id": n, "file_name": f"{k}.png", "width": 20, "height": 20} for n, k in enumerate(photos)],
        "categories": [{"id": n, "name": name} for n, name in enumerate(names)],
        "annotations": [
            {"id": 10 * n + c, "image_id": n, "category_id": names.index(label)}
            for n, labels in enumerate(photos.values())
            for c, label in enumerate(labels)
        ],
    }
    (root / "a.json").write_text(json.dumps(content))
    return root / "a.json"


def _cvat(root: Path, photos: Photos) -> Path:
    images = "".join(
        f'<image id="{n}" name="{k}.png" width="20" height="20">'
        + "".join(f'<tag label="{label}" source="manual"></tag>' for label in labels)
        + "</image>"
        for n, (k, labels) in enumerate(photos.items())
    )
    (root / "a.xml").write_text(f"<annotations><version>1.1</version>{images}</annotations>")
    return root / "a.xml"


def _labelstudio(root: Path, photos: Photos) -> Path:
    tasks = [
        {
            "id": n,
            "data": {"image": f"{k}.png"},
            "annotations": [
                {"result": [{"type": "choices", "from_name": "c", "to_name": "i", "value": {"choices": labels}}]}
            ],
        }
        for n, (k, labels) in enumerate(photos.items())
    ]
    (root / "a.json").write_text(json.dumps(tasks))
    return root / "a.json"


def _yolo(root: Path, photos: Photos) -> Path:
    names = sorted({label for labels in photos.values() for label in labels})
    for k, labels in photos.items():
        _photo(root / "images" / "train" / f"{k}.png")
        text = "".join(f"{names.index(label)} 0.5 0.5 0.2 0.2\n" for label in labels)
        (root / "labels" / "train").mkdir(parents=True, exist_ok=True)
        (root / "labels" / "train" / f"{k}.txt").write_text(text)
    (root / "data.yaml").write_text(f"path: .\ntrain: images/train\nnames: {json.dumps(names)}\n")
    return root / "data.yaml"


def _voc(root: Path, photos: Photos) -> Path:
    for k, labels in photos.items():
        _photo(root / "JPEGImages" / f"{k}.png")
        box = "<bndbox><xmin>2</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
        objects = "".join(f"<object><name>{label}</name>{box}</object>" for label in labels)
        size = "<size><width>20</width><height>20</height><depth>3</depth></size>"
        (root / "Annotations").mkdir(exist_ok=True)
        text = f"<annotation><filename>{k}.png</filename>{size}{objects}</annotation>"
        (root / "Annotations" / f"{k}.xml").write_text(text)
    return root


def _openimages(root: Path, photos: Photos) -> Path:
    names = sorted({label for labels in photos.values() for label in labels})
    (root / "class-descriptions.csv").write_text("".join(f"/m/{n},{name}\n" for n, name in enumerate(names)))
    rows = [f"{k},verification,/m/{names.index(label)},1\n" for k, labels in photos.items() for label in labels]
    (root / "train-annotations-human-imagelabels.csv").write_text(
        "ImageID,Source,LabelName,Confidence\n" + "".join(rows)
    )
    return root


WRITERS: list[Callable[[Path, Photos], Path]] = [
    *(_folder, _tags, _rows, _coco, _cvat, _labelstudio, _yolo, _voc, _openimages)
]


def _read(root: Path, write: Callable[[Path, Photos], Path], photos: Photos, **options: object) -> ft.LabelTable:
    if write not in (_folder, _yolo, _voc):
        for k in photos:
            _photo(root / f"{k}.png")
    return ft.read(write(root, photos), options=ReadOptions(**options))


def _states(table: ft.LabelTable) -> dict[str, dict[str, int]]:
    names = table.classes.names
    return {
        Path(str(key)).stem: {names[c]: int(s) for c, s in enumerate(row) if s != Label.UNKNOWN}
        for key, row in zip(table.images.to_pylist(), table.matrix.dense().tolist(), strict=True)
    }


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("none", ["none", "No Finding", "no_findings"])
def test_what_certainly_means_none_of_the_classes_is_read(
    tmp_path: Path, write: Callable[..., Path], none: str
) -> None:
    table = _read(tmp_path, write, {"p1": ["cat"], "p2": ["dog"], "p3": [none]})
    assert sorted(table.classes.names) == ["cat", "dog"]
    assert _states(table) == {"p1": {"cat": 1}, "p2": {"dog": 1}, "p3": {"cat": -1, "dog": -1}}
    assert any("none of the classes" in reading.meaning for reading in table.notes.readings)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("word", ["empty", "background", "Negative"])
def test_what_may_mean_it_is_asked_about(tmp_path: Path, write: Callable[..., Path], word: str) -> None:
    table = _read(tmp_path, write, {"p1": ["cat"], "p2": ["dog"], "p3": [word]})
    assert word in table.classes.names
    (warning,) = [w for w in table.notes.warnings if repr(word) in w]
    assert f"ReadOptions(none_folder={word!r})" in warning
    assert "ReadOptions(none_folder='none')" in warning


@pytest.mark.parametrize("write", WRITERS)
def test_both_cures(tmp_path: Path, write: Callable[..., Path]) -> None:
    photos = {"p1": ["cat"], "p2": ["dog"], "p3": ["empty"]}
    assert _states(_read(tmp_path, write, photos, none_folder="empty"))["p3"] == {"cat": -1, "dog": -1}
    plain = _read(tmp_path, write, photos, none_folder="none")
    assert _states(plain)["p3"] == {"empty": 1}
    assert not any("empty" in warning for warning in plain.notes.warnings)


@pytest.mark.parametrize("write", [w for w in WRITERS if w not in (_yolo, _voc)])
def test_a_minus_before_a_name_means_absent(tmp_path: Path, write: Callable[..., Path]) -> None:
    """Formats whose labels are all boxes keep the class, with a warning: a box cannot be somewhere absent."""
    photos = {"p1": ["cat"], "p2": ["dog"], "p3": ["-cat"]}
    table = _read(tmp_path, write, photos)
    assert sorted(table.classes.names) == ["cat", "dog"]
    assert _states(table)["p3"] == {"cat": -1}
    assert any(reading.meaning == "cat is absent" for reading in table.notes.readings)
    assert _states(_read(tmp_path, write, photos, absent_prefix=""))["p3"] == {"-cat": 1}


@pytest.mark.parametrize("write", [_yolo, _voc])
def test_a_box_of_an_absent_class_is_a_warning(tmp_path: Path, write: Callable[..., Path]) -> None:
    table = _read(tmp_path, write, {"p1": ["cat"], "p3": ["-cat"]})
    assert any("class '-cat' is read as a class, because its labels have regions" in w for w in table.notes.warnings)


@pytest.mark.parametrize("write", [_folder, _tags, _coco])
def test_an_absent_class_that_nothing_names_is_read_with_a_warning(tmp_path: Path, write: Callable[..., Path]) -> None:
    table = _read(tmp_path, write, {"p1": ["cat"], "p3": ["-owl"]})
    assert _states(table)["p3"] == {"owl": -1}
    assert any("'owl' is absent; but nothing says where it is present" in w for w in table.notes.warnings)


def test_a_column_that_means_none_of_the_classes(tmp_path: Path) -> None:
    """CheXpert's "No Finding" beside support devices is a class with a warning, NIH's alone is none of the classes."""
    for k in "abc":
        _photo(tmp_path / f"{k}.png")
    file = tmp_path / "a.csv"
    file.write_text("image,No Finding,edema,device\na.png,1,,\nb.png,0,1,\nc.png,,0,1\n")
    alone = ft.read(file)
    assert _states(alone) == {"a": {"edema": -1, "device": -1}, "b": {"edema": 1}, "c": {"edema": -1, "device": 1}}
    assert any("1 label says that a photo is not 'No Finding'" in message for message in alone.notes.messages)
    file.write_text("image,No Finding,edema,device\na.png,1,,1\nb.png,0,1,\nc.png,,0,1\n")
    beside = ft.read(file)
    assert beside.classes.ids == ("No Finding", "edema", "device")
    assert any("is beside another class in 1 of 1 photo" in warning for warning in beside.notes.warnings)


def test_a_category_without_labels_is_left_out_with_a_message(tmp_path: Path) -> None:
    file = _coco(tmp_path, {"p1": ["cat"], "p2": ["dog"]})
    content = json.loads(file.read_text())
    content["categories"].append({"id": 9, "name": "background"})
    file.write_text(json.dumps(content))
    for k in ("p1", "p2"):
        _photo(tmp_path / f"{k}.png")
    table = ft.read(file)
    assert table.classes.ids == ("cat", "dog")
    assert "a.json: the class 'background' has no label and is left out" in table.notes.messages


def test_no_class_beside_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no class beside 'none', so there is nothing to learn"):
        _read(tmp_path, _coco, {"p1": ["none"], "p2": ["none"]})


@pytest.mark.parametrize("name", ["!cat", "not cat", "no cat", "NO_cat", "not-cat", "Cat ?"])
@pytest.mark.parametrize("write", [_folder, _tags, _rows, _coco])
def test_names_that_may_deny_another_class_are_a_warning(tmp_path, write, name):
    path = write(tmp_path, {"a": ["cat"], "b": [name], "c": ["no entry"]})
    found = [text for text in ft.read(path).notes.warnings if "is read as a class of its own beside 'cat'" in text]
    cure = "is uncertain, remove this label" if name.endswith("?") else "is absent, write '-cat' instead"
    assert [cure in text for text in found] == ([] if name == "not-cat" else [True])


@pytest.mark.parametrize("name", ["unlabelled", "Unknown", "to_label", "unsorted"])
@pytest.mark.parametrize("write", [_folder, _tags, _rows, _coco])
def test_names_of_photos_that_nobody_has_labelled_are_a_warning(tmp_path, write, name):
    path = write(tmp_path, {"a": ["cat"], "b": [name]})
    found = [text for text in ft.read(path).notes.warnings if "nobody has labelled the photo" in text]
    assert len(found) == 1
    table = ft.read(path, options=ReadOptions(none_folder=("none",)))
    assert not [text for text in table.notes.warnings if "nobody has labelled" in text]
