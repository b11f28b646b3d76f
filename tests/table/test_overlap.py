"""Photos of validation and test leave training."""

import shutil

import numpy as np
import pytest

from fewtags.errors import DataError
from fewtags.labels import ClassNames
from fewtags.table.overlap import leave_out_measured
from fewtags.table.table import LabelTable


@pytest.fixture
def make(tmp_path):
    """Make a table of photos that are bytes; the key of a photo is folder/content plus any mark."""

    def build(folder, *keys, root=True):
        for key in keys:
            path = tmp_path / folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(key.partition("~")[0].encode() * 100)
        state = np.ones(len(keys), int)
        return LabelTable.build(
            list(keys), ClassNames.of(["cat"]), image=np.arange(len(keys)), class_=0 * state, state=state,
            root=tmp_path / folder if root else None,
        )  # fmt: skip

    return build


def test_the_same_file_and_the_same_content_leave_training(make):
    train, test = make("one", "a", "b", "c", "d"), make("two", "b~copy", "x")
    val = train.subset([0])
    kept = leave_out_measured({"train": train, "val": val, "test": test})
    assert kept["train"].images.to_pylist() == ["c", "d"]
    assert (kept["val"], kept["test"]) == (val, test)
    assert kept["train"].notes.messages == (
        "train: 2 photos are also in val (1) and test (1), and left out of training; 2 of 4 remain",
    )
    assert [(e.item, e.reason, e.where) for e in kept["train"].notes.excluded] == [
        ("a", "the same photo is in val: a", "train"),
        ("b", "the same photo is in test: b~copy", "train"),
    ]


def test_a_link_is_the_same_photo_and_all_copies_leave(make, tmp_path):
    train = make("one", "a", "a~2", "b")
    (tmp_path / "link").symlink_to(tmp_path / "one")
    val = train.with_root(tmp_path / "link").subset([0])
    assert leave_out_measured({"train": train, "val": val})["train"].images.to_pylist() == ["b"]


def test_nothing_shared_changes_nothing(make):
    tables = {"train": make("one", "a", "b"), "val": make("two", "c")}
    assert leave_out_measured(tables) == tables
    other = {"train": make("one", "a", root=False), "val": make("two", "a")}
    assert leave_out_measured(other) == other


def test_no_training_photo_left_is_refused(make, tmp_path):
    train = make("one", "a", "b")
    with pytest.raises(DataError, match=r"^all 2 training photos are also in val \(2\), so no photo is left"):
        leave_out_measured({"train": train, "val": train})
    shutil.rmtree(tmp_path / "one")  # missing files have no content to compare, but their path is the same
    with pytest.raises(DataError, match="all 2 training photos"):
        leave_out_measured({"train": train, "val": train})
