"""Habits of people and programs that write tables, found by users: each is read as meant, or refused with the cure."""

import re

import pytest
from seen import labels

from fewtags.errors import DataError
from fewtags.formats.csv import read_csv
from fewtags.formats.options import ReadOptions
from fewtags.formats.read import detect
from fewtags.labels import Label
from fewtags.text import command_line

P, N = Label.POSITIVE, Label.NEGATIVE


@pytest.fixture
def read(tmp_path):
    def read(text, **options):
        file = tmp_path / "labels.csv"
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_csv(file, None, ReadOptions(**options))

    return read


def splits(table):
    return None if table.split_names is None else table.split_names.to_pylist()


# ---------------------------------------------------------------------------------------------------- marks and words


@pytest.mark.parametrize("yes", ["x", "X", "ja", "oui", "+", "sí", "✓", "WAHR", "vrai"])
def test_marks_beside_blank(read, yes):
    assert labels(read(f"image,cat,dog\na.jpg,{yes},\nb.jpg,,{yes}\n")) == {"a.jpg": {"cat": P}, "b.jpg": {"dog": P}}


@pytest.mark.parametrize(("yes", "no"), [("ja", "nein"), ("oui", "non"), ("+", "-"), ("✓", "✗"), ("VRAI", "FAUX")])
def test_words_of_other_languages(read, yes, no):
    assert labels(read(f"image,cat\na.jpg,{yes}\nb.jpg,{no}\n")) == {"a.jpg": {"cat": P}, "b.jpg": {"cat": N}}


def test_a_minus_without_a_plus_is_asked_about(read):
    with pytest.raises(DataError, match="'-' means neither present"):
        read("image,cat,dog\na.jpg,x,-\nb.jpg,-,x\n")


def test_columns_with_different_marks(read):
    table = read("Photo;Cat?;Dog?\na.jpg;yes;x\nb.jpg;no;\n")
    assert labels(table) == {"a.jpg": {"Cat?": P, "Dog?": P}, "b.jpg": {"Cat?": N}}


def test_a_column_with_an_unknown_mark_is_a_warning(read):
    with command_line():
        table = read("image,cat,dog\na.jpg,ja,ok\nb.jpg,nein,\n")
    assert table.notes.warnings == (
        "labels.csv: column 'dog' is not read as a class, because 'ok' means neither present nor absent. If it is a "
        "class, say what the word means: --set data.positive_words=ok.",
    )


@pytest.mark.parametrize("options", [{"blank": "negative"}, {"complete": True}])
def test_the_sample_agrees_with_the_labels(read, options):
    table = read("image,cat,dog\na.jpg,x,\nb.jpg,,x\n", **options)
    assert labels(table)["a.jpg"] == {"cat": P, "dog": N}
    assert "labels.csv: 'a.jpg' is 'cat'; is not 'dog'" in table.notes.messages


# ------------------------------------------------------------------------------------------------------------ the file


@pytest.mark.parametrize("first", ["sep=;\n", '"sep=;"\r\n', "SEP=;\r\n"])
def test_the_separator_line_of_excel(read, first):
    assert labels(read(first + "image;tags\na.jpg;cat\n")) == {"a.jpg": {"cat": P}}
    with pytest.raises(DataError, match="row 3: 3 cells"):
        read(first + "image;tags\na.jpg;cat;dog\n")


@pytest.mark.parametrize("ending", [".xlsx", ".xls", ".ods"])
def test_a_spreadsheet(read, tmp_path, ending):
    (tmp_path / f"a{ending}").write_bytes(b"PK\x03\x04")
    with pytest.raises(DataError, match="a spreadsheet file, which is not read; open it, save the sheet"):
        detect(tmp_path / f"a{ending}")
    with pytest.raises(DataError, match=r"labels\.csv: a spreadsheet file"):
        read(b"PK\x03\x04\x00")


def test_blank_cells_beyond_the_header(read):
    assert labels(read("image,tags\na.jpg,cat,,\nb.jpg,dog\n")) == {"a.jpg": {"cat": P}, "b.jpg": {"dog": P}}


def test_rows_of_another_length(read):
    with pytest.raises(
        DataError, match=r"row 2: 3 cells.* if 'cat,dog' is one cell, write it in quotes, as in \"cat,d"
    ):
        read("image,tags\na.jpg,cat,dog\n")
    with pytest.raises(DataError, match="row 3: 1 cell, but the header has 2; add the missing cells"):
        read("image,tags\na.jpg,cat\nb.jpg\n")


