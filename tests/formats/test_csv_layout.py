import pytest

from fewtags.errors import DataError
from fewtags.formats.csv_layout import find_layout
from fewtags.formats.options import ReadOptions
from fewtags.formats.sheet import read_sheet


@pytest.fixture
def layout(tmp_path):
    """(form, image column, label columns, split column, messages) of a text."""

    def layout(text, **options):
        file = tmp_path / "a.csv"
        file.write_text(text)
        sheet = read_sheet(file)
        found = find_layout(sheet, ReadOptions(**options))
        names = [sheet.header[j] for j in found.labels]
        split = None if found.splits is None else sheet.header[found.splits.columns[0]]
        return found.form, sheet.header[found.image], names, split, found.messages

    return layout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("image,tags\na.jpg,cat dog\n", ("tags", "image", ["tags"], None)),
        ("image,split,cat,dog\na.jpg,train,1,0\nb.jpg,val,,0\n", ("classes", "image", ["cat", "dog"], "split")),
        ("image,class,state\na.jpg,cat,positive\n", ("facts", "image", ["class", "state"], None)),
        # Planet: no extension.
        ("image_name,tags\ntrain_0,haze primary\n", ("tags", "image_name", ["tags"], None)),
        # NIH chest X-rays: counts, ages and sexes beside the labels.
        (
            "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender\n"
            "1.png,Mass|Nodule,0,1,58,M\n2.png,No Finding,1,1,58,F\n3.png,Mass,2,2,81,F\n",
            ("tags", "Image Index", ["Finding Labels"], None),
        ),
        # CheXpert.
        (
            "Path,Sex,Age,Frontal/Lateral,AP/PA,Edema,Fracture\n"
            "p1/v.jpg,Female,68,Frontal,AP,1.0,\np2/v.jpg,Male,87,Lateral,PA,-1.0,\n",
            ("classes", "Path", ["Edema", "Fracture"], None),
        ),
        # A pandas index has no name.
        (",image,cat\n0,a.jpg,1\n1,b.jpg,0\n", ("classes", "image", ["cat"], None)),
        # The id is not the file.
        ("image_id,file,cat\n17,a.jpg,1\n18,b.jpg,0\n", ("classes", "file", ["cat"], None)),
        # No name that tells: the values do.
        ("what,which\na.jpg,cat\nb.jpg,dog\n", ("tags", "what", ["which"], None)),
        # A class that is called split.
        ("image,split,cat\na.jpg,1,0\nb.jpg,0,\n", ("classes", "image", ["split", "cat"], None)),
        ("image,label\na.jpg,3\nb.jpg,7\n", ("tags", "image", ["label"], None)),
    ],
)
def test_layouts(layout, text, expected):
    got = layout(text)
    assert got[:4] == expected


def test_the_columns_that_are_read_and_ignored_are_reported(layout):
    _, _, _, _, messages = layout("image;split;cat;dog;age\na.jpg;train;1;0;68\nb.jpg;val;;0;42\n")
    assert messages == (
        "a.csv: 2 rows, cells separated by ';'; images in 'image', 2 class columns 'cat', 'dog', split in 'split'",
        "a.csv: column 'age' ignored, its values are '68', '42'",
    )


def test_columns_that_are_chosen(layout):
    text = "image,cat,dog,tags\na.jpg,1,0,big red\nb.jpg,0,1,small\n"
    assert layout(text, columns=("dog",))[:3] == ("classes", "image", ["dog"])
    assert layout(text, columns=("dog", "cat"))[:3] == ("classes", "image", ["dog", "cat"])
    assert layout(text, columns=("tags",))[:3] == ("tags", "image", ["tags"])
    assert layout(text, columns=("cat",), tags_separator="|")[:3] == ("tags", "image", ["cat"])
    assert layout(text, image_column="tags", columns=("cat",))[1] == "tags"
    with pytest.raises(DataError, match=r"there is no column 'cats' \(did you mean 'cat'\?\)"):
        layout(text, columns=("cats",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a,b\n1,2\n",
            "no column is called 'image' or has photo names; its columns are 'a', 'b'. Pass "
            "ReadOptions(image_column='COLUMN').",
        ),
        (
            "image,tags,labels\na.jpg,red,big\n",
            "'tags', 'labels' may all be labels. Pass the one with the tags, ReadOptions(columns=('tags',)); or all "
            "that have tags, which are then read as one list, ReadOptions(columns=('tags', 'labels')).",
        ),
        (
            "image,tags,cat,dog\na.jpg,big,1,0\n",
            "'tags', 'cat', 'dog' may all be labels. Pass the column of tags, "
            "ReadOptions(columns=('tags',)), or those of the classes, ReadOptions(columns=('cat', 'dog')).",
        ),
        (
            "image,label\na.jpg,0\nb.jpg,1\n",
            "the values of 'label' ('0', '1') may state whether 'label' is present, or name classes; pass "
            "ReadOptions(columns=('label',)) for the former, ReadOptions(tags_separator='|') for the latter.",
        ),
        (
            "image,place,time\na.jpg,here,now\n",
            "it is not clear which of 'place', 'time' has labels. Pass the column of tags, "
            "ReadOptions(columns=('COLUMN',)), "
            "or those of the classes, ReadOptions(columns=('CLASS', '...')).",
        ),
    ],
)
def test_errors(layout, tmp_path, text, message):
    with pytest.raises(DataError) as error:
        layout(text)
    assert str(error.value) == f"{tmp_path / 'a.csv'}: {message}"


