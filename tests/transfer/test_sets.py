"""Every set in its published layout, with a handful of generated photos."""

import hashlib

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from torchvision import datasets

from fewtags.errors import ConfigError, DataError
from fewtags.labels import Label
from fewtags.photos.decode import open_photo
from fewtags.transfer.sets import SETS, read_set

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


def photo(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 16), (200, 100, 50)).save(path)


def lines(path, *text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in text))


def seen(table):
    """Each photo with its positive classes; checks that every photo can be opened."""
    matrix, classes = table.matrix.dense(), table.classes.ids
    for key in table.images.to_pylist():
        with open_photo(table.root / key) as opened:
            assert opened.info.aspect == 1.25
    return {
        key: [classes[c] for c in np.flatnonzero(row == P)]
        for key, row in zip(table.images.to_pylist(), matrix, strict=True)
    }


def cub200(root):
    base = root / "CUB_200_2011"
    names = ["001.Black_footed_Albatross/A_0001.jpg", "001.Black_footed_Albatross/A_0002.jpg", "002.Laysan/L_0001.jpg",
             "002.Laysan/L_0002.jpg"]  # fmt: skip
    for name in names:
        photo(base / "images" / name)
    lines(base / "images.txt", *(f"{i} {name}" for i, name in enumerate(names, 1)))
    lines(base / "classes.txt", "1 001.Black_footed_Albatross", "2 002.Laysan")
    lines(base / "image_class_labels.txt", "1 1", "2 1", "3 2", "4 2")
    lines(base / "train_test_split.txt", "1 1", "2 0", "3 0", "4 1")
    return (
        {f"images/{names[0]}": ["001.Black_footed_Albatross"], f"images/{names[3]}": ["002.Laysan"]},
        {f"images/{names[1]}": ["001.Black_footed_Albatross"], f"images/{names[2]}": ["002.Laysan"]},
    )


def flowers(root, monkeypatch):
    base = root / "flowers-102"
    for i in range(1, 7):
        photo(base / f"jpg/image_{i:05d}.jpg")
    savemat(base / "imagelabels.mat", {"labels": np.array([[1, 2, 2, 1, 77, 1]], np.uint8)})
    savemat(
        base / "setid.mat",
        {"trnid": np.array([[4, 2]]), "valid": np.array([[5, 6]]), "tstid": np.array([[1, 3]])},
    )
    # torchvision compares the files with the published ones.
    sums = {
        key: (name, hashlib.md5((base / name).read_bytes()).hexdigest())
        for key, name in (("label", "imagelabels.mat"), ("setid", "setid.mat"))
    }
    monkeypatch.setattr(datasets.Flowers102, "_file_dict", datasets.Flowers102._file_dict | sums)
    return (
        {"jpg/image_00004.jpg": ["001"], "jpg/image_00002.jpg": ["002"], "jpg/image_00005.jpg": ["077"],
         "jpg/image_00006.jpg": ["001"]},
        {"jpg/image_00001.jpg": ["001"], "jpg/image_00003.jpg": ["002"]},
    )  # fmt: skip