def test_names_of_columns_in_any_spelling(read):
    assert read("image,hot  dog\u200b,cat\na.jpg,1,0\n", columns=("hot dog",)).classes.ids == ("hot dog",)


# ---------------------------------------------------------------------------------------------------- tags in one cell


@pytest.mark.parametrize(
    "cell",
    ["['cat', 'hot dog']", '[""cat"", ""hot dog""]', "('cat', 'hot dog')", "['cat' 'hot dog']", "[cat, hot dog]"],
)
def test_lists_of_programs(read, cell):
    table = read(f'image,tags\na.jpg,"{cell}"\nb.jpg,[]\n')
    assert labels(table) == {"a.jpg": {"cat": P, "hot dog": P}, "b.jpg": {}}
    assert "labels.csv: each cell is a list of tags" in table.notes.messages


VECTORS = ["1 0 NaN", "1|0|nan", '"[1, 0, nan]"', '"1,0,NaN"', "1.0 0.0 nan"]


@pytest.mark.parametrize("cell", VECTORS)
def test_vectors_with_class_names_in_the_header(read, cell):
    table = read(f"image\tcat dog cow\na.jpg\t{cell}\nb.jpg\t\n")
    assert labels(table) == {"a.jpg": {"cat": P, "dog": N}, "b.jpg": {}}


def test_digits_without_separator(read):
    assert labels(read("image,cat dog cow\na.jpg,101\nb.jpg,010\n"))["a.jpg"] == {"cat": P, "dog": N, "cow": P}
    # Numbers of classes.
    assert read("image,label\na.jpg,10\nb.jpg,11\nc.jpg,7\n").classes.ids == ("10", "11", "7")
    assert read("image,tags\na.jpg,16 0\nb.jpg,0\nc.jpg,16\nd.jpg,5 16\n").classes.ids == ("0", "16", "5")


@pytest.mark.parametrize("cell", [*VECTORS, "11010", "1 -1 0"])
def test_vectors_without_class_names_are_refused(read, cell):
    with pytest.raises(DataError) as error:
        read(f"image\ttags\na.jpg\t{cell}\n")
    assert "states 0 or 1 for each class, but nothing names the classes" in str(error.value)
    assert "Make one column per class" in str(error.value)


def test_vectors_of_different_lengths_are_refused(read):
    with pytest.raises(DataError, match="the cells have 2 to 3 numbers"):
        read("image,cat dog\na.jpg,1 0\nb.jpg,1 0 1\n")


def test_nan_beside_a_tag_is_not_a_class(read):
    table = read("image,tags\na.jpg,cat|NaN\nb.jpg,dog\n")
    assert table.classes.ids == ("cat", "dog")
    assert "labels.csv: 1 cell has NaN beside tags; it states nothing" in table.notes.messages


def test_a_comma_that_may_belong_to_a_name(read):
    text = 'image,tags\na.jpg,"tench, Tinca tinca"\nb.jpg,"goldfish, Carassius"\n'
    with command_line(), pytest.raises(DataError) as error:
        read(text)
    assert str(error.value).endswith(
        "row 2, column 'tags': 'tench, Tinca tinca' may be 2 tags, or one name with a comma. If the commas separate "
        "tags, pass --set data.tags_separator=,; if they belong to the names, pass --set 'data.tags_separator=|'."
    )
    assert read(text, tags_separator="|").classes.ids == ("goldfish, Carassius", "tench, Tinca tinca")
    assert len(read(text, tags_separator=",").classes) == 4
    some = read('image,tags\na.jpg,"cat, dog"\nb.jpg,cat\nc.jpg,"salt, pepper"\n')
    assert "'salt, pepper' were split at commas, but their parts never occur apart" in some.notes.warnings[0]


def test_a_bar_beats_a_comma(read):
    assert read('image,tags\na.jpg,"salt, pepper|cup"\n').classes.ids == ("cup", "salt, pepper")
    with pytest.raises(DataError, match="may all separate tags"):
        read('image,tags\na.jpg,"cat,dog|cup"\nb.jpg,dog|cat\n')


