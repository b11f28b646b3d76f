"""`fewtags check` and `fewtags simulate`."""

import csv
import json
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from typer.testing import Result

from fewtags.budget.costs import CostModel, find_cost
from fewtags.budget.purchase import simulate_budget
from fewtags.budget.simulate import cole_split, keep, single_positive
from fewtags.formats.read import read
from fewtags.labels import ClassNames, Label
from fewtags.table.merge import with_classes
from fewtags.table.storage import load, save
from fewtags.table.table import LabelTable

Run = Callable[..., Result]
Thin = Callable[[LabelTable], LabelTable]


def test_check_prints_a_summary(run: Run, dataset: Path) -> None:
    result = run("check", dataset / "train.parquet", "--val", dataset / "val.parquet")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("train: 24 images, 3 classes, labels: single positive; 1.00 positives per image")
    assert lines[1].startswith("val: 12 images, 3 classes, labels: full")
    assert "photos: 36 files read (decoded)" in lines
    assert lines[-1].startswith("0 errors")


def test_images_are_a_tar_file(run: Run, dataset: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        tar.add(dataset / "images", ".")
    result = run("check", dataset / "train.parquet", "--images", tmp_path / "photos.tar")
    assert result.stdout.startswith("train: 24 images, 3 classes"), result.stderr


def test_check_json_is_one_object(run: Run, dataset: Path) -> None:
    result = run("check", dataset / "train.parquet", "--json", "--headers-only")
    content = json.loads(result.stdout)
    assert content["photos"] == {"files": 24, "decoded": False}
    assert content["splits"]["train"]["kind"] == "single positive"
    assert content["heatmap_bytes"] > 0


@pytest.fixture
def broken(dataset: Path, tmp_path: Path) -> Path:
    """The data set with one truncated and one missing photo."""
    shutil.copytree(dataset / "images", tmp_path / "images")
    cut = tmp_path / "images" / "train" / "3.png"
    cut.write_bytes(cut.read_bytes()[:200])
    (tmp_path / "images" / "train" / "5.png").unlink()
    return tmp_path


def test_check_ends_with_1_on_errors_and_lists_what_would_be_left_out(run: Run, dataset: Path, broken: Path) -> None:
    out = broken / "new" / "excluded.csv"
    result = run("check", dataset / "train.parquet", "--images", broken / "images", "--excluded", out)
    assert result.exit_code == 1
    assert "Traceback" not in result.stdout + result.stderr
    assert result.stderr == f"list of what would be left out: 2 rows in {out}\n"
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["item"] for row in rows] == ["train/3.png", "train/5.png"]
    assert all(row["reason"] for row in rows)
    assert "train/3.png" in result.stdout


def test_check_says_how_to_list_what_would_be_left_out(run: Run, dataset: Path, broken: Path) -> None:
    result = run("check", dataset / "train.parquet", "--images", broken / "images")
    assert result.stderr == "list of what would be left out: --excluded FILE writes 2 rows\n"
    assert "excluded.csv" not in result.stdout + result.stderr


def test_check_json_stays_json_on_errors(run: Run, dataset: Path, broken: Path) -> None:
    result = run("check", dataset / "train.parquet", "--images", broken / "images", "--json")
    assert result.exit_code == 1
    content = json.loads(result.stdout)
    assert content["errors"] >= 1
    assert {row["item"] for row in content["excluded"]} == {"train/3.png", "train/5.png"}


COCO = {
    "images": [{"id": n, "file_name": f"{n}.png", "width": 8, "height": 8} for n in range(3)],
    "annotations": [{"id": n, "image_id": n, "category_id": 1, "bbox": [1, 1, 4, 4]} for n in range(3)],
    "categories": [{"id": 1, "name": "cat"}],
}
STRANGER = {"id": 9, "image_id": 0, "category_id": 7}
FLAT = {"id": 9, "image_id": 0, "category_id": 1, "bbox": [1, 1, 0, 4]}


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("a.csv", "image,tags\n0.png,cat\n1.png,dog\n2.png,cat\n", ""),
        ("a.csv", "image,tags\n0.png,cat\n1.png,dog\n2.png,cat\n5.png,cat\n", "missing"),
        ("a.csv", "image,tags\n0.png,cat\n1.png,dog\nempty.png,cat\n", "unreadable"),
        ("a.csv", "image,cat\n0.png,1\n1.png,0\n1.png,1\n2.png,1\n", "contradiction"),
        ("a.json", json.dumps(COCO), ""),
        ("a.json", json.dumps(COCO | {"annotations": [*COCO["annotations"], STRANGER]}), "unusable"),
        ("a.json", json.dumps(COCO | {"annotations": [*COCO["annotations"], FLAT]}), "bad-place"),
    ],
)
def test_check_ends_with_1_if_data_would_be_lost(run: Run, tmp_path: Path, name: str, text: str, code: str) -> None:
    for n in range(3):
        Image.new("L", (8, 8), n).save(tmp_path / f"{n}.png")
    (tmp_path / "empty.png").touch()
    (tmp_path / name).write_text(text)
    result = run("check", tmp_path / name, "--json")
    errors = [f for f in json.loads(result.stdout)["findings"] if f["level"] == "error"]
    assert [f["code"] for f in errors] == ([code] if code else [])
    assert result.exit_code == (1 if code else 0)
    assert all(f["items"] for f in errors)


