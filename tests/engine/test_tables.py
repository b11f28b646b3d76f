"""Tables of a run: validation that is held out or given, splits that files name, and reading options."""

import numpy as np
import pytest
from single_labels import SINGLE, from_rows

from fewtags.config.sections import DataConfig
from fewtags.engine.tables import hold_out, read_named, read_options, read_tables
from fewtags.errors import ConfigError, DataError
from fewtags.formats.options import ReadOptions
from fewtags.labels import Label
from fewtags.table.storage import save
from fewtags.table.table import LabelTable
from fewtags.text import command_line


def test_reading_options_come_from_the_configuration():
    said = {
        "complete": True, "uncertain": "ones", "blank": "negative", "difficult": "positive",
        "none_folder": ("nothing",), "absent_prefix": "!",
        "crowd": "unknown", "image_column": "file", "columns": ("a", "b"), "delimiter": ";", "tags_separator": "|",
        "positive_words": ("oui",), "negative_words": ("non",), "unknown_words": ("peut-être",),
        "points": "pixels", "places": "points", "point_seed": 7, "rename": ("a=b",), "names": "n.csv",
    }  # fmt: skip
    assert vars(read_options(DataConfig(train="x.csv", **said))) == said
    assert read_options(DataConfig(train="x.csv")) == ReadOptions()


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_validation_is_held_out_where_none_is_given(scenes):
    data = DataConfig(
        train=str(scenes.folder / "train_single.csv"), images=str(scenes.folder / "images"), val_share=0.25
    )
    tables = read_tables(data, seed=0)
    assert (len(tables.train), len(tables.val), tables.test, tables.truth) == (18, 6, None, None)
    assert not set(tables.train.images.to_pylist()) & set(tables.val.images.to_pylist())
    # With the library for it, also photos that look alike stay together.
    start = "val: 6 of 24 images held out (seed 0), equal photos "
    assert any(message.startswith(start) for message in tables.train.notes.messages)
    again = read_tables(data, seed=0)
    assert (again.train.fingerprint, again.val.fingerprint) == (tables.train.fingerprint, tables.val.fingerprint)
    assert read_tables(data, seed=1).val.fingerprint != tables.val.fingerprint


def test_equal_photos_stay_on_one_side(scenes, tmp_path):
    """Every photo three times, under other names."""
    rows = ["image,tag"]
    for n, key in enumerate(scenes.train.images.to_pylist()[:12]):
        for copy in range(3):
            name = f"{copy}-{n}.jpg"
            (tmp_path / name).write_bytes((scenes.train.root / key).read_bytes())
            rows.append(f"{name},{'ab'[n % 2]}")
    data = DataConfig(train=write(tmp_path / "tags.csv", "\n".join(rows)), images=str(tmp_path), val_share=0.3)
    tables = read_tables(data, seed=0)
    photos = [{key.split("-")[1] for key in table.images.to_pylist()} for table in (tables.train, tables.val)]
    assert all(photos)
    assert not photos[0] & photos[1]
    assert len(tables.train) + len(tables.val) == 36


def test_groups_of_the_users_stay_together(scenes, tmp_path):
    rows = ["image,tag", *(f"{key},{'ab'[n % 2]}" for n, key in enumerate(scenes.train.images.to_pylist()))]
    data = DataConfig(
        train=write(tmp_path / "tags.csv", "\n".join(rows)), images=str(scenes.train.root), val_share=0.4,
        group_by=r"train/000(\d)",
    )  # fmt: skip
    tables = read_tables(data, seed=0)
    groups = [{key[len("train/000")] for key in table.images.to_pylist()} for table in (tables.train, tables.val)]
    assert not groups[0] & groups[1]
    assert any("groups kept together" in message for message in tables.train.notes.messages)


def test_files_of_their_own_and_complete_labels(scenes):
    folder = scenes.folder
    data = DataConfig(
        train=str(folder / "train_single.csv"), images=str(folder / "images"), val=str(folder / "val.csv"),
        test=str(folder / "test.csv"), truth=str(folder / "train_truth.csv"),
    )  # fmt: skip
    tables = read_tables(data, seed=0)
    assert [len(table) for table in tables.splits().values()] == [24, 11, 5]
    assert len({table.classes for table in (*tables.splits().values(), tables.truth)}) == 1
    assert tables.truth.images.to_pylist() == tables.train.images.to_pylist()
    known = tables.train.matrix.dense() == Label.POSITIVE
    assert (tables.truth.matrix.dense()[known] == Label.POSITIVE).all()
    assert not (tables.truth.matrix.dense() == Label.UNKNOWN).any()


def test_splits_that_the_source_names(scenes, tmp_path):
    train, val = scenes.train, scenes.val
    both = LabelTable.build(
        [*train.images.to_pylist(), *val.images.to_pylist()], train.classes,
        image=np.arange(35), class_=np.zeros(35, int), state=np.ones(35, int), root=train.root,
        split=["train"] * 24 + ["val"] * 11,
    )  # fmt: skip
    save(both, tmp_path / "labels.parquet", keep_root=True)
    named = read_named(DataConfig(train=str(tmp_path / "labels.parquet")))
    assert {name: len(table) for name, table in named.items()} == {"train": 24, "val": 11}


def split_file(scenes, tmp_path, names):
    """A table of the 24 training scenes whose split names are `names` in turn."""
    keys = scenes.train.images.to_pylist()
    split = [names[i % len(names)] for i in range(len(keys))]
    index = np.arange(len(keys))
    table = LabelTable.build(
        keys, scenes.train.classes, image=index, class_=index * 0, state=index * 0 + 1,
        root=scenes.train.root, split=split,
    )  # fmt: skip
    save(table, tmp_path / "labels.parquet", keep_root=True)
    return str(tmp_path / "labels.parquet")