def test_names_that_look_equal_are_one_class(read):
    assert read("image,tags\na.jpg,cafe\u0301\nb.jpg,caf\u00e9\u200b\n").classes.ids == ("caf\u00e9",)
    assert read("image,cafe\u0301\na.jpg,1\n").classes.ids == ("caf\u00e9",)
    points = "image,class,x_px,y_px\na.jpg,cafe\u0301,,\nb.jpg,caf\u00e9,,\n"
    assert read(points).classes.ids == ("caf\u00e9",)
    with pytest.raises(DataError, match="several columns are called"):
        read("image,cafe\u0301,caf\u00e9\na.jpg,1,0\n")


# ------------------------------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("image,tags,is_valid\na.jpg,cat,True\nb.jpg,dog,False\n", ["val", "train"]),
        ("image,cat,is_valid\na.jpg,1,1\nb.jpg,0,0\n", ["val", "train"]),
        ("image,cat,is_valid,is_test\na.jpg,1,1,0\nb.jpg,0,0,1\nc.jpg,0,0,0\n", ["val", "test", "train"]),
        ("image,cat,is_train\na.jpg,1,1\nb.jpg,0,0\n", ["train", "val"]),
        ("image,cat,Usage\na.jpg,1,Training\nb.jpg,0,Test\n", ["train", "test"]),
        ("image,tags,which\na.jpg,cat,train\nb.jpg,dog,valid\n", ["train", "val"]),
        ("image,cat,train,val\na.jpg,1,1,0\nb.jpg,0,0,1\n", ["train", "val"]),
    ],
)
def test_splits_under_any_name(read, text, expected):
    table = read(text)
    assert splits(table) == expected
    assert set(table.classes.ids) <= {"cat", "dog"}


def test_columns_that_may_be_splits(read):
    assert read("image,cat,train\na.jpg,1,1\nb.jpg,0,0\n").classes.ids == ("cat", "train")  # the vehicle
    with pytest.raises(DataError, match="the column 'val' may be a class or a split"):
        read("image,cat,val\na.jpg,1,1\nb.jpg,0,0\n")
    assert read("image,cat,val\na.jpg,1,1\nb.jpg,0,0\n", columns=("cat", "val")).classes.ids == ("cat", "val")
    with pytest.raises(DataError, match="'split', 'is_valid' may all name the split"):
        read("image,cat,split,is_valid\na.jpg,1,train,1\nb.jpg,0,val,0\n")
    fold = read("image,cat,fold\na.jpg,1,1\nb.jpg,0,0\n")
    assert fold.classes.ids == ("cat",)
    assert "column 'fold' is read neither as a split nor as a class" in fold.notes.warnings[0]
    numbers = read("image,cat,partition\na.jpg,1,0\nb.jpg,0,2\nc.jpg,0,1\n")
    assert "column 'partition': no value is train, val or test" in numbers.notes.warnings[0]


def test_predictions_are_not_labels(read):
    with pytest.raises(DataError, match=r"are those of `fewtags predict`; predictions are not labels"):
        read("image,class,name,probability,threshold\na.jpg,cat,cat,0.9,0.5\n")
    for text in ("image,cat,dog\na.jpg,0.91,0.002\nb.jpg,0.1,1.0\n", "image,cat\na.jpg,0.9\n"):
        with pytest.raises(DataError, match="between 0 and 1, as the probabilities that a model predicts"):
            read(text)


def test_points_of_coralnet(read, make_photo):
    make_photo("a.jpg", size=(40, 20))
    table = read("Name,Row,Column,Label\na.jpg,5,10,coral\na.jpg,15,30,sand\n")
    assert [(f["x0"], f["y0"]) for f in table.facts.to_pylist()] == [(0.25, 0.25), (0.75, 0.75)]
    with pytest.raises(DataError, match="are the columns 'Column' and 'Row' points in pixels or in fractions"):
        read("image,Row,Column,Label\na.jpg,5,10,coral\n")


def test_numbers_beside_labels_are_a_warning(read):
    table = read("image,left,top,label\na.jpg,5,10,cat\nb.jpg,6,7,dog\n")
    assert table.notes.warnings[0].startswith(
        "labels.csv: the numbers of 'left', 'top' beside the labels are not read."
    )


