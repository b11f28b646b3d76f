import re

import pytest

from fewtags.errors import DataError
from fewtags.formats.common import text_of
from fewtags.formats.yolo_layout import find_yolo, names_classes

ROW = "0 .5 .5 .2 .2\n"


@pytest.fixture
def write(tmp_path):
    """Writes text files below tmp_path; photos are never opened here, so any text will do."""

    def write(*photos, **texts):
        for name, text in (*((name, "x") for name in photos), *texts.pop("files", {}).items()):
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    return write


def parts(found):
    """Label file relative to the root and split of each image."""
    label = [None if file is None else file.relative_to(found.root).as_posix() for file in found.labels]
    return {name: (file, split) for name, file, split in zip(found.images, label, found.splits, strict=True)}


def test_roboflow(tmp_path, write):
    """The YAML file lies beside the folders but says "../train/images", and the split is called valid."""
    yaml = "train: ../train/images\nval: ../valid/images\n# test: ../test/images\nnc: 1\nnames: ['cat']\n"
    write("d/train/images/a.jpg", "d/valid/images/b.jpg", "d/test/images/c.jpg", files={"d/data.yaml": yaml})
    write(files={"d/train/labels/a.txt": ROW, "d/valid/labels/b.txt": ROW, "d/README.roboflow.txt": "hello"})
    found = find_yolo(tmp_path / "d")
    assert parts(found) == {
        "train/images/a.jpg": ("train/labels/a.txt", "train"),
        "valid/images/b.jpg": ("valid/labels/b.txt", "val"),
    }
    assert (found.root, found.names, found.photos) == (tmp_path / "d", {0: "cat"}, True)


def test_paths_that_really_go_up(tmp_path, write):
    yaml = "train: ../train/images\nval: [../val/images, ../more/images]\nnames: [cat]\n"
    write("train/images/a.jpg", "val/images/b.jpg", "more/images/c.jpg", files={"conf/data.yaml": yaml})
    write(files={"train/labels/a.txt": ROW})
    found = find_yolo(tmp_path / "conf/data.yaml")
    assert found.root == tmp_path
    assert parts(found) == {
        "train/images/a.jpg": ("train/labels/a.txt", "train"),
        "val/images/b.jpg": (None, "val"),
        "more/images/c.jpg": (None, "val"),
    }


@pytest.mark.parametrize("path", ["data", "./data", "{tmp}/data", "gone"])
def test_path_in_the_yaml_file(tmp_path, write, path):
    """Relative to the YAML file, absolute, or of another machine: then the file's own folder is tried."""
    home = "" if path == "gone" else "data/"
    write(f"{home}images/train/a.jpg", files={f"{home}labels/train/a.txt": ROW})
    write(files={"d.yaml": f"path: {path.format(tmp=tmp_path)}\ntrain: images/train\nval: ~\nnames: {{0: cat}}\n"})
    found = find_yolo(tmp_path / "d.yaml")
    assert parts(found) == {f"{home}images/train/a.jpg": (f"{home}labels/train/a.txt", "train")}


def test_lists_of_photos(tmp_path, write):
    """COCO's YOLO files: lines relative to the list. A photo in two splits counts for the first."""
    write("images/a.jpg", "images/b.jpg", "images/c.jpg", files={"labels/a.txt": ROW, "labels/b.txt": ROW})
    write(files={"train.txt": "./images/a.jpg\n", "val.txt": "./images/b.jpg\n\n./images/a.jpg\n"})
    write(files={"data.yaml": "train: train.txt\nval: val.txt\nnames: [cat]\n"})
    found = find_yolo(tmp_path)
    assert parts(found) == {"images/a.jpg": ("labels/a.txt", "train"), "images/b.jpg": ("labels/b.txt", "val")}
    assert found.messages == ("1 photo is in several splits; the first of them counts",)
    (repeated,) = found.repeated
    assert (repeated.reason, repeated.kind) == ("is in train and in val; the first of them counts", "splits")
    assert repeated.item in found.images


@pytest.mark.parametrize("start", ["/old/set/", "C:\\old\\set\\", "data/obj/", "../../old/", ""])
def test_lists_of_another_computer(tmp_path, write, start):
    """Photos are found by the end of the path within their split, as in all readers; a missing one stays below home."""
    slash = "\\" if "\\" in start else "/"
    lines = {split: start + f"images/{split}/x.jpg".replace("/", slash) for split in ("train", "val")}
    yaml = "train: train.txt\nval: val.txt\nnames: [cat]\n"
    write("images/train/x.jpg", "images/val/x.jpg", files={"data.yaml": yaml, "labels/val/x.txt": ROW})
    write(files={"train.txt": lines["train"], "val.txt": f"{lines['val']}\n{start}images/val/gone.jpg"})
    found = find_yolo(tmp_path / "data.yaml")
    assert found.root == tmp_path
    images = {**parts(found)}
    assert [split for name, (_, split) in images.items() if name.endswith("gone.jpg")] == ["val"]
    assert images["images/train/x.jpg"] == (None, "train")
    assert images["images/val/x.jpg"] == ("labels/val/x.txt", "val")
    shown = f"1 photo of val.txt found by the end of the path, for example 'images/val/x.jpg' for '{lines['val']}'"
    assert (shown in found.messages) == bool(start)