def test_check_says_that_photos_of_val_leave_training(run: Run, tmp_path: Path) -> None:
    for n in range(3):
        Image.new("L", (8, 8), n).save(tmp_path / f"{n}.png")
    (tmp_path / "train.csv").write_text("image,cat\n0.png,1\n1.png,0\n")
    (tmp_path / "val.csv").write_text("image,cat\n1.png,0\n2.png,1\n")
    result = run("check", tmp_path / "train.csv", "--val", tmp_path / "val.csv")
    assert result.exit_code == 0
    assert "warning: 1 photo is in train and in another split (1 of 2 in val). Training leaves" in result.stdout


@pytest.mark.parametrize("option", ["--size", "--stride"])
@pytest.mark.parametrize("value", [0, -1])
def test_check_refuses_maps_without_extent(run: Run, dataset: Path, option: str, value: int) -> None:
    result = run("check", dataset / "val.parquet", option, value)
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.stderr


def test_simulate_keeps_one_positive_per_image(run: Run, dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "part.parquet"
    result = run("simulate", dataset / "val.parquet", "--protocol", "single", "--out", out)
    assert (result.exit_code, result.stdout) == (0, f"{out}\n"), result.stderr
    read_as, simulated = result.stderr.splitlines()
    assert read_as == "note: val.parquet: read as parquet, by its ending"
    assert simulated.startswith("simulated one positive per image (plain")
    full, part = load(dataset / "val.parquet").matrix, load(out).matrix
    assert part.image_counts(Label.POSITIVE).tolist() == [1] * 12
    assert not part.counts(Label.NEGATIVE).any()
    kept = part.dense() == Label.POSITIVE
    assert (full.dense()[kept] == Label.POSITIVE).all()


def test_cole_takes_other_tables_in_their_order(run: Run, dataset: Path, tmp_path: Path) -> None:
    """Draws are those of the training images alone; a fifth of them is val, and the official val is test."""
    full, out = load(with_splits(dataset, tmp_path, SPLITS)), tmp_path / "part.parquet"
    result = run("simulate", tmp_path / "full.parquet", "--protocol", "cole", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert "left out: 1 image of split 'test', 1 image of no split, 1 image of split 'extra'" in result.stderr
    assert "the images are taken in the order of the file" in result.stderr
    official = full.named_splits()["train"]
    train, val = cole_split(len(official))
    parts = load(out).named_splits()
    drawn = single_positive(official, 1200, "cole").subset(train)
    for name, expected in (("train", drawn), ("val", official.subset(val)), ("test", full.named_splits()["val"])):
        assert parts[name].images.to_pylist() == expected.images.to_pylist()
        np.testing.assert_array_equal(parts[name].matrix.dense(), expected.matrix.dense())


def test_cole_uses_the_published_seed(run: Run, dataset: Path, tmp_path: Path) -> None:
    for name, words in (("default", ()), ("1200", ("--seed", 1200)), ("0", ("--seed", 0))):
        out = tmp_path / f"{name}.parquet"
        run("simulate", dataset / "val.parquet", "--protocol", "cole", "--out", out, *words)
    tables = {name: load(tmp_path / f"{name}.parquet") for name in ("default", "1200", "0")}
    assert tables["default"].fingerprint == tables["1200"].fingerprint != tables["0"].fingerprint


def test_simulate_keep_to_csv(run: Run, dataset: Path, tmp_path: Path) -> None:
    """Shares of 1 and 0: all positives, no negatives. 12 images with 6 x 2 + 6 x 1 positives."""
    out = tmp_path / "part.csv"
    words = ("--protocol", "keep", "--positives", 1, "--negatives", 0)
    result = run("simulate", dataset / "val.parquet", "--out", out, *words)
    assert (result.exit_code, result.stdout) == (0, f"{out}\n"), result.stderr
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == ["positive"] * 18


SPLITS = ("train", "val", "test", "", "train", "extra", *["train"] * 6)


def with_splits(dataset: Path, folder: Path, names: tuple[str, ...]) -> Path:
    """The complete labels of `val.parquet`, 12 images, with splits."""
    table = replace(load(dataset / "val.parquet"), split_names=pa.array(names, pa.string()))
    save(table, folder / "full.parquet", keep_root=True)
    return folder / "full.parquet"


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize(
    ("words", "thin"),
    [
        ((), lambda table: single_positive(table, 0)),
        (
            ("--protocol", "keep", "--positives", 0.5, "--negatives", 0.5),
            lambda table: keep(table, positives=0.5, negatives=0.5, seed=0),
        ),
        (
            ("--budget", "20%", "--type", "tags"),
            lambda table: simulate_budget(table, "20%", "tags", 0, find_cost(None, table)),
        ),
    ],
)
def test_only_training_images_are_thinned(
    run: Run, dataset: Path, tmp_path: Path, ending: str, words: tuple[object, ...], thin: Thin
) -> None:
    """As in a table of their own; other images are not changed, and all keep their order and split."""
    full, out = load(with_splits(dataset, tmp_path, SPLITS)), tmp_path / f"part.{ending}"
    result = run("simulate", tmp_path / "full.parquet", "--out", out, *words)
    assert result.exit_code == 0, result.stderr
    assert (
        "thinned: 8 images of split 'train'; not changed: 1 image of split 'val', 1 image of split 'test', 1 image of "
        "no split, 1 image of split 'extra'"
    ) in result.stderr.splitlines()
    part = with_classes(read(out, images=dataset / "images"), full.classes)
    assert part.split_names is not None
    assert part.split_names.to_pylist() == list(SPLITS)
    assert part.images.equals(full.images)
    training = np.array(SPLITS) == "train"
    np.testing.assert_array_equal(part.subset(~training).matrix.dense(), full.subset(~training).matrix.dense())
    expected = thin(full.subset(training)).matrix.dense()
    np.testing.assert_array_equal(part.subset(training).matrix.dense(), expected)
    assert (expected != full.subset(training).matrix.dense()).any()


def test_closed_images_of_other_splits_stay_closed(run: Run, boxes: Path, tmp_path: Path) -> None:
    full = replace(load(boxes), split_names=pa.array(["train", "val"] * 6))
    save(full, tmp_path / "full.parquet", keep_root=True)
    run("simulate", tmp_path / "full.parquet", "--out", tmp_path / "part.parquet")
    part = load(tmp_path / "part.parquet")
    assert part.named_splits()["val"].fingerprint == full.named_splits()["val"].fingerprint
    assert (part.named_splits()["train"].complete_set == -1).all()


def test_without_a_split_called_train_all_but_val_and_test_are_thinned(run: Run, dataset: Path, tmp_path: Path) -> None:
    source = with_splits(dataset, tmp_path, ("a", "", "val", *["a"] * 9))
    result = run("simulate", source, "--out", tmp_path / "part.parquet")
    last = "thinned: 10 images of split 'a', 1 image of no split; not changed: 1 image of split 'val'"
    assert result.stderr.splitlines()[-1] == last
    part = load(tmp_path / "part.parquet")
    assert (part.matrix.image_counts(Label.UNKNOWN) == 0).tolist() == [i == 2 for i in range(12)]


def test_without_training_images_nothing_is_thinned(run: Run, dataset: Path, tmp_path: Path) -> None:
    source = with_splits(dataset, tmp_path, ("val",) * 5 + ("test",) * 7)
    result = run("simulate", source, "--out", tmp_path / "part.parquet")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        1,
        "error: there are no training images to thin, only 5 images of split 'val', 7 images of split 'test'; name the "
        "split of the training images 'train', or leave it empty.",
    )
    assert not (tmp_path / "part.parquet").exists()


def test_classes_without_a_label_are_not_in_a_csv(run: Run, dataset: Path, tmp_path: Path) -> None:
    """One image with all three classes: one of them keeps its label."""
    rows = ["image,red,green,blue", "val/0.png,1,1,1"]
    (tmp_path / "full.csv").write_text("\n".join(rows))
    words = ("simulate", tmp_path / "full.csv", "--images", dataset / "images", "--out")
    lines = run(*words, tmp_path / "part.csv").stderr.splitlines()
    (kept,) = read(tmp_path / "part.csv", images=dataset / "images").classes.ids
    lost = [name for name in ("red", "green", "blue") if name != kept]
    assert lines[-1] == (
        f"warning: 2 of 3 classes have no label left and are not in part.csv: '{lost[0]}', '{lost[1]}'; a .parquet "
        "file keeps them."
    )
    assert "part.parquet" not in run(*words, tmp_path / "part.parquet").stderr
    assert load(tmp_path / "part.parquet").classes.ids == ("red", "green", "blue")


def test_simulate_reports_how_it_read_and_what_was_already_unknown(run: Run, dataset: Path, tmp_path: Path) -> None:
    """Of two images and two classes three cells are known; one photo is missing."""
    rows = ["image,red,green", "val/0.png,1,", "val/1.png,1,0", "val/gone.png,1,1"]
    (tmp_path / "full.csv").write_text("\n".join(rows))
    words = ("simulate", tmp_path / "full.csv", "--images", dataset / "images", "--out", tmp_path / "part.parquet")
    lines = run(*words).stderr.splitlines()
    assert "read: full.csv, class columns: 1 -> positive (4)" in lines
    assert "read: full.csv, class columns: (blank) -> unknown (1)" in lines
    assert (
        f"warning: 1 item left out while reading; `fewtags check {tmp_path / 'full.csv'} --images {dataset / 'images'} "
        "--excluded FILE` lists them."
    ) in lines
    assert lines[-1] == (
        "warning: 1 of 4 cells of the training images (25.0%) were already unknown, so fewer labels are left than the "
        "protocol states; pass --complete if classes that are not listed are absent."
    )
    assert "already unknown" not in run(*words, "--complete").stderr


def test_simulate_refuses_an_unwritable_path_before_it_reads(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "part.csv"
    result = run("simulate", tmp_path / "nowhere.csv", "--out", out)
    assert (result.exit_code, result.stdout, result.stderr) == (
        1,
        "",
        f"error: --out {out} cannot be written: {tmp_path / 'file'} is not a folder; give another path.\n",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--out", "x.parquet", "--protocol", "singel"),
            "error: --protocol singel: expected one of single, cole, keep (did you mean 'single'?).\n",
        ),
        (("--out", "x.txt"), "error: --out x.txt: expected a file that ends in .parquet or .csv.\n"),
        (("--out", "x.csv", "--positives", "0.5"), "error: --positives and --negatives are for --protocol keep, not"),
    ],
)
def test_simulate_refuses(run: Run, dataset: Path, words: tuple[str, ...], message: str) -> None:
    result = run("simulate", dataset / "val.parquet", *words)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(message)


