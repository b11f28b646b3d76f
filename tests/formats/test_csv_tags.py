"""Several columns of tags in one table."""

import pytest
from seen import labels, readings

from fewtags.errors import DataError
from fewtags.formats.csv import read_csv
from fewtags.formats.options import ReadOptions
from fewtags.labels import Label

P, N = Label.POSITIVE, Label.NEGATIVE


@pytest.fixture
def read(tmp_path):
    def read(text, **options):
        file = tmp_path / "a.csv"
        file.write_text(text)
        return read_csv(file, options=ReadOptions(**options))

    return read


@pytest.mark.parametrize(
    "header",
    [
        *("tag1,tag2,tag3", "label_1,label_2,label_3", "Tag 1,Tag 2,Tag 3", "label,label2,label3", "tag,tag.1,tag.2"),
        *("keyword-1,keyword-2,keyword-3", "primary label 1,primary label 2,primary label 3", "CLASS1,Class2,class3"),
    ],
)
def test_numbered_columns_are_one_list_of_tags(read, header):
    """Names with blanks stay whole, a tag in two columns is one, and a blank row states nothing."""
    table = read(f"image,{header}\na.jpg,cat,red dog,\nb.jpg,dog,,cat\nc.jpg,,,\nd.jpg,cat,cat,\n")
    assert labels(table) == {
        "a.jpg": {"cat": P, "red dog": P},
        "b.jpg": {"cat": P, "dog": P},
        "c.jpg": {},
        "d.jpg": {"cat": P},
    }
    names = ", ".join(map(repr, header.split(",")))
    assert f"a.csv: 4 rows, cells separated by ','; images in 'image', tags in {names}" in table.notes.messages
    assert "a.csv: one tag a cell" in table.notes.messages
    assert readings(table) == {
        "cat": ("positive", 3),
        "dog": ("positive", 1),
        "red dog": ("positive", 1),
        "(blank)": ("nothing known", 1),
    }
    assert table.notes.warnings == ()


def test_a_blank_column_and_cells_with_several_tags(read):
    table = read("image,tag1,tag2,tag3\na.jpg,cat|dog,big;red,\nb.jpg,dog,red,\n")
    assert labels(table) == {"a.jpg": {"cat": P, "dog": P, "big": P, "red": P}, "b.jpg": {"dog": P, "red": P}}
    assert "a.csv: 'tag1': tags split at '|'; 'tag2': tags split at ';'; 'tag3': one tag a cell" in table.notes.messages


def test_none_beside_a_class_is_no_further_tag(read):
    table = read("image,tag1,tag2\na.jpg,cat,none\nb.jpg,None,none\nc.jpg,none,\n")
    assert labels(table) == {"a.jpg": {"cat": P}, "b.jpg": {"cat": N}, "c.jpg": {"cat": N}}
    assert readings(table)["'none' beside a class"] == ("no further tag", 1)
    with pytest.raises(DataError, match="has both 'none' and a class; fix the cell"):
        read("image,tag1,tag2\na.jpg,cat|none,dog\n")


@pytest.mark.parametrize("complete", [False, True])
def test_options_of_tags(read, complete):
    table = read("image,tag1,tag2\na.jpg,cat,-dog\nb.jpg,,\n", complete=complete, blank="negative")
    assert labels(table)["a.jpg"] == {"cat": P, "dog": N}
    assert labels(table)["b.jpg"] == {"cat": N, "dog": N}


def test_columns_of_two_kinds_are_asked_about_and_the_answers_work(read):
    text = "photo,keywords,category\na.jpg,red|big,animal\nb.jpg,big,plant\n"
    with pytest.raises(DataError) as error:
        read(text)
    assert str(error.value).partition("a.csv: ")[2] == (
        "'keywords', 'category' may all be labels. Pass the one with the tags, ReadOptions(columns=('keywords',)); or "
        "all that have tags, which are then read as one list, ReadOptions(columns=('keywords', 'category'))."
    )
    assert read(text, columns=("category",)).classes.ids == ("animal", "plant")
    both = read(text, columns=("keywords", "category"))
    assert labels(both) == {"a.jpg": {"animal": P, "big": P, "red": P}, "b.jpg": {"big": P, "plant": P}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,tags,tag1,tag2\na.jpg,red,cat,dog\n", "'tags', 'tag1', 'tag2' may all be labels"),
        (
            "image,tag1,tag2,label1,label2\na.jpg,cat,dog,red,big\n",
            "'tag1', 'tag2', 'label1', 'label2' may all be labels",
        ),
        ("image,tag1,tag2,cat,dog\na.jpg,red,big,1,0\n", "'tag1', 'tag2', 'cat', 'dog' may all be labels"),
        ("image,tag1,tag2\na.jpg,red,1\nb.jpg,big,0\n", "the values of 'tag2' \\('0', '1'\\) are those of"),
        ("image,note1,note2\na.jpg,red,big\n", "it is not clear which of 'note1', 'note2' has labels"),
        ("image,label_1,score_1\na.jpg,cat,0.5\n", "predictions are not labels"),
        ("image,label1,label2\na.jpg,a dog runs on the wet grass,a dog sits on the dry sand\n", "looks like a caption"),
    ],
)
def test_what_is_asked_or_refused(read, text, message):
    with pytest.raises(DataError, match=message):
        read(text)


def test_a_flag_beside_numbered_columns(read):
    table = read("image,tag1,tag2,checked\na.jpg,cat,dog,1\n")
    assert labels(table) == {"a.jpg": {"cat": P, "dog": P}}
    assert "a.csv: column 'checked' ignored, its values are '1'" in table.notes.messages


def test_numbered_columns_of_states_are_classes(read):
    table = read("image,label_1,label_2\na.jpg,1,0\nb.jpg,0,1\n")
    assert labels(table) == {"a.jpg": {"label_1": P, "label_2": N}, "b.jpg": {"label_1": N, "label_2": P}}
    numbers = read("image,label_1,label_2\na.jpg,1,0\nb.jpg,0,1\n", tags_separator="|")
    assert labels(numbers) == {"a.jpg": {"0": P, "1": P}, "b.jpg": {"0": P, "1": P}}


@pytest.mark.parametrize("word", ["NA", "null", "#N/A"])
def test_missing_tags_are_unknown_also_beside_complete_labels(read, word):
    """A blank cell says that none of the classes is there if labels are complete; NA and null say nothing."""
    table = read(f"image,tags\na.jpg,cat\nb.jpg,\nc.jpg,{word}\n", complete=True)
    assert [*labels(table).values()] == [{"cat": Label.POSITIVE}, {"cat": Label.NEGATIVE}, {}]
    assert readings(table)["NA or null"] == ("nothing known", 1)


@pytest.mark.parametrize("word", ["NA", "null"])
def test_missing_values_beside_a_class_are_not_tags(read, word):
    table = read(f"image,tags\na.jpg,cat|{word}\nb.jpg,dog|owl\n", complete=True)
    assert table.classes.ids == ("cat", "dog", "owl")
    assert readings(table)[f"'{word}' beside a class"] == ("no further tag", 1)