def test_a_zero_or_one_label_column_is_read_when_told_how(layout):
    text = "image,label\na.jpg,0\nb.jpg,1\n"
    assert layout(text, columns=("label",))[0] == "classes"
    assert layout(text, tags_separator="|")[0] == "tags"


def test_a_class_column_with_a_wrong_value_stays_a_class(layout):
    """So that the value is an error and not the end of the class."""
    assert layout("image,cat,dog\na.jpg,1,0\nb.jpg,maybe,1\nc.jpg,0,0\n")[2] == ["cat", "dog"]


POINTS = "image,class,x,y,width,height\na.jpg,cat,3,4,20,10\n"


@pytest.fixture
def points(tmp_path):
    """(form, label columns, point columns, unit, size columns) of a text."""

    def points(text, **options):
        (tmp_path / "a.csv").write_text(text)
        sheet = read_sheet(tmp_path / "a.csv")
        found = find_layout(sheet, ReadOptions(**options))
        names = [[sheet.header[j] for j in part or ()] for part in (found.labels, found.point, found.size)]
        return found.form, names[0], names[1], found.unit, names[2]

    return points


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (POINTS, {"points": "pixels"}, ("facts", ["class"], ["x", "y"], "pixels", ["width", "height"])),
        (POINTS, {"points": "fractions"}, ("facts", ["class"], ["x", "y"], "fractions", [])),
        (
            "image,Label,Y_px,X_px\na.jpg,cat,3,4\n",
            {},
            ("facts", ["Label"], ["X_px", "Y_px"], "pixels", []),
        ),
        (
            "image,class,state,x,y\na.jpg,cat,1,3,4\n",
            {"points": "pixels"},
            ("facts", ["class", "state"], ["x", "y"], "pixels", []),
        ),
        # The class column has a name of its own.
        (
            "image,species,x_px,y_px\na.jpg,cat,3,4\n",
            {"columns": ("species",)},
            ("facts", ["species"], ["x_px", "y_px"], "pixels", []),
        ),
        # Whoever says which columns are labels says that x and y are none.
        (POINTS, {"columns": ("class",)}, ("tags", ["class"], [], None, [])),
        # x and y beside class columns, or one alone, are not points.
        ("image,x,y,cat\na.jpg,300,4,1\n", {}, ("classes", ["cat"], [], None, [])),
        ("image,class,x\na.jpg,cat,3\n", {}, ("tags", ["class"], [], None, [])),
    ],
)
def test_points(points, text, options, expected):
    assert points(text, **options) == expected


def test_points_are_reported(layout):
    assert layout(POINTS, points="pixels")[4] == (
        "a.csv: 1 row, cells separated by ','; images in 'image', one label a row, points in pixels in 'x' and 'y'",
    )
    assert layout(POINTS, points="fractions")[4][1:] == (
        "a.csv: column 'width' ignored, its values are '20'",
        "a.csv: column 'height' ignored, its values are '10'",
    )


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            POINTS,
            {},
            "are the columns 'x' and 'y' points in pixels or in fractions of the photo? Pass "
            "ReadOptions(points='pixels') (or fractions), or call them x_px and y_px; if they are not points, list the "
            "columns with labels: ReadOptions(columns=('COLUMN',)).",
        ),
        (
            "image,class,x_px,y_px\na.jpg,cat,3,4\n",
            {"points": "fractions"},
            "the columns x_px and y_px are pixels; leave out ReadOptions(points='fractions').",
        ),
        (
            "image,tags\na.jpg,cat\n",
            {"points": "pixels"},
            "points is 'pixels', but there are no columns x and y; the columns are 'image', 'tags'.",
        ),
        (
            "image,label,category,x_px,y_px\na.jpg,cat,pet,3,4\n",
            {},
            "'label', 'category' may all be the class of each point; pass ReadOptions(columns=('COLUMN',)).",
        ),
        (
            "image,species,x_px,y_px\na.jpg,cat,3,4\n",
            {},
            "no column is called 'class' for the class of each point; pass ReadOptions(columns=('COLUMN',)).",
        ),
    ],
)
def test_points_are_never_guessed(points, tmp_path, text, options, message):
    with pytest.raises(DataError) as error:
        points(text, **options)
    assert str(error.value) == f"{tmp_path}/a.csv: {message}"