def test_share_outside_0_to_1_is_a_usage_error(run: Run, dataset: Path) -> None:
    words = ("--out", "x.csv", "--protocol", "keep", "--positives", "2")
    assert run("simulate", dataset / "val.parquet", *words).exit_code == 2


@pytest.fixture
def boxes(dataset: Path, tmp_path: Path) -> Path:
    """The photos of `val.parquet` with one or two boxes for every second pair of each, all other classes absent."""
    whole, random = load(dataset / "val.parquet"), np.random.default_rng(0)
    cell = np.concatenate([np.arange(0, 36, 2), np.arange(0, 36, 6)])
    low = random.random((len(cell), 2)) / 2
    table = LabelTable.build(
        whole.images.to_pylist(),
        ClassNames.of(["blue", "green", "red"]),
        image=cell // 3,
        class_=cell % 3,
        state=np.ones(len(cell), int),
        locations=np.concatenate([low, low + 0.25], 1),
        complete_set=np.zeros(12, int),
        complete_classes=np.ones((1, 3), bool),
        root=whole.root,
    )
    save(table, tmp_path / "boxes.parquet", keep_root=True)
    return tmp_path / "boxes.parquet"


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ((), "outline"),
        (("--points", "object"), "outline"),
        (("--points", "centre"), "centre"),
        (("--set", "data.places=boxes"), "centre"),
    ],
)
def test_points_lie_in_outlines(run: Run, tmp_path: Path, words: tuple[str, ...], where: str) -> None:
    """The outline is the left tenth of a box that is the whole photo; a point near the centre is not in it."""
    Image.new("RGB", (100, 80)).save(tmp_path / "a.jpg")
    outline = [0, 0, 10, 0, 10, 80, 0, 80]
    one = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 100, 80], "iscrowd": 0, "segmentation": [outline]}
    photo = {"id": 1, "file_name": "a.jpg", "width": 100, "height": 80}
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    content = {"images": [photo], "annotations": [one], "categories": categories}
    (tmp_path / "coco.json").write_text(json.dumps(content))
    out = tmp_path / "points.parquet"
    arguments = ("--complete", "--budget", "100s", "--type", "SP", *words, "--out", out)
    result = run("simulate", tmp_path / "coco.json", "--images", tmp_path, *arguments)
    assert result.exit_code == 0, result.stderr
    x0, _, x1, _ = load(out).locations.boxes[0]
    assert x0 == x1
    assert (x0 < 0.1) == (where == "outline")
    assert ("1 point drawn in masks" in result.stderr) == (where == "outline")