def cars(root):
    base = root / "stanford_cars"
    kinds = [(name, "O") for name in ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")]

    def annotations(*pairs):
        rows = [(1, 1, 9, 9, number, name) for name, number in pairs]
        return {"annotations": np.array([rows], dtype=kinds)}

    names = np.empty((1, 3), object)
    names[0] = ["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "smart fortwo 2012"]
    for name in ("cars_train/00001.jpg", "cars_train/00002.jpg", "cars_test/00001.jpg", "cars_test/00002.jpg"):
        photo(base / name)
    (base / "devkit").mkdir()
    savemat(base / "devkit/cars_meta.mat", {"class_names": names})
    savemat(base / "devkit/cars_train_annos.mat", annotations(("00001.jpg", 3), ("00002.jpg", 1)))
    savemat(base / "cars_test_annos_withlabels.mat", annotations(("00001.jpg", 1), ("00002.jpg", 2)))
    return (
        {"cars_train/00001.jpg": [names[0, 2]], "cars_train/00002.jpg": [names[0, 0]]},
        {"cars_test/00001.jpg": [names[0, 0]], "cars_test/00002.jpg": [names[0, 1]]},
    )


def aircraft(root):
    data = root / "fgvc-aircraft-2013b/data"
    for name in ("0034309", "1025794", "0056978", "0900914"):
        photo(data / f"images/{name}.jpg")
    lines(data / "variants.txt", "707-320", "Challenger 600", "F/A-18")
    lines(data / "images_variant_trainval.txt", "1025794 707-320", "0034309 Challenger 600")
    lines(data / "images_variant_test.txt", "0056978 F/A-18", "0900914 707-320")
    return (
        {"data/images/1025794.jpg": ["707-320"], "data/images/0034309.jpg": ["Challenger 600"]},
        {"data/images/0056978.jpg": ["F/A-18"], "data/images/0900914.jpg": ["707-320"]},
    )


def indoor67(root):
    base = root / "indoor67"
    names = ["kitchen/int474.jpg", "children_room/a b.jpg", "kitchen/kitchen1.jpg"]
    for name in names:
        photo(base / "Images" / name)
    lines(base / "TrainImages.txt", *names[:2])
    lines(base / "TestImages.txt", names[2], "")
    return (
        {f"Images/{names[0]}": ["kitchen"], f"Images/{names[1]}": ["children_room"]},
        {f"Images/{names[2]}": ["kitchen"]},
    )


def pets(root):
    base = root / "oxford-iiit-pet"
    for name in ("Abyssinian_100", "american_bulldog_1", "Abyssinian_2", "american_bulldog_22"):
        photo(base / f"images/{name}.jpg")
    lines(base / "annotations/trainval.txt", "Abyssinian_100 1 1 1", "american_bulldog_1 2 2 1")
    lines(base / "annotations/test.txt", "american_bulldog_22 2 2 1", "Abyssinian_2 1 1 1")
    return (
        {"images/Abyssinian_100.jpg": ["Abyssinian"], "images/american_bulldog_1.jpg": ["american_bulldog"]},
        {"images/american_bulldog_22.jpg": ["american_bulldog"], "images/Abyssinian_2.jpg": ["Abyssinian"]},
    )


def dtd(root):
    """Class woven is in no list but the training one: torchvision numbers the classes of each list anew."""
    base = root / "dtd/dtd"
    names = ["banded/banded_0002.jpg", "woven/woven_0001.jpg", "dotted/dotted_0161.jpg", "dotted/dotted_0180.jpg"]
    for name in names:
        photo(base / "images" / name)
    for part, listed in (("train1", names[:2]), ("val1", names[2:3]), ("test1", names[3:])):
        lines(base / f"labels/{part}.txt", *listed)
    train = {f"dtd/images/{name}": [name.split("/")[0]] for name in names[:3]}
    return train, {f"dtd/images/{names[3]}": ["dotted"]}


def voc2007(root):
    """000001 has a dog and a difficult cat, 000002 a cat, 000003 a dog and a difficult dog, 000004 nothing."""
    base = root / "VOC2007"
    objects = {"000001": [("dog", 0), ("cat", 1)], "000002": [("cat", 0)], "000003": [("dog", 0), ("dog", 1)],
               "000004": []}  # fmt: skip
    for name, found in objects.items():
        photo(base / f"JPEGImages/{name}.jpg")
        inside = "".join(
            f"<object><name>{c}</name><difficult>{d}</difficult><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax>"
            "<ymax>9</ymax></bndbox></object>"
            for c, d in found
        )
        size = "<size><width>20</width><height>16</height><depth>3</depth></size>"
        lines(
            base / f"Annotations/{name}.xml",
            f"<annotation><filename>{name}.jpg</filename>{size}{inside}</annotation>",
        )
    lines(base / "ImageSets/Main/train.txt", "000001")
    lines(base / "ImageSets/Main/val.txt", "000002")
    lines(base / "ImageSets/Main/trainval.txt", "000001", "000002")
    lines(base / "ImageSets/Main/test.txt", "000003", "000004")
    return {"000001.jpg": ["dog"], "000002.jpg": ["cat"]}, {"000003.jpg": ["dog"], "000004.jpg": []}


MAKERS = {
    "voc2007": voc2007, "cub200": cub200, "flowers": flowers, "cars": cars, "aircraft": aircraft,
    "indoor67": indoor67, "pets": pets, "dtd": dtd,
}  # fmt: skip


def make(name, root, monkeypatch):
    return flowers(root, monkeypatch) if name == "flowers" else MAKERS[name](root)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """Any download fails."""

    def refuse(*arguments, **options):
        raise AssertionError("a download was attempted")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_read_from_its_own_layout(name, tmp_path, monkeypatch):
    train, test = make(name, tmp_path, monkeypatch)
    for place in (tmp_path, tmp_path / SETS[name].folder):
        task = read_set(name, place, any_size=True)
        assert (task.name, task.kind, task.val) == (name, SETS[name].kind, None)
        assert seen(task.train) == train
        assert seen(task.test) == test


@pytest.mark.parametrize("name", [name for name in SETS if SETS[name].kind == "single"])
def test_photos_of_single_classes_show_nothing_else(name, tmp_path, monkeypatch):
    make(name, tmp_path, monkeypatch)
    task = read_set(name, tmp_path, any_size=True)
    assert (task.train.matrix.counts(U) == 0).all()
    assert task.train.classes.ids == task.test.classes.ids == tuple(sorted(task.train.classes.ids))


def test_difficult_objects_alone_leave_a_class_unknown(tmp_path):
    """000001: a difficult cat only: unknown. 000003: a dog beside the difficult one: present. All else is known."""
    voc2007(tmp_path)
    task = read_set("voc2007", tmp_path, any_size=True)
    assert task.train.classes.ids == ("cat", "dog")
    assert task.train.matrix.dense().tolist() == [[U, P], [P, N]]
    assert task.test.matrix.dense().tolist() == [[N, P], [N, N]]


def test_the_sizes_are_the_published_ones():
    """MLS, supplement; trainval of VOC2007 and its test."""
    assert {name: s.sizes for name, s in SETS.items()} == {
        "voc2007": (5011, 4952, 20),
        "cub200": (5994, 5794, 200),
        "flowers": (2040, 6149, 102),
        "cars": (8144, 8041, 196),
        "aircraft": (6667, 3333, 100),
        "indoor67": (5360, 1340, 67),
        "pets": (3680, 3669, 37),
        "dtd": (3760, 1880, 47),
    }


def test_another_size_is_refused(tmp_path):
    indoor67(tmp_path)
    with pytest.raises(DataError) as error:
        read_set("indoor67", tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: indoor67 has 5,360 training photos, 1,340 test photos and 67 classes, but this folder has 2 "
        "training photos, 1 test photo and 2 classes. Complete the set, or pass --any-size and do not compare the "
        "result with published ones."
    )


@pytest.mark.parametrize("name", SETS)
def test_an_empty_folder_is_refused(name, tmp_path):
    folder = tmp_path / SETS[name].folder
    folder.mkdir()
    with pytest.raises(DataError, match=r"VOC2007|Expected the folder"):
        read_set(name, folder, any_size=True)


def test_a_missing_photo_is_named(tmp_path):
    indoor67(tmp_path)
    gone = tmp_path / "indoor67/Images/kitchen/int474.jpg"
    gone.unlink()
    with pytest.raises(DataError) as error:
        read_set("indoor67", tmp_path, any_size=True)
    assert str(error.value) == f"indoor67: 1 photo is missing, for example {gone}; unpack the archive again."


def test_a_changed_mat_file_is_refused(tmp_path, monkeypatch):
    """torchvision knows the checksum of the published lists."""
    flowers(tmp_path, monkeypatch)
    savemat(tmp_path / "flowers-102/setid.mat", {"trnid": np.array([[1]])})
    with pytest.raises(DataError, match="cannot be read as flowers: Dataset not found or corrupted"):
        read_set("flowers", tmp_path, any_size=True)


def test_a_broken_line_is_named(tmp_path):
    cub200(tmp_path)
    lines(tmp_path / "CUB_200_2011/train_test_split.txt", "1 1", "2")
    with pytest.raises(DataError, match=r"train_test_split.txt row 2: '2'; expected two values separated by a space"):
        read_set("cub200", tmp_path, any_size=True)


def test_a_renamed_folder_of_torchvision_is_refused(tmp_path):
    aircraft(tmp_path)
    (tmp_path / "fgvc-aircraft-2013b").rename(tmp_path / "planes")
    with pytest.raises(DataError, match="the folder of aircraft must be named fgvc-aircraft-2013b"):
        read_set("aircraft", tmp_path / "planes", any_size=True)


def test_voc_without_its_test_photos(tmp_path):
    voc2007(tmp_path)
    (tmp_path / "VOC2007/ImageSets/Main/test.txt").unlink()
    with pytest.raises(DataError, match=r"has no test.txt; unpack the test archive into the same folder"):
        read_set("voc2007", tmp_path, any_size=True)


def test_an_unknown_name():
    with pytest.raises(ConfigError) as error:
        read_set("flower", None)
    assert str(error.value) == (
        "--as flower: not a known set (did you mean 'flowers'?); known: voc2007, cub200, flowers, cars, aircraft, "
        "indoor67, pets, dtd."
    )