def test_lists_whose_lines_start_higher_up(tmp_path, write):
    write("data/obj/a.jpg", files={"data/obj/a.txt": ROW, "data/train.txt": "data/obj/a.jpg\n"})
    write(files={"d.yaml": "train: data/train.txt\nnames: [cat]\n"})
    assert parts(find_yolo(tmp_path / "d.yaml")) == {"data/obj/a.jpg": ("data/obj/a.txt", "train")}


@pytest.mark.parametrize("layout", ["images/{split}/{name}", "{split}/images/{name}"])
def test_splits_by_folder(tmp_path, write, layout):
    files = {}
    for split, name in (("train", "a"), ("valid", "b"), ("test", "c")):
        write(layout.format(split=split, name=f"{name}.jpg"))
        files[layout.format(split=split, name=f"{name}.txt").replace("images", "labels")] = ROW
    write(files={"classes.txt": "cat\n", **files})
    assert find_yolo(tmp_path).splits == ["test", "train", "val"]


def test_no_splits(tmp_path, write):
    write("images/trainers/a.jpg", files={"classes.txt": "cat\n", "labels/trainers/a.txt": ROW})
    assert find_yolo(tmp_path).splits == [""]


def test_label_files_beside_the_photos(tmp_path, write):
    """Darknet: the names in obj.names; a text file without a photo is reported."""
    write("obj/a.jpg", "obj/b.jpg", files={"obj.names": "cat\ndog\n", "obj/a.txt": ROW, "obj/other.txt": "x"})
    found = find_yolo(tmp_path)
    assert parts(found) == {"obj/a.jpg": ("obj/a.txt", ""), "obj/b.jpg": (None, "")}
    assert found.names == {0: "cat", 1: "dog"}
    assert found.messages == ("1 .txt file outside of labels/ has no photo of its name and is ignored",)


def test_the_folder_labels_stands_for_its_data_set(tmp_path, write):
    write("images/a.jpg", files={"labels/classes.txt": "cat\n", "labels/a.txt": ROW})
    assert parts(find_yolo(tmp_path / "labels")) == {"images/a.jpg": ("labels/a.txt", "")}


def test_a_data_set_below_a_folder_called_images(tmp_path, write):
    write("images/set/a.jpg", "images/set/b.jpg", files={"images/set/classes.txt": "cat\n", "images/set/a.txt": ROW})
    assert parts(find_yolo(tmp_path / "images/set")) == {"a.jpg": ("a.txt", ""), "b.jpg": (None, "")}


def test_only_label_files(tmp_path, write):
    write(files={"data.yaml": "train: images/train\nnames: [cat]\n", "labels/train/a.b.txt": ROW})
    found = find_yolo(tmp_path)
    assert parts(found) == {"images/train/a.b": ("labels/train/a.b.txt", "train")}
    assert not found.photos


def test_one_label_file_for_two_photos_of_that_name(tmp_path, write):
    write("images/a.jpg", "images/a.png", files={"classes.txt": "cat", "labels/a.txt": ROW})
    assert parts(find_yolo(tmp_path)) == {"images/a.jpg": ("labels/a.txt", ""), "images/a.png": ("labels/a.txt", "")}


def test_a_wrong_count_of_classes_is_reported(tmp_path, write):
    write(files={"data.yaml": "nc: 80\nnames: [cat]\n", "labels/a.txt": ROW})
    assert find_yolo(tmp_path).messages == ("nc is 80, but there are 1 names; the names count",)