def test_an_unknown_point_rule_is_refused(run: Run, boxes: Path, tmp_path: Path) -> None:
    result = run("simulate", boxes, "--budget", "9s", "--type", "SP", "--points", "center", "--out", tmp_path / "a.csv")
    assert result.exit_code != 0
    assert "--points 'center' is not known (did you mean 'centre'?); known: object, centre, uniform." in result.stderr


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("kind", ["tags", "SP", "one-box", "all-points", "AB"])
def test_simulate_a_budget(run: Run, dataset: Path, boxes: Path, kind: str, ending: str) -> None:
    """The file is read as the bought labels, with their locations. 36 pairs, half of them positive, 24 objects."""
    out = boxes.parent / "new" / f"part.{ending}"
    result = run("simulate", boxes, "--budget", "30s", "--type", kind, "--seed", 3, "--mode", "exact", "--out", out)
    assert (result.exit_code, result.stdout) == (0, f"{out}\n"), result.stderr
    source = load(boxes)
    expected = simulate_budget(
        source, "30s", kind, 3, CostModel(classes=3, positives_per_image=1.5, instances_per_image=2.0), mode="exact"
    )
    assert read(out, images=dataset / "images").fingerprint == expected.fingerprint
    assert result.stderr.splitlines() == [
        "note: boxes.parquet: read as parquet, by its ending",
        *expected.notes.messages,
    ]
    assert len(expected.locations) > 0 or kind == "tags"


