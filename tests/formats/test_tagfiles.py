"""Text files of tags beside photos, which are neither labels of YOLO nor captions."""

import pytest
from annotated import save_photo, write_text

from fewtags.errors import DataError
from fewtags.formats.options import ReadOptions
from fewtags.formats.read import detect, read
from fewtags.labels import Label


@pytest.fixture
def write(tmp_path):
    """Writes {name: text} as photos with text files; None is a photo without a text file."""

    def write(texts):
        for n, (name, text) in enumerate(texts.items()):
            save_photo(tmp_path / f"{name}.jpg", (8, 8), 10 * n)
            if text is not None:
                write_text(tmp_path / f"{name}.txt", text)
        return tmp_path

    return write


def test_tags_by_commas_and_lines(write):
    """As kohya, booru and LAION write them, with brackets after a backslash, repeats and blanks."""
    folder = write({"a": "1girl, solo,\tlong hair, ", "b": "solo\nfate \\(series\\)\n", "c": "", "d": None})
    table = read(folder)
    assert table.notes.messages[0] == (
        f"{folder.name}: read as tagfiles, text files with tags beside photos, such as a.txt"
    )
    assert table.classes.ids == ("1girl", "fate (series)", "long hair", "solo")
    assert table.matrix.dense().tolist() == [[1, 0, 1, 1], [0, 1, 0, 1], [0] * 4, [0] * 4]
    readings = {r.value: (r.meaning, r.count) for r in table.notes.readings}
    assert readings["solo"] == ("positive", 2)
    assert f"{folder.name}: 3 photos have a text file with tags, 1 has none and nothing is known about it" in (
        table.notes.messages
    )


def test_complete_and_blank_concern_photos_with_a_text_file(write):
    folder = write({"a": "cat, dog", "b": "", "c": None})
    table = read(folder, options=ReadOptions(complete=True))
    assert table.matrix.dense().tolist() == [[1, 1], [Label.NEGATIVE] * 2, [0, 0]]
    table = read(folder, options=ReadOptions(blank="negative"))
    assert table.matrix.dense().tolist() == [[1, 1], [Label.NEGATIVE] * 2, [0, 0]]


def test_negatives(write):
    table = read(write({"a": "cat, -dog", "b": "none", "c": "dog, cat"}))
    assert table.classes.ids == ("cat", "dog")
    assert table.matrix.dense().tolist() == [[1, -1], [-1, -1], [1, 1]]


def test_separators(write):
    """Without commas, blanks separate few tags in many combinations, or belong to a name."""
    table = read(write({"a": "cat dog", "b": "dog", "c": "cat", "d": "dog cat"}))
    assert table.classes.ids == ("cat", "dog")
    table = read(write({"a": "traffic light", "b": "fire truck", "c": "traffic light", "d": "fire truck"}))
    assert table.classes.ids == ("fire truck", "traffic light")
    table = read(write({"a": "cat;dog, owl", "b": "dog", "c": "", "d": ""}), options=ReadOptions(tags_separator=";"))
    assert table.classes.ids == ("cat", "dog", "dog, owl")


def test_splits_and_text_files_without_a_photo(write, tmp_path):
    write({"train/a": "cat", "val/b": "cat, dog"})
    write_text(tmp_path / "train/README.txt", "from the internet")
    table = read(tmp_path)
    assert table.split_names.to_pylist() == ["train", "val"]
    assert [(e.item, e.reason) for e in table.notes.excluded] == [
        ("train/README.txt", "no photo beside it has its name")
    ]


ROW = "0 0.5 0.5 0.2 0.2\n"
SENTENCES = (
    "a dog that runs across the wet grass",
    "two people sit on a wooden bench",
    "the red car is parked outside",
)


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ({"a": "cat, dog", "b": "dog"}, "tagfiles"),
        ({"a": "cat", "b": None, "c": None}, "folder"),
        ({"a": ROW, "b": ROW * 2}, "folder"),
        ({"a": ROW, "b": ""}, "folder"),
        ({"a": "3\n", "b": "7"}, "folder"),
        ({"a": "", "b": ""}, "folder"),
        (dict(zip("abc", SENTENCES, strict=True)), "folder"),
        ({"10_cat/a": "cat, sofa", "20_dog/b": "dog"}, "tagfiles"),
        ({"train/a": "cat, sofa", "test/b": "dog"}, "tagfiles"),
    ],
)
def test_detection(write, texts, found):
    assert detect(write(texts))[0] == found


def test_names_of_classes_beside_them(write, tmp_path):
    """classes.txt makes numbers labels of YOLO, and tags stay tags."""
    write_text(tmp_path / "classes.txt", "cat\ndog\n")
    assert detect(write({"a": ROW, "b": ""}))[0] == "yolo"
    assert detect(write({"a": "cat, dog", "b": "dog"}))[0] == "tagfiles"


def test_folders_that_may_be_classes(write):
    folder = write({"cat/a": "sofa, indoors", "dog/b": "sofa"})
    with pytest.raises(DataError, match=r"in folders that may be classes \('cat', 'dog'\)\. Pass format='tagfiles'"):
        detect(folder)
    assert read(folder, format="tagfiles").classes.ids == ("indoors", "sofa")
    assert read(folder, format="folder").classes.ids == ("cat", "dog")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"a": ROW, "b": ROW}, "the text files have numbers, as labels of YOLO; add data.yaml or classes.txt"),
        (dict(zip("abc", SENTENCES, strict=True)), r"a\.txt, column.*looks like a caption, and captions are not tags"),
        ({"a": "", "b": None}, "no photo has a text file of the same name with tags in it"),
    ],
)
def test_what_is_refused(write, texts, message):
    with pytest.raises(DataError, match=message):
        read(write(texts), format="tagfiles")


def test_the_folder_says_what_the_text_files_are(write):
    for text, message in ((ROW, "with numbers, as labels of YOLO"), (SENTENCES[0], "captions are not tags")):
        with pytest.raises(DataError, match=message):
            read(write({"a": text}))


def test_sentences_that_the_user_calls_tags(write):
    folder = write(dict(zip("abc", SENTENCES, strict=True)))
    assert len(read(folder, format="tagfiles", options=ReadOptions(tags_separator=",")).classes) == 3


def test_a_text_that_is_not_utf8(write):
    folder = write({"a": "cat", "b": "dog"})
    (folder / "b.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"b\.txt: not UTF-8 text"):
        read(folder)