@pytest.mark.parametrize(("other", "words"), [("trainval", "split 'trainval'"), ("", "no split")])
def test_without_a_split_called_train_the_rest_is_learned_from_and_never_the_test_images(
    scenes, tmp_path, other, words
):
    tables = read_named(DataConfig(train=split_file(scenes, tmp_path, [other, other, "test"])))
    assert {name: len(table) for name, table in tables.items()} == {"train": 16, "test": 8}
    assert not set(tables["train"].images.to_pylist()) & set(tables["test"].images.to_pylist())
    message = f"no split is called 'train': training uses the 16 images of {words}"
    assert message in tables["train"].notes.messages


def test_messages_about_photos_of_val_name_their_own_option(scenes, tmp_path):
    (tmp_path / "val.csv").write_text("image,zero\nnowhere.jpg,1\n")
    data = DataConfig(train=split_file(scenes, tmp_path, ["train"]), val=str(tmp_path / "val.csv"))
    with pytest.raises(DataError, match=r"relative to: val_images='FOLDER'\.$"):
        read_named(data.model_copy(update={"val_images": str(tmp_path)}))
    two = data.model_copy(update={"val_images": (str(tmp_path), str(tmp_path))})
    with command_line(), pytest.raises(ConfigError, match=r"for 1 label file; give --val-images FOLDER once for all"):
        read_named(two)
    with pytest.raises(ConfigError, match=r"for 1 label file; give images='FOLDER' once for all"):
        read_named(DataConfig(train=data.train, images=(str(tmp_path), str(tmp_path))))


def test_splits_that_leave_nothing_to_learn_from_are_refused(scenes, tmp_path):
    with pytest.raises(DataError, match=r"^the labels name the splits test and val, so that no image is left to learn"):
        read_named(DataConfig(train=split_file(scenes, tmp_path, ["val", "test"])))


def test_images_of_further_splits_are_left_out_with_a_line_each(scenes, tmp_path):
    train = read_named(DataConfig(train=split_file(scenes, tmp_path, ["train", "val", "foo"])))["train"]
    assert len(train) == 8
    assert "split 'foo': 8 images left out" in train.notes.messages
    assert len([e for e in train.notes.excluded if e.reason == "split 'foo': not train, val or test"]) == 8


def test_fold_numbers_are_no_splits_to_keep_apart(scenes, tmp_path):
    tables = read_named(DataConfig(train=split_file(scenes, tmp_path, ["1", "2", "3"])))
    assert {name: len(table) for name, table in tables.items()} == {"train": 24}


def test_a_val_file_in_the_place_of_the_named_split_is_said(scenes, tmp_path):
    path = split_file(scenes, tmp_path, ["train", "val"])
    tables = read_named(
        DataConfig(train=path, val=str(scenes.folder / "val.csv"), images=str(scenes.folder / "images"))
    )
    assert len(tables["val"]) == 11
    said = f"val: {scenes.folder / 'val.csv'} is used, and not the 12 images of split 'val'"
    assert said in tables["train"].notes.messages


def test_a_val_file_that_names_splits_itself_is_used_for_its_own_rows_only(scenes, tmp_path):
    """24 images: 8 each of train, val and of no split. The other 16 are listed, and none of them is validated on."""
    path = split_file(scenes, tmp_path, ["train", "val", ""])
    named = read_named(
        DataConfig(train=str(scenes.folder / "train_single.csv"), images=str(scenes.train.root), val=path)
    )
    val = named["val"]
    assert val.images.to_pylist() == scenes.train.images.to_pylist()[1::3]
    sizes = "train 8, val 8, no split 8"
    said = f"val: of {path}, which names splits itself ({sizes}), only the images of split 'val' are used"
    assert said in val.notes.messages
    left_out = [row for row in val.notes.excluded if row.where == "val"]
    assert [row.item for row in left_out] == [
        key for first in (0, 2) for key in scenes.train.images.to_pylist()[first::3]
    ]
    assert {row.reason for row in left_out} == {
        f"split 'train': of {path}, only split 'val' is used", f"no split: of {path}, only split 'val' is used"
    }  # fmt: skip


def test_a_val_file_that_names_only_its_own_split_is_used_without_a_word(scenes, tmp_path):
    path = split_file(scenes, tmp_path, ["val"])
    data = DataConfig(train=str(scenes.folder / "train_single.csv"), images=str(scenes.train.root), val=path)
    val = read_named(data)["val"]
    assert len(val) == 24
    assert not any("names splits itself" in message for message in val.notes.messages)
    empty = data.model_copy(update={"val": split_file(scenes, tmp_path, [""])})
    assert len(read_named(empty)["val"]) == 24


def test_a_test_file_that_names_other_splits_is_refused(scenes, tmp_path):
    path = split_file(scenes, tmp_path, ["train", "val"])
    with pytest.raises(DataError) as error:
        read_named(DataConfig(train=str(scenes.folder / "train_single.csv"), images=str(scenes.train.root), test=path))
    assert str(error.value) == (
        f"{path} is given as test and names splits itself (train 12, val 12), but none of them is 'test'. Call the "
        "split of the images that are meant 'test', or take the split names out of the file."
    )


def test_hold_out_needs_photos():
    with pytest.raises(DataError, match="the labels do not say where the photos are"):
        hold_out(from_rows(SINGLE * 10))