@pytest.mark.parametrize(
    ("yaml", "trouble"),
    [
        (
            "train: images/training\nnames: [cat]",
            "train is 'images/training', which does not exist; tried '{tmp}/images/training'.",
        ),
        ("train: {a: b}\nnames: [cat]", "train must be a folder, a list of photos, or several of them."),
        ("train: " + "x" * 300 + "\nnames: [cat]", "train is '" + "x" * 300 + "', which does not exist; tried"),
        ("names: cat", "names must be a list, or number: name for each class."),
        ("names: [[cat]]", "names must be a list, or number: name for each class."),
        ("names: {cat: 0}", "names has the key 'cat'; expected the number of a class."),
        ("names: []", "names no class, so there is nothing to learn."),
        ("names: [cat]\nkpt_shape: 17", "kpt_shape must be two numbers, as in [17, 3]."),
        ("- a", "expected keys such as train, val and names, as in the data.yaml of YOLO."),
        ("train: images", "no file names the class numbers; expected names in a data.yaml, or a classes"),
        ("names: " + "[" * 3200, "not valid YAML (nested too deeply)."),
        ("names: " + "- " * 30 + "x", "not valid YAML"),
        ("names:\n" + "".join(" " * n + "- \n" for n in range(1, 30)), "is nested more than 20 levels deep; a data."),
        (
            "names: !!python/object/apply:os.system [x]",
            "line 1 uses the YAML tag 'tag:yaml.org,2002:python/object/apply:os.sys",
        ),
        ("names: !x [cat]", "line 1 uses the YAML tag '!x', which is not read; remove it."),
        ("a: &x [1]\nnames: [*x, *x]", "uses YAML aliases (*name), which are not read; write the values out."),
        ("names: [cat", "not valid YAML (while parsing a flow sequence"),
        ("? [a]\n: b\nnames: [cat]", "not valid YAML (while constructing a mapping"),
        ("names: {0: cat, 0: dog}", "'0' is in line 1 and again in line 1; leave one of them."),
        ("names: [cat]\ntrain: a\nnames: [dog]", "'names' is in line 1 and again in line 3; leave one of them."),
        ("names: {0: cat, 00: dog}", "names gives several names to one class number; leave one of them."),
        (f"names: {{? '{'9' * 5000}' : cat}}", "names has the key '9999"),
        ("names: [cat]\nkpt_shape: ['\u00b2', 3]", "kpt_shape must be two numbers, as in [17, 3]."),
    ],
)
def test_yaml_files_that_say_something_else(tmp_path, write, yaml, trouble):
    write(files={"d.yaml": yaml, "labels/a.txt": ROW})
    with pytest.raises(DataError) as error:
        find_yolo(tmp_path / "d.yaml")
    assert str(error.value).startswith(f"{tmp_path}/d.yaml: {trouble.format(tmp=tmp_path)}")


@pytest.mark.parametrize(
    "yaml",
    [b"names: !!python/object/apply:os.system ['true']", b"names: " + b"[" * 20_000, b"\xff: 1", b"names: [\x00]"],
)
def test_hostile_yaml_is_our_error(tmp_path, yaml):
    (tmp_path / "d.yaml").write_bytes(yaml)
    with pytest.raises(
        DataError, match=r"d\.yaml: (not|names must be|no file|there is no label)|d.yaml: line 1 uses the YAML tag"
    ):
        find_yolo(tmp_path / "d.yaml")


def test_files_that_are_too_large_are_not_read(tmp_path, write):
    write(files={"d.yaml": "names: [cat]\n# " + "x" * (1 << 20), "a.txt": "x" * 11})
    with pytest.raises(
        DataError, match=re.escape("d.yaml: more than 1 MiB; is this the data.yaml of a YOLO data set?")
    ):
        find_yolo(tmp_path / "d.yaml")
    assert not names_classes(tmp_path / "d.yaml")
    assert text_of(tmp_path / "a.txt", 11) == "x" * 11
    with pytest.raises(DataError, match=r"a\.txt: more than 0 MiB; is this a label file\?"):
        text_of(tmp_path / "a.txt", 10)


def test_label_files_that_are_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"0 \xff")
    with pytest.raises(DataError, match=r"a\.txt: not UTF-8 text \(byte 2\); save it as UTF-8\."):
        text_of(tmp_path / "a.txt")


def test_label_files_that_cannot_be_opened(tmp_path, write):
    """A folder that is called like a label file, and a link that leads nowhere."""
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(DataError) as error:
        text_of(tmp_path / "a.txt")
    assert str(error.value) == f"{tmp_path}/a.txt: cannot be read (Is a directory); fix or remove it."
    (tmp_path / "b.txt").symlink_to("nowhere")
    with pytest.raises(DataError) as error:
        text_of(tmp_path / "b.txt")
    assert str(error.value) == f"{tmp_path}/b.txt: cannot be read (No such file or directory); fix or remove it."


def test_a_byte_order_mark_before_names(tmp_path, write):
    write("images/a.jpg", files={"data.yaml": "\ufeffnames: [cat]\n", "labels/a.txt": ROW})
    assert names_classes(tmp_path / "data.yaml")
    assert find_yolo(tmp_path).names == {0: "cat"}


def test_which_yaml_files_name_classes(tmp_path, write):
    write(files={"a.yaml": "names:\n- cat\n", "b.yml": "'names': [cat]\n", "c.yaml": "params:\n  names: x\n"})
    write(files={"d.txt": "names: [cat]\n"})
    assert [names_classes(tmp_path / name) for name in ("a.yaml", "b.yml", "c.yaml", "d.txt", "e.yaml")] == [
        *(True, True, False, False, False)
    ]
    with pytest.raises(DataError, match=r"'a\.yaml', 'b\.yml' all name classes; pass the one to read\."):
        find_yolo(tmp_path)
    with pytest.raises(DataError, match=r"d\.txt: expected the data\.yaml of a YOLO data set, or its folder\."):
        find_yolo(tmp_path / "d.txt")
