"""Several label files in one command."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fewtags as ft
from fewtags.config.sections import DataConfig
from fewtags.engine.tables import read_one
from fewtags.errors import ConfigError, DataError
from fewtags.formats.several import covered_classes, read_sources, source_names


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """a.csv about photos in one/, b.json about photos of the same names in two/, and class folders more/owl."""
    for folder in ("one", "two", "more/owl"):
        (tmp_path / folder).mkdir(parents=True)
        for i in range(3):
            colour = (80 * i, 10 * len(folder), 90)
            Image.new("RGB", (8, 8), colour).save(tmp_path / folder / f"{i}.png")
    (tmp_path / "a.csv").write_text("image,cat,dog\n0.png,1,0\n1.png,0,\n2.png,,1\n")
    images = [{"id": i, "file_name": f"{i}.png", "width": 8, "height": 8} for i in range(3)]
    boxes = [{"id": i, "image_id": i, "category_id": 5, "bbox": [1, 1, 4, 4]} for i in range(2)]
    coco = {"images": images, "annotations": boxes, "categories": [{"id": 5, "name": "Dog"}, {"id": 6, "name": "owl"}]}
    (tmp_path / "b.json").write_text(json.dumps(coco))
    return tmp_path


def _states(table: ft.LabelTable) -> dict[str, list[int]]:
    return dict(zip(table.images.to_pylist(), table.matrix.dense().tolist(), strict=True))


def test_each_file_has_its_format_its_photos_and_its_classes(two: Path) -> None:
    table = read_sources([two / "a.csv", two / "b.json"], images=[two / "one", two / "two"], complete=["b.json"])
    assert table.classes.ids == ("cat", "dog", "owl")
    assert _states(table) == {
        "one/0.png": [1, -1, 0],
        "one/1.png": [-1, 0, 0],
        "one/2.png": [0, 1, 0],
        "two/0.png": [0, 1, -1],
        "two/1.png": [0, 1, -1],
        "two/2.png": [0, -1, -1],
    }
    assert any("'Dog' = 'dog'" in message for message in table.notes.messages)


def test_one_folder_of_photos_is_that_of_all_files_but_class_folders(two: Path) -> None:
    table = read_sources([two / "a.csv", two / "b.json", two / "more"], images=[two / "one"])
    assert len(table) == 6
    assert _states(table)["one/0.png"] == [1, 0, 0]  # the files contradict each other about the dog
    (contradiction,) = table.summary().contradicting
    assert str(contradiction) == "one/0.png: dog is positive in b.json, negative in a.csv"


def test_photos_of_a_file_are_looked_for_where_those_of_the_others_are(two: Path) -> None:
    (two / "two" / "b.json").write_text((two / "b.json").read_text())
    table = read_sources([two / "a.csv", two / "two" / "b.json"])
    assert table.root == two / "two"
    assert len(table) == 3


def test_coverage_by_setting(two: Path) -> None:
    table = read_sources([two / "a.csv", two / "b.json"], images=[two / "one"], covers=["a.csv=cat"])
    assert _states(table)["0.png"] == [1, 1, 0]


def test_names_of_sources() -> None:
    assert source_names(["x/a.csv", "y/a.csv", "y/b.csv"]) == ["x/a.csv", "y/a.csv", "b.csv"]
    assert covered_classes(["y/a.csv=cat", "a=b.csv=dog"], ["y/a.csv", "a=b.csv"]) == {
        "a.csv": ("cat",),
        "a=b.csv": ("dog",),
    }
    with pytest.raises(ConfigError, match=r"'a.csv' may be 'x/a.csv', 'y/a.csv'; write more of the path"):
        covered_classes(["a.csv=cat"], ["x/a.csv", "y/a.csv"])
    with pytest.raises(ConfigError, match=r"names no class"):
        covered_classes(["a.csv="], ["a.csv"])


def test_settings_must_name_a_label_file(two: Path) -> None:
    train = (str(two / "a.csv"), str(two / "b.json"))
    for key in ("covers", "complete_files"):
        data = DataConfig(train=train, images=str(two / "one"), **{key: ("a.cvs=cat",)})
        with pytest.raises(ConfigError, match=rf"data.{key}: 'a.cvs' is not one of the label files \(did you mean"):
            read_one(data)


def test_a_file_given_twice_and_folders_that_do_not_fit(two: Path) -> None:
    with pytest.raises(DataError, match=r"is given twice; give each file once"):
        read_sources([two / "a.csv", two / "a.csv"], images=[two / "one"])
    with pytest.raises(ConfigError, match=r"there are 2 folders of photos for 3 label files"):
        read_sources([two / "a.csv", two / "b.json", two / "more"], images=[two, two])


def test_a_merged_table_is_saved_and_read_again(two: Path) -> None:
    given = {"cats": ft.read(two / "a.csv", images=two / "one"), "dogs": ft.read(two / "b.json", images=two / "two")}
    merged = ft.merge(given, covers={"cats": ["cat"]})
    ft.save(merged, two / "merged.parquet", keep_root=True)
    again = ft.read(two / "merged.parquet")
    assert again.fingerprint == merged.fingerprint
    assert np.array_equal(again.matrix.dense(), merged.matrix.dense())


def test_a_resumed_run_compares_all_of_its_files(two: Path) -> None:
    """Relative paths of all files begin where the run was started, and a changed second file is found."""
    from fewtags.config.sections import Config, ObjectiveConfig
    from fewtags.engine.tables import read_tables
    from fewtags.engine.train_record import changed_split, with_located_paths

    data = {"train": ["a.csv", "b.json"], "images": ["one", "two"], "val_share": 0.3}
    config = Config(data=DataConfig(**data), objective=ObjectiveConfig(name=None))
    located = with_located_paths(config, two).data
    assert located.train == (str(two / "a.csv"), str(two / "b.json"))
    assert located.images == (str(two / "one"), str(two / "two"))
    before = read_tables(located, 0)
    assert changed_split(before, read_tables(located, 0), two) is None
    coco = json.loads((two / "b.json").read_text())
    coco["annotations"][0]["category_id"] = 6
    (two / "b.json").write_text(json.dumps(coco))
    assert changed_split(before, read_tables(located, 0), two) is not None