def test_simulate_a_budget_reports_what_was_bought(run: Run, boxes: Path, tmp_path: Path) -> None:
    """25 % of 36 tags are 9 s; of 3 classes 1.5 are positive: a pair costs (1.5 + 1.5 x 2.4) / 3 = 1.7 s; 5 pairs."""
    result = run("simulate", boxes, "--budget", "25%", "--type", "sp", "--out", tmp_path / "a.parquet")
    _, receipt, costs = result.stderr.splitlines()
    assert receipt.startswith("simulated a budget of 25% (one point (SP), flat costs, seed 0): 5 pairs (")
    assert receipt.endswith("of 12 images for 8 s (0.00 h), 1.7 s a pair")
    assert costs == (
        "costs: tag 1 s, point 2.4 s, further point 0.9 s, box 7 s; 3 classes, 1.5 of them positive in an average "
        "image, with 2 instances"
    )


def test_simulate_with_other_costs_and_points(run: Run, boxes: Path, tmp_path: Path) -> None:
    """9 s: of COCO's averages 1.06125 s a pair; of a file with 3 s a point 2 s a pair, 4.5 of them, and up is even."""
    (tmp_path / "ours.toml").write_text("point = 3")
    for cost, pairs in (("coco", 8), (tmp_path / "ours.toml", 5)):
        out = tmp_path / "a.parquet"
        result = run("simulate", boxes, "--budget", "25%", "--type", "SP", "--cost", cost, "--out", out)
        assert f"seed 0): {pairs} pairs" in result.stderr, result.stderr
    for points in ("uniform", "centre"):
        words = ("--budget", "100%", "--type", "AP", "--points", points)
        run("simulate", boxes, *words, "--out", tmp_path / f"{points}.parquet")
    drawn = [load(tmp_path / f"{points}.parquet") for points in ("uniform", "centre")]
    assert drawn[0].fingerprint != drawn[1].fingerprint
    np.testing.assert_array_equal(drawn[0].matrix.dense(), drawn[1].matrix.dense())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--budget", "1%"),
            "--budget 1% needs --type, the labels to buy: tags (I), one point (SP), one box (SB), all points (AP), all "
            "boxes (AB).",
        ),
        (
            ("--budget", "1%", "--type", "one-pint"),
            "annotation type 'one-pint' is not known (did you mean 'one point'?); known: tags (I), one point (SP), one "
            "box (SB), all points (AP), all boxes (AB).",
        ),
        (
            ("--budget", "1%", "--type", "SP", "--protocol", "keep"),
            "--budget 1% and --protocol keep are two ways to thin labels; give only one.",
        ),
        (
            ("--budget", "1%", "--type", "SP", "--positives", "1"),
            "--positives and --negatives are for --protocol keep, not --budget 1%.",
        ),
        (("--positives", "0"), "--positives and --negatives are for --protocol keep, not single."),
        (("--type", "SP"), "--type is for --budget; give a budget as well, for example --budget 1%."),
        (("--mode", "flat"), "--mode is for --budget; give a budget as well, for example --budget 1%."),
        (
            ("--budget", "1%", "--type", "SB", "--points", "centre"),
            "--points is for --type one-point or all-points, not one box (SB).",
        ),
        (
            ("--budget", "50%", "--type", "SP", "--mode", "exakt"),
            "mode 'exakt' is not known (did you mean 'exact'?); known: flat, exact.",
        ),
        (
            ("--budget", "50%", "--type", "SP", "--cost", "cooco"),
            "costs 'cooco' are not known (did you mean 'coco'?); known: coco, objects365, or a file that ends in "
            ".toml.",
        ),
    ],
)
def test_simulate_refuses_budgets(run: Run, boxes: Path, words: tuple[str, ...], message: str) -> None:
    out = boxes.parent / "part.csv"
    result = run("simulate", boxes, *words, "--out", out)
    assert (result.exit_code, result.stdout, result.stderr.splitlines()[-1]) == (1, "", f"error: {message}")
    assert not out.exists()


