"""Lists in the shape of CelebA, the CSV of Kaggle, and the lists beside them that have no labels."""

import pytest
from annotated import save_photo, write_text
from seen import labels, readings

from fewtags.errors import DataError
from fewtags.formats.options import ReadOptions
from fewtags.formats.read import read
from fewtags.formats.unlabelled import unlabelled
from fewtags.labels import Label

P, N = Label.POSITIVE, Label.NEGATIVE
LIST = "2\nBald Big_Nose Smiling \n000001.jpg -1  1 -1\n000002.jpg  1 -1  1\n"
TRUTH = {
    "000001.jpg": {"Bald": N, "Big_Nose": P, "Smiling": N},
    "000002.jpg": {"Bald": P, "Big_Nose": N, "Smiling": P},
}
KAGGLE = "image_id,Bags_Under_Eyes,Big_Nose,Oval_Face,Young\n000001.jpg,-1,1,-1,1\n"


@pytest.mark.parametrize("encode", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("name", ["list_attr_celeba.txt", "attributes.TXT", "list_attr_celeba.csv"])
def test_a_list_with_a_count(tmp_path, name, encode):
    file = tmp_path / name
    file.write_bytes(LIST.replace("\n", "\r\n").encode(encode))
    table = read(file)
    assert table.classes.ids == ("Bald", "Big_Nose", "Smiling")
    assert labels(table) == TRUTH
    assert readings(table) == {"-1": ("negative", 3), "1": ("positive", 3)}
    assert table.notes.messages[0] == f"{name}: read as csv, a text table by its ending"
    assert any("-1 means absent, as in CelebA" in message for message in table.notes.messages)
    assert table.notes.warnings == ()


def test_zero_beside_minus_one_is_unknown(tmp_path):
    table = read(write_text(tmp_path / "a.txt", "1\nimage_name Bald Smiling\na.jpg 0 -1\n"))
    assert labels(table) == {"a.jpg": {"Smiling": N}}
    plain = read(write_text(tmp_path / "b.txt", "1\nBald Smiling\na.jpg 0 1\n"))
    assert labels(plain) == {"a.jpg": {"Bald": N, "Smiling": P}}


def test_options_of_tables_have_an_effect(tmp_path):
    file = write_text(tmp_path / "a.txt", LIST)
    assert read(file, options=ReadOptions(columns=("Smiling",))).classes.ids == ("Smiling",)
    ones = read(file, options=ReadOptions(uncertain="ones"))
    assert labels(ones)["000001.jpg"] == {"Bald": P, "Big_Nose": P, "Smiling": P}
    unknown = read(file, options=ReadOptions(unknown_words=("-1",)))
    assert labels(unknown)["000001.jpg"] == {"Big_Nose": P}


def test_the_csv_of_kaggle(tmp_path):
    table = read(write_text(tmp_path / "list_attr_celeba.csv", KAGGLE))
    assert labels(table) == {"000001.jpg": {"Bags_Under_Eyes": N, "Big_Nose": P, "Oval_Face": N, "Young": P}}
    assert table.notes.warnings == ()


@pytest.mark.parametrize("minus", ["-1", "-1.0", " -1"])
def test_blank_cells_and_numbers_in_another_form(tmp_path, minus):
    table = read(write_text(tmp_path / "a.csv", f"image_id,Bangs,Big_Nose,Blurry\na.jpg,1,{minus},\n"))
    assert labels(table) == {"a.jpg": {"Bangs": P, "Big_Nose": N}}


def test_a_column_of_partitions(tmp_path):
    rows = "".join(f"{n}.jpg,1,-1,-1,{n}\n" for n in range(3))
    table = read(write_text(tmp_path / "a.csv", f"image_id,Bangs,Big_Nose,Blurry,partition\n{rows}"))
    assert table.split_names.to_pylist() == ["train", "val", "test"]
    assert table.notes.warnings == ()


def test_other_tables_with_such_names_are_read(tmp_path):
    file = write_text(tmp_path / "list_eval_partition_mine.csv", "image,tags\na.jpg,cat\n")
    assert labels(read(file)) == {"a.jpg": {"cat": P}}


def test_minus_one_in_other_tables_is_asked_about(tmp_path):
    """Three names of CelebA make a table certain; -1 elsewhere is uncertain, as before."""
    table = read(write_text(tmp_path / "a.csv", KAGGLE.replace("Oval_Face", "Round")))
    assert labels(table) == {"000001.jpg": {"Big_Nose": P, "Young": P}}
    assert "-1 is read as uncertain" in table.notes.warnings[0]


@pytest.mark.parametrize("ending", ["txt", "csv"])
@pytest.mark.parametrize("folder", [".", "../Eval"])
def test_the_list_of_splits_beside_it(tmp_path, ending, folder):
    lines = ["000001.jpg 2", "000002.jpg 0", "000003.jpg 1"]
    text = "\n".join(lines) if ending == "txt" else "image_id,partition\n" + "\n".join(lines).replace(" ", ",")
    write_text(tmp_path / "Anno" / folder / f"list_eval_partition.{ending}", text)
    table = read(write_text(tmp_path / "Anno/list_attr_celeba.txt", LIST))
    assert table.split_names.to_pylist() == ["test", "train"]
    assert f"list_eval_partition.{ending}: names the split of 2 of 2 rows" in table.notes.messages


def test_a_list_of_splits_that_cannot_be_used(tmp_path):
    file = write_text(tmp_path / "list_attr_celeba.txt", LIST)
    write_text(tmp_path / "list_eval_partition.txt", "9.jpg 1\n")
    table = read(file)
    assert table.split_names is None
    assert table.notes.warnings == (
        "list_eval_partition.txt: has none of the photos of list_attr_celeba.txt, and is not used",
    )
    write_text(tmp_path / "list_eval_partition.txt", "000001.jpg 1\n000002.jpg 3\n")
    with pytest.raises(DataError, match=r"row 2: '000002\.jpg 3'; expected a photo and 0 \(train\), 1 \(val\) or 2"):
        read(file)


@pytest.mark.parametrize("folder", ["img_align_celeba", "img_align_celeba/img_align_celeba", "../Img/img_align_celeba"])
def test_photos_beside_it(tmp_path, folder):
    for name in TRUTH:
        save_photo(tmp_path / "Anno" / folder / name, (8, 6))
    table = read(write_text(tmp_path / "Anno/list_attr_celeba.txt", LIST))
    assert (table.root / table.images[0].as_py()).is_file()
    assert labels(table) == TRUTH


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("list_eval_partition.txt", "000001.jpg 0\n", "a list of splits \\(0 train, 1 val, 2 test\\), which are not"),
        ("list_eval_partition.csv", "image_id,partition\n000001.jpg,0\n", "a list of splits"),
        ("list_bbox_celeba.txt", "1\nimage_id x_1 y_1 width height\n000001.jpg 9 7 2 3\n", "a list of boxes of faces"),
        ("list_landmarks_align_celeba.csv", "image_id,lefteye_x\n000001.jpg,9\n", "a list of landmarks of faces"),
        ("identity_CelebA.txt", "000001.jpg 2880\n", "a list of the numbers of persons"),
        ("faces.txt", "1\nimage_id x_1 y_1 width height\na.jpg 9 7 2 3\n", "are places, not labels; pass list_attr"),
        ("eyes.txt", "1\nlefteye_x lefteye_y nose_x nose_y\na.jpg 9 7 2 3\n", "are places, not labels"),
        ("a.txt", "1\nBald Bald\na.jpg 1 1\n", "row 2: several columns are called 'Bald'"),
        ("a.txt", "1\nBald Big Nose\na.jpg 1 1\n", "row 3: 'a.jpg' has 2 values, but line 2 has 3 names of columns"),
        ("a.txt", "1\nimage_name labels\na.jpg 1 -1\n", "as in DeepFashion, whose names are in another file"),
        ("a.txt", "1\nBald Smiling\na.jpg 1 7\n", "row 3, column 'Smiling': '7' means neither present"),
        ("a.txt", "1\nBald\n", "is a number, as the count of rows"),
        ("a.txt", "1\n", "single column"),
        ("a.txt", "", "the file is empty"),
    ],
)
def test_lists_that_are_refused(tmp_path, name, text, message):
    with pytest.raises(DataError, match=message):
        read(write_text(tmp_path / name, text))


def test_a_count_that_differs_is_a_warning(tmp_path):
    table = read(write_text(tmp_path / "a.txt", LIST.replace("2", "9", 1) + "\n"))
    assert table.notes.warnings == ("a.txt: line 1 says 9, but there are 2 rows; is the file complete?",)


def test_the_folder_of_such_a_list_is_not_one_class(tmp_path):
    save_photo(tmp_path / "img_align_celeba/000001.jpg", (8, 6))
    write_text(tmp_path / "list_attr_celeba.txt", LIST)
    with pytest.raises(DataError, match=r"pass one of them instead of the folder: 'list_attr_celeba\.txt'"):
        read(tmp_path)


def test_its_photos_without_labels(tmp_path):
    for n, name in enumerate(TRUTH):
        save_photo(tmp_path / "img_align_celeba" / name, (8, 6), 50 * n)
    table = unlabelled(write_text(tmp_path / "list_attr_celeba.txt", LIST))
    assert table.images.to_pylist() == [*TRUTH]