@pytest.mark.parametrize(
    "cells", [("[True, False]", "[False, True]"), ("yes;no", "no;no"), ("FALSE TRUE", "TRUE TRUE")]
)
def test_words_of_states_in_a_cell_are_a_vector(read, cells):
    """They were read as the classes "True" and "False"."""
    rows = "".join(f'{name},"{cell}"\n' for name, cell in zip(("a.jpg", "b.jpg"), cells, strict=True))
    with pytest.raises(DataError, match=r"states present or absent for each class, .* \(the cells have 2 states\)"):
        read(f"image,labels\n{rows}")
    state = {"[True, False]": (P, N), "yes;no": (P, N), "FALSE TRUE": (N, P)}[cells[0]]
    assert labels(read(f"image,cat dog\n{rows}"))["a.jpg"] == dict(zip(("cat", "dog"), state, strict=True))


def test_row_numbers_of_pandas_are_not_a_class(read):
    """With two rows, they are 0 and 1."""
    assert labels(read("Unnamed: 0,image,cat\n0,a.jpg,1\n1,b.jpg,0\n")) == {"a.jpg": {"cat": P}, "b.jpg": {"cat": N}}


def test_boxes_without_states(read, make_photo):
    """The warning about places asked for these columns, and then did not read them."""
    make_photo("a.jpg", size=(40, 20))
    (fact,) = read("image,class,x0,y0,x1,y1\na.jpg,cat,0.1,0.2,0.5,0.6\n").facts.to_pylist()
    assert [fact[corner] for corner in ("x0", "y0", "x1", "y1")] == pytest.approx([0.1, 0.2, 0.5, 0.6])
    with pytest.raises(DataError, match=r"row 2, column 'x0': '10' is not in 0\.\.1"):
        read("image,class,x0,y0,x1,y1\na.jpg,cat,10,20,50,60\n")


def test_labels_beside_scores_are_predictions(read):
    for text in ("image,label,score\na.jpg,cat,0.93\n", "image,class,Model Confidence\na.jpg,cat,0.93\nb.jpg,dog,1\n"):
        with pytest.raises(DataError, match="between 0 and 1, as the probabilities that a model predicts"):
            read(text)
    assert labels(read("image,label,score\na.jpg,cat,0.93\n", columns=("label",))) == {"a.jpg": {"cat": P}}


@pytest.mark.parametrize("tag", ["cat/dog", "cat + dog", "cat & dog", "3 17"])
def test_a_tag_of_other_tags_is_a_warning(read, tag):
    (warning,) = read(f"image,tags\na.jpg,{tag}\nb.jpg,dog\nc.jpg,cat\n").notes.warnings
    assert f"{tag!r} is read as one class, but the parts are tags or numbers themselves" in warning


def test_names_with_words_of_other_names_are_no_warning(read):
    assert not read("image,tags\na.jpg,hot dog\nb.jpg,dog\nc.jpg,t-shirt\nd.jpg,traffic light\n").notes.warnings


def test_line_breaks_in_a_cell_separate_tags(read):
    """They became blanks: the class "traffic light dog"."""
    text = 'image,tags\na.jpg,"traffic light\ndog"\nb.jpg,dog\nc.jpg,traffic light\n'
    assert labels(read(text))["a.jpg"] == {"traffic light": P, "dog": P}


@pytest.mark.parametrize("tag", ["cat and dog", "cat_dog", "cat_and_dog", "cat-dog"])
def test_words_between_tags_are_a_warning(read, tag):
    (warning,) = read(f"image,tags\na.jpg,{tag}\nb.jpg,dog\nc.jpg,cat\n").notes.warnings
    assert f"{tag!r} is read as one class, but the parts are tags or numbers themselves" in warning


def test_tags_with_blanks_between_in_a_short_table_are_a_warning(read):
    """Blanks separate tags if there are fewer words than distinct cells; a short table has as many."""
    cells = ("haze primary", "agriculture clear primary water", "clear primary", "haze primary water")
    table = read("image,tags\n" + "".join(f"{i}.jpg,{cell}\n" for i, cell in enumerate(cells)))
    (warning,) = table.notes.warnings
    assert "are read as one class each, but most of their words are in several of them" in warning