def test_inputs_are_not_overwritten(run: Run, tmp_path: Path) -> None:
    """Neither the labels nor, by another spelling of the path, a link to them."""
    labels = tmp_path / "full.csv"
    labels.write_text("image,cat,dog\na.jpg,1,0\nb.jpg,0,1\n")
    (tmp_path / "link.csv").symlink_to(labels)
    (tmp_path / "cost.csv").write_text("tag = 1.0\n")
    bought = ("--budget", "50%", "--type", "tags", "--cost", tmp_path / "cost.csv")
    for command, option, out in (
        (("simulate", labels), "--out", labels),
        (("simulate", labels), "--out", tmp_path / "link.csv"),
        (("simulate", labels, *bought), "--out", tmp_path / "cost.csv"),
        (("check", labels), "--excluded", labels),
        (("check", tmp_path / "link.csv", "--val", labels), "--excluded", labels),
    ):
        before = out.read_bytes()
        result = run(*command, option, out)
        assert result.exit_code == 1
        assert f"{option} {out} is an input of this command and would be lost; write to another file." in result.stderr
        assert out.read_bytes() == before


def test_names_cannot_act_on_the_terminal(run: Run, tmp_path: Path) -> None:
    """Escape sequences and direction marks in names of classes, photos, columns and files become visible escapes."""
    photos = tmp_path / "ph\x1b[2Jotos"
    for name in ("ca\x1b[31mt/a\u202egpj.png", "dog/b\x07.png"):
        path = photos / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)
    (photos / "dog/dam\x1b]0;title\x07aged.png").write_bytes(b"no photo")
    table = tmp_path / "t\x1b[1m.csv"
    table.write_text("image,ca\x1b[31mt,dog\x9b\nb\x07.png,1,may\x1b[5mbe\n", "utf-8")
    found = [run("check", photos), run("check", table, "--images", photos), run("check", tmp_path / "no\x1b[7mthing")]
    assert [result.exit_code for result in found[::2]] == [1, 1]
    for result in found:
        assert not {*"\x1b\x07\x9b\u202e"} & {*result.output}
        assert "\\x1b[" in result.output
