"""Label tables and scores from data frames of pandas: indices, missing values, lists, names, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from annotated import save_photo

from fewtags.errors import ConfigError, DataError
from fewtags.formats.frames import from_pandas
from fewtags.formats.options import ReadOptions
from fewtags.formats.scores import scores_of

pd = pytest.importorskip("pandas")

NAMES = ["a.jpg", "b.jpg", "c.jpg"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for n, name in enumerate(NAMES):
        save_photo(folder / name, (8, 8), 50 * n)
    return folder


def states(frame, root, **options):
    table = from_pandas(frame, images=root, options=ReadOptions(**options))
    assert table.images.to_pylist() == NAMES
    return dict(zip(table.classes.ids, table.matrix.dense().T.tolist(), strict=True))


INDICES = [
    [5, 6, 9],
    [0.5, 6.0, 9.0],
    [True, False, True],
    ["x", "y", "z"],
    pd.date_range("2020", periods=3),
    pd.Index([7, 7, 7], name="id"),
    pd.Index([1, 2, 3], dtype="Int64"),
    pd.Index(NAMES, name="image"),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_any_index(root, index):
    frame = pd.DataFrame({"image": NAMES, "cat": [1, 0, None]}, index=index)
    assert states(frame, root) == {"cat": [1, -1, 0]}


def test_names_of_photos_in_the_index(root):
    assert states(pd.DataFrame({"cat": [1, 0, None]}, index=NAMES), root) == {"cat": [1, -1, 0]}
    assert states(pd.DataFrame({"cat": [1, 0, None]}, index=pd.Index(NAMES, name="file")), root) == {"cat": [1, -1, 0]}
    index = pd.MultiIndex.from_arrays([["train", "train", "val"], NAMES], names=["split", "image"])
    table = from_pandas(pd.DataFrame({"cat": [1, 0, None]}, index=index), images=root)
    assert table.split_names.to_pylist() == ["train", "train", "val"]
    assert table.matrix.dense().tolist() == [[1], [-1], [0]]


COLUMNS = [
    pd.array([1, 0, None], dtype="Int64"),
    pd.array([True, False, pd.NA], dtype="boolean"),
    pd.array([1.0, 0.0, None], dtype="Float64"),
    pd.Series([True, False, None], dtype=object),
    pd.Series([np.int8(1), np.bool_(False), pd.NA], dtype=object),
    pd.Series(["yes", "no", np.nan], dtype=object),
    pd.Categorical(["yes", "no", None]),
    np.array([1, 0, np.nan], np.float32),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: f"{column.dtype}")
def test_missing_values_are_unknown(root, column):
    assert states(pd.DataFrame({"image": NAMES, "cat": column}), root) == {"cat": [1, -1, 0]}


TAGS = [
    [["cat, small", "dog's"], ["dog's", None], float("nan")],
    [("cat, small", "dog's"), ("dog's",), ()],
    [{"cat, small", "dog's"}, {"dog's"}, set()],
    [np.array(["cat, small", "dog's"]), np.array(["dog's"]), np.array([])],
    [["cat, small", "dog's"], "dog's", None],
]


@pytest.mark.parametrize("tags", TAGS, ids=lambda tags: type(tags[0]).__name__)
def test_lists_in_cells(root, tags):
    """A comma or an apostrophe in a list belongs to a name."""
    assert states(pd.DataFrame({"image": NAMES, "tags": tags}), root) == {"cat, small": [1, 0, 0], "dog's": [1, 1, 0]}


def test_a_long_array_is_not_shortened(root):
    """As text, numpy writes "..." in the middle of it."""
    tags = [np.array([f"t{n}" for n in range(2000)]), np.array(["t1"]), np.array(["t1999"])]
    assert len(states(pd.DataFrame({"image": NAMES, "tags": tags}), root)) == 2000


def test_paths_dates_and_other_columns(root):
    frame = pd.DataFrame({"image": [root / name for name in NAMES], "cat": [1, 0, 1], "meta": [{"a": 1}, {}, {}]})
    frame["taken"] = pd.date_range("2020", periods=3)
    table = from_pandas(frame)
    assert table.root == root
    assert table.classes.ids == ("cat",)
    assert "DataFrame: 'meta' not read: objects, bytes, complex numbers or lists of lists" in table.notes.warnings
    assert any("column 'taken' ignored" in message for message in table.notes.messages)
    assert from_pandas(frame, options=ReadOptions(rename=("cat=kat",))).classes.ids == ("kat",)
    assert from_pandas(frame.assign(image=[Path(name) for name in NAMES]), images=root).root == root


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame(), "it has 0 rows and no columns; expected a row for each photo"),
        (pd.DataFrame({"image": [], "cat": []}), "it has 0 rows and the columns 'image', 'cat'"),
        (pd.DataFrame({"image": NAMES}), "it has 3 rows and the columns 'image'; expected"),
        (pd.DataFrame({"image": NAMES, "tags": [b"cat"] * 3}), r"'image' \('tags' not read: objects, bytes"),
        (pd.DataFrame([["a.jpg", 1, 0]], columns=["image", "cat", "cat"]), "several columns are called 'cat'"),
        (pd.DataFrame([["a.jpg", 1]], columns=["image", None]), "column 2 is called nan; give it a name"),
        (
            pd.DataFrame([["a.jpg", 1]], columns=pd.MultiIndex.from_tuples([("image", ""), ("pet", "cat")])),
            "the names of its columns have 2 levels",
        ),
        (
            pd.DataFrame({"image": NAMES, "cat": [1, 0, 1]}, index=pd.Index([0, 0, 0], name="cat")),
            "its index and a column are both called 'cat', and differ",
        ),
        (
            pd.DataFrame({"cat": [1, 0, 1]}, index=pd.MultiIndex.from_arrays([[1, 2, 3], NAMES])),
            "level 0 of its index has no name",
        ),
        (
            pd.DataFrame({"image": NAMES, "cat": ["yes", "no", "maybe"], "dog": [1, 0, 1]}, index=[10, 11, 12]),
            "DataFrame, row 12, column 'cat': 'maybe' means neither",
        ),
        (pd.Series([1], index=["a.jpg"]), "an object of the type Series; expected a pandas DataFrame"),
    ],
)
def test_what_is_refused(root, frame, message):
    with pytest.raises(DataError, match=message):
        from_pandas(frame, images=root)


def test_scores(root):
    """The same rules hold for scores of a teacher."""
    frame = pd.DataFrame({"image": NAMES, "cat": pd.array([0.1, None, 0.3], dtype="Float64")}, index=["x", "y", "z"])
    assert scores_of(frame, None).score.tolist() == [0.1, 0.3]
    for wrong, message in (
        (frame.assign(cat=[0.1, 7, 0.3]), "the DataFrame, row y: the score of 'cat' is 7"),
        (pd.DataFrame([["a.jpg", 0.1, 0.2]], columns=["image", "cat", "cat"]), "several columns are called 'cat'"),
    ):
        with pytest.raises(DataError, match=message):
            scores_of(wrong, None)


def test_a_class_called_image_does_not_replace_the_photos():
    from fewtags.notebook import photo_frame

    assert list(photo_frame(NAMES, {"cat": [1, 0, 1]})["image"]) == NAMES
    with pytest.raises(ConfigError, match="a class is named 'image', like the column of the photos"):
        photo_frame(NAMES, {"image": [1, 0, 1]})