@pytest.mark.parametrize("cell", ["dog:0.9;cat:0.1", "dog:.9 cat:.1", "dog (0.9)|cat (1)", "['dog: 0.9', 'cat: 1']"])
def test_tags_with_scores_are_refused(read, cell):
    with pytest.raises(DataError, match="looks like tags with scores, and scores are not labels"):
        read(f'image,tags\na.jpg,"{cell}"\nb.jpg,"{cell.replace("9", "8")}"\n')
    table = read("image,tags\na.jpg,f=1.8;cat\nb.jpg,dog;size: 1\nc.jpg,cat:2\n")
    assert table.classes.ids == ("cat", "cat:2", "dog", "f=1.8", "size: 1")


@pytest.mark.parametrize("cell", ['{"dog": 1, "cat": 0}', '[{"name": "dog"}]', '{"choices":["dog","cat"]}'])
def test_objects_are_not_tags(read, cell):
    """Label Studio's CSV has such cells; they were taken for tags with commas."""
    quoted = cell.replace('"', '""')
    with pytest.raises(DataError, match=r"is an object, not tags.* export 'JSON' instead"):
        read(f'image,tags\na.jpg,"{quoted}"\nb.jpg,cat\n')
    assert labels(read("image,tags\na.jpg,\"{'cat: a', 'dog'}\"\n")) == {"a.jpg": {"cat: a": P, "dog": P}}


# ------------------------------------------------------------------------------------------ spreadsheets and annotators


def test_decimal_commas_of_spreadsheets(read, make_photo):
    """A comma that separates nothing is that of a number; in "cat,dog" it separates the states of classes."""
    table = read("Bild;cat;dog\r\na.jpg;1,0;0,00\r\nb.jpg;-1,0;1\r\n")
    assert labels(table) == {"a.jpg": {"cat": P, "dog": N}, "b.jpg": {"dog": P}}
    assert labels(read("image;cat,dog\na.jpg;1,0\nb.jpg;1,1\n", delimiter=";"))["a.jpg"] == {"cat": P, "dog": N}
    make_photo("a.jpg")
    table = read("image;class;x0;y0;x1;y1\na.jpg;cat;0,25;0;0,5;1,0\n")
    assert table.facts["x0"].to_pylist() == [0.25]
    with pytest.raises(DataError, match="are between 0 and 1, as the probabilities that a model predicts"):
        read("image;label;score\na.jpg;cat;0,93\n")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_encodings_of_excel_and_powershell(read, encoding):
    assert labels(read("image\tk\xe4fer\r\na.jpg\t1\r\n".encode(encoding))) == {"a.jpg": {"k\xe4fer": P}}


def test_a_name_with_a_comma_in_a_header_with_semicolons(read):
    """Both split the header into two columns; the rows decide."""
    assert labels(read("image;tags, all\na.jpg;cat\nb.jpg;dog\n")) == {"a.jpg": {"cat": P}, "b.jpg": {"dog": P}}


def test_blank_rows_of_spreadsheets(read):
    assert labels(read("image,cat,dog\n,,\na.jpg,1,0\n , ,\n,,\n")) == {"a.jpg": {"cat": P, "dog": N}}
    with pytest.raises(DataError, match="row 4, column 'image': there is no image name; fill it in, or remove the row"):
        read("image,cat,dog\na.jpg,1,0\n,,\n,1,2\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "Labels 2026;;\n;;\nimage;cat;dog\n",
            "row 1: 'Labels 2026' is alone in its row, like a title; remove the rows",
        ),
        ("# exported\nimage,cat,dog\na.jpg,1,0\n", "row 1: '# exported' is alone in its row, like a title"),
        (";;\nimage;cat;dog\na.jpg;1;0\n", "row 1: the row is blank; remove the rows above the header"),
        ('"image,""cat"""\n"a.jpg,1"\n', "row 1: the row is in quotes as a whole; save the table again"),
        (
            "3\nimage_name  labels\na.jpg 1 -1\n",
            "row 3: 'a.jpg' has 2 values, but line 2 has 1 name of columns, as in D",
        ),
        ("image cat dog\na.jpg 1 0\n", "if blanks separate the cells, pass ReadOptions(delimiter=' ')"),
        ("image tags\na.jpg cat dog\n", "if blanks separate the cells, put commas between the cells"),
        ("a.jpg cat dog\nb.jpg cat\n", "row 1: 'a.jpg' looks like a photo, not like a column; add a header such as"),
        ("image,pets,,\n,cat,dog,cow\na.jpg,1,0,1\n", "if it is a second row of headers, write one row with a name"),
        ("image,label1,labels,label2\na.jpg,cat,red,dog\n", "which are then read as one list, ReadOptions(columns=('l"),
        ("image\na.jpg\n", "a single column 'image' when split at ','"),
    ],
)
def test_what_is_above_or_instead_of_a_header(read, text, message):
    with pytest.raises(DataError, match=re.escape(message)):
        read(text)


