import numpy as np
import pytest

import fewtags as ft
from fewtags.errors import DataError
from fewtags.table.arrays import from_array

IMAGES, CLASSES = ["a.jpg", "b.jpg"], ["cat", "dog"]


@pytest.mark.parametrize(
    ("labels", "zero", "dense"),
    [
        ([[1, 0], [-1, 1]], None, [[1, 0], [-1, 1]]),  # 0 beside -1 is unknown
        ([[1, 0], [np.nan, 1]], None, [[1, -1], [0, 1]]),  # 0 beside NaN is absent
        ([[1, 1], [np.nan, -1]], None, [[1, 1], [0, -1]]),
        ([[1, 0], [0, 1]], "negative", [[1, -1], [-1, 1]]),
        ([[1, 0], [0, 1]], "unknown", [[1, 0], [0, 1]]),
        ([[True, False], [False, True]], "negative", [[1, -1], [-1, 1]]),
        ([[1, 0], [-1, np.nan]], "negative", [[1, -1], [-1, 0]]),
    ],
)
def test_meanings(labels, zero, dense):
    assert from_array(IMAGES, CLASSES, labels, zero=zero).matrix.dense().tolist() == dense


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[1, 0], [0, 1]], "labels has 0 without -1 or NaN, which may mean absent or unknown; pass zero='negative' or"),
        ([[1, 0], [-1, np.nan]], "labels has 0 beside -1 and NaN, which may mean absent or unknown"),
        ([[1, 0]], r"labels has the shape \(1, 2\); expected \(2, 2\): a row for each image"),
        ([[1, 0.4], [0, 1]], r"labels\[0, 1\] \('a.jpg', 'dog'\) is 0.4; expected 1, 0, -1 or NaN"),
        ([["x", ""], ["", "x"]], "labels is not an array of numbers"),
        ([[1j, 1], [1, 1]], r"labels is not an array of numbers \(complex numbers\)"),
    ],
)
def test_errors(labels, message):
    with pytest.raises(DataError, match=message):
        from_array(IMAGES, CLASSES, labels)


def test_saved_and_read_again(tmp_path):
    table = ft.from_array(IMAGES, CLASSES, [[1, -1], [0, 1]])
    ft.save(table, tmp_path / "labels.parquet")
    assert ft.read(tmp_path / "labels.parquet").fingerprint == table.fingerprint


def test_a_text_is_no_list_of_images():
    with pytest.raises(DataError, match=r"^images is the text 'ab'; give a list of image names\.$"):
        from_array("ab", CLASSES, [[1, 1], [1, 1]])


def test_a_csv_is_a_csv_and_other_endings_are_refused(tmp_path):
    table = ft.from_array(IMAGES, CLASSES, [[1, -1], [np.nan, 1]])
    ft.save(table, tmp_path / "labels.CSV")
    again = ft.read(tmp_path / "labels.CSV")
    assert again.matrix.dense().tolist() == table.matrix.dense().tolist()
    with pytest.raises(DataError, match=r"labels\.csv: a CSV cannot keep the class without a label, 'dog'; save as"):
        ft.save(ft.from_array(IMAGES, CLASSES, [[1, np.nan], [1, np.nan]]), tmp_path / "labels.csv")
    for name in ("labels.json", "labels"):
        with pytest.raises(DataError, match=r"labels.*: a label table is saved as \.parquet or \.csv; give a name"):
            ft.save(table, tmp_path / name)
    with pytest.raises(DataError, match="save writes a LabelTable, not an object of the type list"):
        ft.save([table], tmp_path / "labels.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["labels.CSV"]
