"""`fewtags transfer detect` and `segment` on tiny photos: output and refusals."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

RANDOM = ("--backbone", "test_resnet", "--cpu")
QUICK = ("--iterations", 1, "--batch-size", 2)
SMALL = ("--min-size", 64, "--max-size", 64, "--heads", "v1", "--rois", 4, "--proposals", 4, "--anchor", 16)


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def photo(n):
    return np.random.default_rng(n).integers(0, 255, (64, 64, 3)).astype(np.uint8)


def coco(root, name, folder, outlines=True):
    """Four photos with a square of 32 pixels each."""
    images, annotations = [], []
    for n in range(4):
        save(root / folder / f"{n}.jpg", photo(n))
        images.append({"id": n, "file_name": f"{n}.jpg", "width": 64, "height": 64})
        one = {"id": n + 1, "image_id": n, "category_id": 1 + n % 2, "bbox": [8, 8, 32, 32], "iscrowd": 0, "area": 1024}
        if outlines:
            one["segmentation"] = [[8, 8, 40, 8, 40, 40, 8, 40]]
        annotations.append(one)
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    file = root / "annotations" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return file


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    root = tmp_path_factory.mktemp("coco")
    for part in ("train2017", "val2017"):
        coco(root, f"instances_{part}", part)
    return root


@pytest.fixture(scope="module")
def devkit(tmp_path_factory):
    root = tmp_path_factory.mktemp("VOCdevkit")
    for year, split in (("2007", "trainval"), ("2007", "test"), ("2012", "trainval")):
        base = root / f"VOC{year}"
        names = [f"{split}{n}" for n in range(2)]
        for n, name in enumerate(names):
            save(base / "JPEGImages" / f"{name}.jpg", photo(n))
            page = base / "Annotations" / f"{name}.xml"
            page.parent.mkdir(exist_ok=True)
            page.write_text(
                "<annotation><size><width>64</width><height>64</height></size><object><name>cat</name><difficult>0"
                "</difficult><bndbox><xmin>9</xmin><ymin>9</ymin><xmax>40</xmax><ymax>40</ymax></bndbox></object>"
                "</annotation>"
            )
        lists = base / "ImageSets" / "Main"
        lists.mkdir(parents=True, exist_ok=True)
        (lists / f"{split}.txt").write_text("\n".join(names) + "\n")
    return root


@pytest.fixture(scope="module")
def masks(tmp_path_factory):
    root = tmp_path_factory.mktemp("masks")
    for part in ("train", "val", "test"):
        for n in range(2):
            save(root / part / "images" / f"{n}.jpg", photo(n))
            save(
                root / part / "masks" / f"{n}.png",
                np.repeat(np.array([0, 1, 11], np.uint8), [30, 30, 4])[None].repeat(64, 0),
            )
    return root


def test_detection_on_coco_as_json(run, published):
    result = run("transfer", "detect", "none", published, *RANDOM, *QUICK, *SMALL, "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert list(content["metrics"]) == ["box_AP", "box_AP50", "box_AP75", "mask_AP", "mask_AP50", "mask_AP75"]
    assert (content["train_photos"], content["test_photos"], content["seeds"]) == (4, 4, [0])
    assert content["settings"]["min_sizes"] == [64]
    assert content["protocol"].startswith("protocol: resembles Mask R-CNN R50-FPN 1x of MLS (ICCV 2023, table 1")
    assert "other photos" not in content["protocol"]
    assert "test_resnet, 4 training photos, 4 test photos, 2 classes" in result.stderr
    assert "step 1/1  loss " in result.stderr


def test_detection_holds_out_a_share_of_one_file(run, tmp_path):
    file = coco(tmp_path, "own", "photos", outlines=False)
    result = run(
        "transfer", "detect", "none", file, "--images", tmp_path / "photos", "--boxes-only", "--hold-out", 0.5,
        "--runs", 2, *RANDOM, *QUICK, *SMALL,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("box AP: ")
    assert lines[0].endswith(" over 2 runs)")
    assert len(lines) == 4
    assert "boxes only" in lines[3]
    assert result.stderr.count("2 training photos, 2 test photos") == 2


def test_detection_on_voc(run, devkit):
    result = run("transfer", "detect", "none", devkit, "--layout", "voc", *RANDOM, *QUICK, *SMALL)
    assert result.exit_code == 0, result.output
    assert "4 training photos, 2 test photos, 20 classes" in result.stderr
    lines = result.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["box AP", "box AP50", "box AP75", "protocol"]
    assert "11-point AP as here" in lines[3]
    assert "other photos" not in lines[3]


def test_segmentation_of_folders(run, masks):
    arguments = ("--layout", "folders", "--classes", 2, "--ignore", 11, "--crop", 64, 64, "--head", "fcn")
    result = run("transfer", "segment", "none", masks, *arguments, *RANDOM, *QUICK, "--test", "test", "--runs", 2)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "mIoU", "mAcc (mean accuracy of the classes)", "aAcc (share of the pixels that are right)", "protocol",
    ]  # fmt: skip
    assert "over 2 runs)" in lines[0]
    content = json.loads(run("transfer", "segment", "none", masks, *arguments, *RANDOM, *QUICK, "--json").stdout)
    assert content["command"] == "segment"
    assert list(content["metrics"]) == ["mIoU", "mAcc", "aAcc"]
    assert 0 <= content["metrics"]["mIoU"]["mean"] <= 1
    assert (content["settings"]["crop"], content["settings"]["head"]) == ([64, 64], "fcn")


def test_an_unusable_mask_is_reported_before_training(run, masks, tmp_path):
    """The second test mask has another size than its photo."""
    shutil.copytree(masks, tmp_path / "masks")
    save(tmp_path / "masks" / "test" / "masks" / "1.png", np.zeros((8, 8), np.uint8))
    arguments = ("--layout", "folders", "--classes", 2, "--ignore", 11, "--crop", 64, 64, "--test", "test")
    result = run("transfer", "segment", "none", tmp_path / "masks", *arguments, *RANDOM, *QUICK)
    assert result.exit_code == 1
    assert "1.png" in result.stderr
    assert "step 1/" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("detect", "none", "{coco}", "--layout", "kitti"), "--layout kitti: expected one of coco, voc."),
        (("detect", "none", "{coco}", "--heads", "v3"), "--heads v3: expected one of v1, v2."),
        (("detect", "none", "{coco}", "--images", "x"), "--images: only for a single instances file, but"),
        (
            ("detect", "none", "{file}"),
            "instances_val2017.json is a single file; give the folder of its photos: --imag",
        ),
        (("detect", "none", "{coco}", "--only-2007"), "--only-2007 is for VOC; leave it out, or give --layout voc."),
        (
            ("detect", "none", "{coco}", "--layout", "voc", "--boxes-only"),
            "--boxes-only: --layout voc has fixed files and boxes only; leave it out.",
        ),
        (("segment", "none", "{masks}", "--classes", "2"), "--classes, --ignore and --test are for --layout folders;"),
        (("segment", "none", "{masks}", "--layout", "folders"), "--layout folders needs the number of classes: --clas"),
        (("segment", "none", "{masks}", "--output-stride", "4"), "--output-stride 4: expected 8 or 16, or 0 for the"),
        (("segment", "none", "{masks}"), "train contains no CITY/*_leftImg8bit.png; unpack leftImg8bit there."),
    ],
)
def test_wrong_options_are_refused(run, published, masks, arguments, words):
    places = {
        "{coco}": published, "{masks}": masks, "{file}": published / "annotations" / "instances_val2017.json",
    }  # fmt: skip
    result = run("transfer", *(places.get(word, word) for word in arguments), *RANDOM)
    assert result.exit_code == 1
    assert words in result.stderr


def test_other_categories_in_the_test_file_are_refused(run, published, tmp_path):
    file = coco(tmp_path, "own", "photos")
    file.write_text(file.read_text().replace('"dog"', '"cow"'))
    train = published / "annotations" / "instances_train2017.json"
    result = run(
        "transfer", "detect", "none", train, "--images", published / "train2017", "--test", file, "--test-images",
        tmp_path / "photos", *RANDOM,
    )  # fmt: skip
    assert result.exit_code == 1
    assert f"{file} has other categories than {train}; give files of one data set." in result.stderr