def test_words_for_unsure_and_missing(read):
    table = read("image,cat\na.jpg,ja\nb.jpg,unsicher\nc.jpg,nein\nd.jpg,#N/A\ne.jpg,unbekannt\n")
    known = {image: found for image, found in labels(table).items() if found}
    assert known == {"a.jpg": {"cat": P}, "c.jpg": {"cat": N}}
    table = read("image,cat\na.jpg,pos\nb.jpg,incertain\nc.jpg,neg\n", uncertain="ones")
    assert labels(table) == {"a.jpg": {"cat": P}, "b.jpg": {"cat": P}, "c.jpg": {"cat": N}}


@pytest.mark.parametrize("name", ["label", "tag", "class", "category"])
@pytest.mark.parametrize("state", ["state", "present", "Presence"])
def test_a_label_and_its_state_in_each_row(read, name, state):
    """A row "label, 0" was a positive label, and its state a number that may be a place."""
    table = read(f"image,{name},{state}\na.jpg,cat,1\na.jpg,dog,0\nb.jpg,dog,yes\n")
    assert labels(table) == {"a.jpg": {"cat": P, "dog": N}, "b.jpg": {"dog": P}}


def test_words_beside_tags_that_may_be_states_are_a_warning(read):
    (warning,) = read("image,label,verified\na.jpg,cat,1\na.jpg,dog,0\n").notes.warnings
    assert "column 'verified' beside the tags is not read, and has words for absent. If it says whether" in warning


def test_columns_about_rows_are_no_classes(read):
    """Label Studio's CSV had the class "annotator", and its choices were ignored."""
    table = read("annotator,choice,id,image,Patient ID\n1,cat,0,a.jpg,1\n1,dog,1,b.jpg,1\n")
    assert labels(table) == {"a.jpg": {"cat": P}, "b.jpg": {"dog": P}}
    assert read("Nr,image,cat\n0,a.jpg,1\n1,b.jpg,0\n").classes.ids == ("cat",)
    assert read("id,image,cat\n0,a.jpg,1\n1,b.jpg,0\n", columns=("id", "cat")).classes.ids == ("id", "cat")


def test_a_class_column_without_a_name_is_a_warning(read):
    (warning,) = read("image,cat,,dog\na.jpg,1,0,0\nb.jpg,0,1,1\n").notes.warnings
    assert "column 3 has no name and is not read, but has values of a class, '0', '1'; if it is one, name it" in warning


@pytest.mark.parametrize("blank", ["NA", "n/a", "#N/A", "null"])
def test_missing_values_of_programs_are_no_tags(read, blank):
    """R writes NA, which was a class."""
    table = read(f"image,tags\na.jpg,cat\nb.jpg,{blank}\n")
    assert labels(table) == {"a.jpg": {"cat": P}, "b.jpg": {}}
    assert "labels.csv: 1 cell is NA or null, which states nothing" in table.notes.messages


def test_a_line_break_in_the_header(read):
    assert labels(read('"image\nfile",cat,dog\na.jpg,1,0\n', image_column="image file"))["a.jpg"]["cat"] == P


def test_scores_in_per_cent_beside_labels_are_refused(read):
    with pytest.raises(DataError, match="as the probabilities that a model predicts, and predictions are not labels"):
        read("image,label,confidence\na.jpg,cat,93%\nb.jpg,dog,50%\n")


def test_a_header_with_commas_in_brackets(read):
    """NIH's table names two columns "Size[Width,Height]"; they are four cells, as in its rows."""
    text = "Image Index,Finding Labels,Follow-up #,Size[Width,Height],Spacing[x,y]\na.png,Mass|Edema,0,9,9,.1,.1\n"
    table = read(f"{text}b.png,No Finding,1,9,9,.1,.2\n")
    assert labels(table) == {"a.png": {"Edema": P, "Mass": P}, "b.png": {"Edema": N, "Mass": N}}
