"""`fewtags evaluate`, `predict` and `heatmap`."""

import csv
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import Result

from fewtags.engine.model import ModelInfo, save_model
from fewtags.labels import Label
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import HeadPlan
from fewtags.photos.decode import read_image
from fewtags.report.overlay import overlay
from fewtags.table.storage import load, save
from fewtags.table.table import LabelTable

Run = Callable[..., Result]


@pytest.fixture
def model(trained: tuple[Path, Result]) -> Path:
    return trained[0]


@pytest.fixture
def photos(dataset: Path) -> Path:
    return dataset / "images" / "val"


def read(path: Path) -> list[dict[str, object]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    with path.open(encoding="utf-8", newline="") as file:
        return [dict(row) for row in csv.DictReader(file)]


# evaluate


def test_evaluate_prints_headline_and_classes(run: Run, model: Path, dataset: Path) -> None:
    result = run("evaluate", model, dataset / "val.parquet", "--cpu")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == "note: val.parquet: read as parquet, by its ending\nevaluating on 12 images\n"
    lines = result.stdout.splitlines()
    assert lines[0].startswith("mAP ")
    assert lines[0].endswith("3 of 3 classes counted, 12 images, 36 known cells.")
    assert {line.split()[0] for line in lines[-5:-2]} == {"red", "green", "blue"}


def test_evaluate_json_equals_what_training_measured(run: Run, model: Path, dataset: Path) -> None:
    result = run("evaluate", model, dataset / "val.parquet", "--cpu", "--json")
    content = json.loads(result.stdout)
    stored = json.loads((model / "evaluation" / "val.json").read_text("utf-8"))
    assert content["mAP"] == pytest.approx(stored["mAP"], abs=1e-12)
    assert [c["positives"] for c in content["per_class"]] == [c["positives"] for c in stored["per_class"]]


def test_evaluate_only_has_settings_of_data(run: Run, model: Path, dataset: Path) -> None:
    result = run("evaluate", model, dataset / "val.parquet", "--set", "augment.policy=imagenet", "--cpu")
    assert result.exit_code == 1
    assert "error: --set augment.policy=imagenet: this command only has settings of data" in result.stderr


def test_evaluate_without_known_negatives(run: Run, model: Path, dataset: Path) -> None:
    result = run("evaluate", model / "model.safetensors", dataset / "train.parquet", "--cpu")
    assert result.exit_code == 0, result.stderr
    assert "AP has no meaning" in result.stdout
    assert "hit@1" in result.stdout


def test_evaluate_on_photos_that_were_trained_on(run: Run, model: Path, dataset: Path, tmp_path: Path) -> None:
    """By path, or copied under other names; the model file knows its run folder, and a model elsewhere has none."""
    line = (
        "warning: the model was trained on 24 photos of these 24, for example train/0.png; scores on them are too good."
    )
    for place in (model, model / "model.safetensors"):
        assert line in run("evaluate", place, dataset / "train.parquet", "--cpu").stderr
    assert "trained on" not in run("evaluate", model, dataset / "val.parquet", "--cpu").stderr
    shutil.copy(model / "model.safetensors", tmp_path)
    assert (
        "trained on" not in run("evaluate", tmp_path / "model.safetensors", dataset / "train.parquet", "--cpu").stderr
    )
    table = load(dataset / "train.parquet").subset(range(2))
    for key in table.images.to_pylist():
        (tmp_path / key).parent.mkdir(exist_ok=True)
        shutil.copy(dataset / "images" / key, tmp_path / key)
    save(table, tmp_path / "copies.parquet")
    copies = run("evaluate", model, tmp_path / "copies.parquet", "--images", tmp_path, "--cpu")
    assert "warning: the model was trained on 2 photos of these 2" in copies.stderr


def test_evaluate_without_a_model(run: Run, dataset: Path) -> None:
    result = run("evaluate", dataset, dataset / "val.parquet")
    assert result.exit_code == 1
    assert "model.safetensors does not exist; give a run folder" in result.stderr


def test_evaluate_on_a_run_that_is_not_finished(run: Run, dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").touch()
    for command in ("evaluate", "predict", "heatmap"):
        result = run(command, tmp_path, dataset / ("val.parquet" if command == "evaluate" else "images"))
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.splitlines()[-1] == (
            f"error: {tmp_path} is a run that is not finished, so it has no model yet; finish it with `fewtags resume "
            f"{tmp_path}`."
        )


@pytest.fixture
def labels(dataset: Path, tmp_path: Path) -> Path:
    """Images 0 and 1 of the validation photos are for training, 2 to 4 for val, 5 for test, 6 for none.

    One more row, with blanks, names a photo that is not there.
    """
    rows = ["image,red,green,blue,split"]
    for i, split in enumerate(["train", "train", "Validation", "val", "val", "test", ""]):
        present = [i % 3] if i % 2 else [i % 3, (i + 1) % 3]
        rows.append(f"val/{i}.png,{','.join('01'[c in present] for c in range(3))},{split}")
    rows += ["val/gone.png,1,,,test"]
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    return tmp_path / "labels.csv"


@pytest.mark.parametrize(
    ("words", "images", "message"),
    [
        (
            (),
            1,
            "evaluating on 1 image of split 'test'; not on 2 images of split 'train', 3 images of split 'val', "
            "1 image of no split",
        ),
        (
            ("--split", "val"),
            3,
            "evaluating on 3 images of split 'val'; not on 2 images of split 'train', 1 image of split 'test', "
            "1 image of no split",
        ),
        (
            ("--split", "Training"),
            2,
            "evaluating on 2 images of split 'train'; not on 3 images of split 'val', 1 image of split 'test', "
            "1 image of no split",
        ),
    ],
)
def test_evaluate_one_split(
    run: Run, model: Path, dataset: Path, labels: Path, words: tuple[str, ...], images: int, message: str
) -> None:
    result = run("evaluate", model, labels, "--images", dataset / "images", "--json", "--cpu", *words)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["images"] == images
    assert result.stderr.splitlines()[-1] == message


@pytest.mark.parametrize(
    ("rows", "images", "message"),
    [
        (
            ["0.png,1,0,val", "1.png,0,1,train"],
            1,
            "evaluating on 1 image of split 'val'; not on 1 image of split 'train'",
        ),
        (["0.png,1,0,val", "1.png,0,1,val"], 2, "evaluating on 2 images of split 'val' (all images)"),
        (
            ["0.png,1,0,train", "1.png,0,1,", "2.png,1,0,train"],
            3,
            "evaluating on all 3 images, no split is test or val: 2 images of split 'train', 1 image of no split",
        ),
    ],
)
def test_the_default_split(
    run: Run, model: Path, photos: Path, tmp_path: Path, rows: list[str], images: int, message: str
) -> None:
    (tmp_path / "labels.csv").write_text("\n".join(["image,red,green,split", *rows]))
    result = run("evaluate", model, tmp_path / "labels.csv", "--images", photos, "--json", "--cpu")
    assert json.loads(result.stdout)["images"] == images
    assert result.stderr.splitlines()[-1] == message


def test_an_unknown_split(run: Run, model: Path, dataset: Path, labels: Path) -> None:
    result = run("evaluate", model, labels, "--images", dataset / "images", "--split", "tset", "--cpu")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == (
        "error: --split tset is not a split of these labels (did you mean 'test'?); there are 2 images of split "
        "'train', 3 images of split 'val', 1 image of split 'test', 1 image of no split; or give all."
    )
    everything = run("evaluate", model, labels, "--images", dataset / "images", "--split", "all", "--cpu")
    assert everything.exit_code == 0, everything.stderr
    assert "evaluating on all 7 images: 2 images of split 'train', 3 images of split 'val'" in everything.stderr
    whole = run("evaluate", model, dataset / "val.parquet", "--split", "all", "--cpu")
    assert "evaluating on 12 images" in whole.stderr
    result = run("evaluate", model, dataset / "val.parquet", "--split", "val", "--cpu")
    assert result.stderr.splitlines()[-1] == (
        "error: --split val: these labels have no splits; leave it out to use all images."
    )


def test_evaluate_reports_how_it_read(run: Run, model: Path, dataset: Path, labels: Path) -> None:
    """In the words of `check`, which orders and folds them, with the command that lists what was left out."""
    images = dataset / "images"
    lines = run("evaluate", model, labels, "--images", images, "--cpu").stderr.splitlines()
    checked = run("check", labels, "--images", images, "--headers-only").stdout.splitlines()
    for start in ("read: ", "note: "):
        found = [line for line in lines if line.startswith(start)]
        assert found
        words = {
            line for line in checked if line.startswith(start) and "labels.csv" in line and "more line" not in line
        }
        assert words
        assert words <= {*found}
    assert "read: labels.csv, class columns: (blank) -> unknown (2)" in lines
    listed = f"`fewtags check {labels} --images {images} --excluded FILE` lists them."
    assert f"warning: 1 item left out while reading; {listed}" in lines


def test_evaluate_skips_photos_that_cannot_be_read(run: Run, model: Path, dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset / "images" / "val", tmp_path / "val")
    (tmp_path / "val" / "3.png").write_bytes(b"no photo")
    (tmp_path / "val" / "4.png").unlink()
    result = run("evaluate", model, dataset / "val.parquet", "--images", tmp_path, "--json", "--cpu")
    assert result.exit_code == 1
    content = json.loads(result.stdout)
    assert (content["images"], content["unreadable"]) == (10, 2)
    *_, first, second, last = result.stderr.splitlines()
    assert first.startswith(f"{tmp_path / 'val' / '3.png'}: ")
    assert second.startswith(f"{tmp_path / 'val' / '4.png'}: ")
    assert last == "skipped: 2 of 12 photos, because they cannot be read."


@pytest.fixture
def boxed(dataset: Path, tmp_path: Path) -> Path:
    """The validation labels, with a box where the first colour of each photo would be, and points where it is alone."""
    table = load(dataset / "val.parquet")
    image, class_ = np.nonzero(table.matrix.dense() != Label.UNKNOWN)
    state = table.matrix.dense()[image, class_]
    box, point = np.float32([0.0, 0.25, 0.5, 0.75]), np.float32([0.5, 0.5, 0.5, 0.5])
    where = np.where((image % 2 == 0)[:, None], box, point)
    where[(state != Label.POSITIVE) | (image == 2)] = np.nan
    made = LabelTable.build(
        table.images.to_pylist(), table.classes, image=image, class_=class_, state=state, locations=where,
        root=table.root,
    )  # fmt: skip
    save(made, tmp_path / "boxed.parquet", keep_root=True)
    return tmp_path / "boxed.parquet"


def test_evaluate_localises(run: Run, model: Path, boxed: Path) -> None:
    """6 of 12 photos have two positives each (no location in one photo); 6 have one positive with a point.

    Every box covers a quarter of its photo. The evaluation of the labels does not change.
    """
    plain = run("evaluate", model, boxed, "--cpu")
    result = run("evaluate", model, boxed, "--localise", "--cpu")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == plain.stderr
    before, _, after = result.stdout.partition("\n\n")
    assert before == plain.stdout.rstrip("\n")
    lines = after.splitlines()
    assert lines[0].startswith("Localisation on 10 positive labels with boxes, 12 images; mAP-loc over 3 of 3 classes")
    assert lines[1] == ("Left out: 8 positive labels: 2 without a region, 6 with an object that has only a point.")
    measures = {line[:23].strip(): line[23:].split() for line in lines[3:]}
    assert [measures[name][1] for name in ("pointing game", "IoA-P", "PxAP")] == ["25.0"] * 3

    content = json.loads(run("evaluate", model, boxed, "--localise", "--json", "--cpu").stdout)
    found = content.pop("localisation")
    assert list(measures) == [metric["label"] for metric in found["metrics"]]
    assert content == json.loads(run("evaluate", model, boxed, "--json", "--cpu").stdout)
    assert found["mAP-loc"] <= found["mAP-cl_same_cells"]
    assert f"{100 * found['mAP-loc']:.1f}" == measures["mAP-loc"][0]
    assert (found["located"], found["not_located"], found["cuts"]) == (10, 8, 20)
    assert [row["id"] for row in found["per_class"]] == ["red", "green", "blue"]


def test_evaluate_localises_with_the_given_number_of_cuts(run: Run, model: Path, boxed: Path) -> None:
    """The finer of two nested sets finds no worse boxes; nothing else changes."""
    few, many = (
        json.loads(run("evaluate", model, boxed, "--localise", "--loc-cuts", n, "--json", "--cpu").stdout)[
            "localisation"
        ]
        for n in (1, 4)
    )
    assert (few.pop("cuts"), many.pop("cuts")) == (1, 4)
    assert few.pop("MaxBoxAccV2") <= many.pop("MaxBoxAccV2")
    few.pop("by_overlap"), many.pop("by_overlap")
    for found in (few, many):
        found["metrics"] = [metric for metric in found["metrics"] if metric["key"] != "MaxBoxAccV2"]
    assert few == many


def test_evaluate_cannot_localise_without_boxes(run: Run, model: Path, dataset: Path) -> None:
    result = run("evaluate", model, dataset / "val.parquet", "--localise", "--cpu")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == (
        "error: localisation needs boxes, but these labels have 18 positive labels of the model's classes with 0 "
        "points and no box; give labels with boxes, or leave --localise out."
    )
    result = run("evaluate", model, dataset / "val.parquet", "--loc-cuts", 5, "--cpu")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: --loc-cuts is for --localise; give --localise as well, or leave it out.\n"


# predict


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".jsonl", ".CSV"])
@pytest.mark.parametrize("wide", [False, True])
def test_predict_writes_every_form(
    run: Run, model: Path, photos: Path, tmp_path: Path, ending: str, wide: bool
) -> None:
    out = tmp_path / "new" / f"tags{ending}"
    words = ["--wide"] if wide else ["--threshold", 0]
    result = run("predict", model, photos, "--out", out, "--cpu", *words)
    assert (result.exit_code, result.stdout) == (0, f"{out}\n"), result.stderr
    assert [p.name for p in out.parent.iterdir()] == [out.name]
    rows = read(out if ending != ".CSV" else out.rename(out.with_suffix(".csv")))
    keys = sorted(str(p) for p in photos.iterdir())
    if wide:
        assert list(rows[0]) == ["image", "red", "green", "blue"]
        assert sorted(str(row["image"]) for row in rows) == keys
    else:
        assert list(rows[0]) == ["image", "class", "name", "probability", "threshold"]
        assert sorted({str(row["image"]) for row in rows}) == keys
        assert len(rows) == 3 * len(keys)
        first = [float(str(row["probability"])) for row in rows[:3]]
        assert first == sorted(first, reverse=True)


def test_long_and_wide_agree(run: Run, model: Path, photos: Path) -> None:
    words = ("predict", model, photos / "0.png", "--cpu")
    long = list(csv.DictReader(io.StringIO(run(*words, "--threshold", 0).stdout)))
    wide = next(csv.DictReader(io.StringIO(run(*words, "--wide").stdout)))
    assert {row["class"]: row["probability"] for row in long} == {k: v for k, v in wide.items() if k != "image"}


def test_threshold_and_max_tags(run: Run, model: Path, photos: Path) -> None:
    every = run("predict", model, photos, "--threshold", 0, "--max-tags", 1, "--cpu")
    rows = list(csv.DictReader(io.StringIO(every.stdout)))
    assert len(rows) == len({row["image"] for row in rows}) == 12
    assert {row["threshold"] for row in rows} == {"0.0"}
    none = run("predict", model, photos, "--threshold", 1, "--cpu")
    assert none.exit_code == 0
    assert none.stdout == "image,class,name,probability,threshold\n"
    assert none.stderr == "12 of 12 photos have no tag and no row; --wide writes all photos.\n"


def test_stored_thresholds_are_used(run: Run, model: Path, photos: Path) -> None:
    stored = {c["id"]: c["threshold"] for c in json.loads((model / "evaluation" / "val.json").read_text())["per_class"]}
    wide = list(csv.DictReader(io.StringIO(run("predict", model, photos, "--wide", "--cpu").stdout)))
    expected = {(r["image"], c) for r in wide for c, t in stored.items() if float(r[c]) > t + 1e-6}
    doubtful = {(r["image"], c) for r in wide for c, t in stored.items() if abs(float(r[c]) - t) <= 1e-6}
    long = csv.DictReader(io.StringIO(run("predict", model, photos, "--cpu").stdout))
    assert {(row["image"], row["class"]) for row in long} - doubtful == expected


def test_an_unreadable_photo_is_reported_and_skipped(run: Run, model: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes((photos / "0.png").read_bytes()[:200])
    result = run("predict", model, photos, tmp_path, "--wide", "--out", tmp_path / "tags.csv", "--cpu")
    assert result.exit_code == 1
    assert result.stdout == f"{tmp_path / 'tags.csv'}\n"
    first, last = result.stderr.splitlines()
    assert first.startswith("skipped: ")
    assert "broken.png" in first
    assert last == "skipped: 1 of 13 photos, because they cannot be read."
    assert len(read(tmp_path / "tags.csv")) == 12
    (row,) = read(tmp_path / "tags.unreadable.csv")
    assert f"skipped: {row['image']}: {row['reason']}" == first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--out", "tags.xlsx"), "error: --out tags.xlsx: expected a file ending in .csv, .parquet, .jsonl.\n"),
        (("--out", "."), "error: --out .: expected a file ending in .csv, .parquet, .jsonl.\n"),
        (("nowhere.jpg",), "error: nowhere.jpg does not exist; give photos, folders of photos, or shards.\n"),
        (
            ("--wide", "--threshold", "0.5"),
            "error: --wide writes the probabilities of all classes, so --threshold has no effect; remove one option.\n",
        ),
        (
            ("--wide", "--max-tags", "2"),
            "error: --wide writes the probabilities of all classes, so --max-tags has no effect; remove one option.\n",
        ),
    ],
)
def test_predict_refuses(run: Run, model: Path, photos: Path, words: tuple[str, ...], message: str) -> None:
    result = run("predict", model, photos, *words)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", message)


def test_threshold_outside_0_to_1_is_refused(run: Run, model: Path, photos: Path) -> None:
    result = run("predict", model, photos, "--threshold", 1.5)
    assert result.exit_code == 1
    assert result.stderr == (
        "error: --threshold 1.5: '1.5' is not a threshold; expected a number from 0 to 1, CLASS=NUMBER or a file "
        "(.csv, .json, .toml).\n"
    )


def no_photos(*_: object) -> None:
    raise AssertionError("photos are read before the output path is checked")


@pytest.mark.parametrize(("command", "name"), [("predict", "tags.csv"), ("heatmap", "maps")])
def test_an_unwritable_output_is_refused_before_photos_are_read(
    run: Run,
    model: Path,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    name: str,
) -> None:
    """Below a file; and in a folder that may not be written in (root may, so the system's answer is given here)."""
    monkeypatch.setattr("fewtags.engine.places.find_photos", no_photos)
    (tmp_path / "file").touch()
    out = tmp_path / "file" / name
    result = run(command, model, photos, "--out", out, "--cpu")
    assert (result.exit_code, result.stdout, result.stderr) == (
        1,
        "",
        f"error: --out {out} cannot be written: {tmp_path / 'file'} is not a folder; give another path.\n",
    )
    monkeypatch.setattr("os.access", lambda place, _: place != tmp_path)
    out = tmp_path / "new" / name
    result = run(command, model, photos, "--out", out, "--cpu")
    assert (result.exit_code, result.stdout, result.stderr) == (
        1,
        "",
        f"error: --out {out} cannot be written: no permission to write in {tmp_path}; give another path.\n",
    )
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_predict_skips_what_train_skips(run: Run, model: Path, photos: Path, tmp_path: Path) -> None:
    shutil.copy(photos / "0.png", tmp_path / "0.png")
    (tmp_path / "._0.png").write_bytes(b"what macOS leaves on other disks")
    result = run("predict", model, tmp_path, "--wide", "--cpu")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == f"skipped in {tmp_path}, because they are not photos: (hidden) 1\n"
    assert len(result.stdout.splitlines()) == 2


@pytest.fixture
def odd(photos: Path, tmp_path: Path) -> Path:
    """A folder with two photos; the name of one is Latin-1, and the other spells it."""
    folder = tmp_path / "odd"
    folder.mkdir()
    try:
        shutil.copy(photos / "0.png", folder / os.fsdecode(b"caf\xe9.png"))
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    shutil.copy(photos / "1.png", folder / "caf\\xe9.png")
    return folder


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".jsonl"])
@pytest.mark.parametrize("wide", [False, True])
def test_names_that_are_not_utf8_stay_distinct(
    run: Run, model: Path, odd: Path, tmp_path: Path, ending: str, wide: bool
) -> None:
    out = tmp_path / f"tags{ending}"
    result = run("predict", model, odd, "--out", out, "--cpu", *(["--wide"] if wide else ["--threshold", 0]))
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert {row["image"] for row in read(out)} == {f"{odd}/caf\\xe9.png", f"{odd}/caf\\\\xe9.png"}
    assert result.stderr == (
        "2 photos have a name that is not UTF-8 or has control characters, written with \\xNN for these bytes and \\\\ "
        "for a backslash: "
        f"{odd}/caf\\\\xe9.png, ...\n"
    )


def test_names_that_are_not_utf8_on_stdout(run: Run, model: Path, odd: Path) -> None:
    result = run("predict", model, odd / os.fsdecode(b"caf\xe9.png"), "--wide", "--cpu")
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert result.stdout.splitlines()[1].startswith(f"{odd}/caf\\xe9.png,")


# heatmap


def test_heatmaps_of_a_folder_keep_their_subfolders(run: Run, model: Path, dataset: Path, tmp_path: Path) -> None:
    """train/0.png and val/0.png have the same name; neither overwrites the other."""
    result = run("heatmap", model, dataset / "images", "--class", "red", "--arrays", "--out", tmp_path, "--cpu")
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path}\n"), result.stderr
    assert result.stderr.endswith("36 overlays of 36 photos\n")
    assert len(list(tmp_path.rglob("*.red.png"))) == 36
    with Image.open(tmp_path / "val" / "0.red.png") as overlaid:
        assert overlaid.size == (2 * 360 + 36, 270 + 80)  # photo and map, each enlarged to 360 px
    maps = np.load(tmp_path / "train" / "0.npy")
    assert maps.dtype == np.float32
    assert maps.shape[0] == 3
    assert np.all((maps >= 0) & (maps <= 1))


def test_photos_with_the_same_name_are_numbered(run: Run, model: Path, dataset: Path, tmp_path: Path) -> None:
    first, second = dataset / "images" / "train" / "0.png", dataset / "images" / "val" / "0.png"
    result = run("heatmap", model, first, second, "--class", "red", "--out", tmp_path, "--cpu")
    assert {p.name for p in tmp_path.iterdir()} == {"0.red.png", "0-2.red.png", "names.csv"}
    assert result.stderr.splitlines() == [
        f"{second} is written as 0-2, because 0 is taken",
        "2 overlays of 2 photos",
        f"1 file could not be named PHOTO.CLASS; see {tmp_path / 'names.csv'}",
    ]
    assert (tmp_path / "names.csv").read_text("utf-8") == f"file,image,class\n0-2.red.png,{second},red\n"


def test_heatmaps_of_names_that_are_not_utf8(run: Run, model: Path, odd: Path, tmp_path: Path) -> None:
    result = run("heatmap", model, odd, "--class", "red", "--arrays", "--out", tmp_path / "maps", "--cpu")
    assert result.exit_code == 0, (result.stderr, result.exception)
    names = {row["file"]: (row["image"], row["class"]) for row in read(tmp_path / "maps" / "names.csv")}
    assert names == {
        "caf\\xe9.red.png": (f"{odd}/caf\\xe9.png", "red"),
        "caf\\xe9.npy": (f"{odd}/caf\\xe9.png", ""),
        "caf\\\\xe9.red.png": (f"{odd}/caf\\\\xe9.png", "red"),
        "caf\\\\xe9.npy": (f"{odd}/caf\\\\xe9.png", ""),
    }
    assert {p.name for p in (tmp_path / "maps").iterdir()} == {*names, "names.csv"}


def test_predicted_classes_are_drawn_by_default(run: Run, model: Path, photos: Path, tmp_path: Path) -> None:
    run("heatmap", model, photos / "0.png", "--out", tmp_path, "--cpu")
    tags = csv.DictReader(io.StringIO(run("predict", model, photos / "0.png", "--cpu").stdout))
    assert {p.name for p in tmp_path.iterdir()} == {f"0.{row['class']}.png" for row in tags}


def test_unknown_class_is_suggested(run: Run, model: Path, photos: Path, tmp_path: Path) -> None:
    result = run("heatmap", model, photos, "--class", "gren", "--out", tmp_path / "maps", "--cpu")
    assert result.exit_code == 1
    assert result.stderr == "error: 'gren' is not a class of this model (did you mean 'green'?).\n"
    assert not (tmp_path / "maps").exists()


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file: an untrained ViT with TS-CAM's head that knows the colours."""
    net = create_net("test_vit", 3, weights="none", size=64, head=HeadPlan(3))
    colours, wanted = ("red", "green", "blue"), net.preprocessing
    info = ModelInfo(
        backbone="test_vit",
        output_stride=0,
        head=net.head.plan,
        size=64,
        policy="coco",
        class_ids=colours,
        class_names=colours,
        thresholds=(0.5,) * 3,
        threshold_rules=("half",) * 3,
        mean=wanted.mean,
        std=wanted.std,
        method={},
        selection="",
        version="",
    )
    path = tmp_path_factory.mktemp("vit") / "model.safetensors"
    save_model(path, net, info)
    return path


def test_coupled_heatmaps_are_drawn_from_their_lowest_to_their_highest_value(
    run: Run, vit: Path, photos: Path, tmp_path: Path
) -> None:
    """Arrays contain the unscaled products; a picture is the overlay of (map - lowest) / (highest - lowest)."""
    options = ("--class", "red", "--class", "blue", "--arrays", "--cpu")
    result = run("heatmap", vit, photos / "1.png", *options, "--coupled", "--out", tmp_path / "coupled")
    assert (result.exit_code, result.stderr) == (0, "2 overlays of 1 photo\n"), result.exception
    run("heatmap", vit, photos / "1.png", *options, "--out", tmp_path / "plain")
    maps, plain = (np.load(tmp_path / kind / "1.npy") for kind in ("coupled", "plain"))
    assert ((maps > 0) == (plain > 0.5)).all()
    assert maps.min() < 0
    for number, colour in ((0, "red"), (2, "blue")):
        low, high = maps[number].min(), maps[number].max()
        with Image.open(tmp_path / "coupled" / f"1.{colour}.png") as page:
            drawn = np.asarray(page, int)
        photo = Image.fromarray(read_image(photos / "1.png")).resize((360, 270), Image.Resampling.LANCZOS)
        expected = overlay(np.asarray(photo), (maps[number] - low) / (high - low))
        np.testing.assert_allclose(drawn[12 : 12 + 270, 360 + 24 : -12], expected.astype(int), atol=1)


def test_coupled_heatmaps_of_a_cnn_are_refused_before_anything_is_written(
    run: Run, model: Path, photos: Path, tmp_path: Path
) -> None:
    result = run("heatmap", model, photos, "--class", "red", "--coupled", "--out", tmp_path / "maps", "--cpu")
    assert (result.exit_code, result.stdout, result.stderr) == (
        1,
        "",
        "error: coupled attention maps need a ViT with a class token, and this backbone is a ResNet. Use its class "
        "maps alone, or train deit_small_patch16_224 or another ViT.\n",
    )
    assert not (tmp_path / "maps").exists()


def test_heatmaps_name_an_unreadable_photo(run: Run, model: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    result = run(
        *("heatmap", model, tmp_path / "broken.png", photos / "1.png", "--class", "blue", "--out", tmp_path / "maps"),
        "--cpu",
    )
    assert result.exit_code == 1
    assert "broken.png" in result.stderr
    assert result.stderr.endswith("skipped: 1 of 2 photos, because they cannot be read.\n")
    assert [p.name for p in (tmp_path / "maps").iterdir()] == ["1.blue.png"]


def test_low_probabilities_are_drawn_on_a_scale_of_their_own(
    run: Run, model: Path, photos: Path, tmp_path: Path
) -> None:
    """On the fixed scale, a map below .5 differs from that on its own scale; --scale says which."""
    pages = {}
    for kind in ("auto", "fixed", "relative"):
        out = tmp_path / kind
        run("heatmap", model, photos / "1.png", "--class", "red", "--arrays", "--scale", kind, "--out", out, "--cpu")
        pages[kind] = (out / "1.red.png").read_bytes()
    low = np.load(tmp_path / "auto" / "1.npy")[0].max() < 0.5
    assert pages["fixed"] != pages["relative"]
    assert pages["auto"] == pages["relative" if low else "fixed"]


def test_scales_that_do_not_exist_are_refused_first(run: Run, photos: Path, tmp_path: Path) -> None:
    result = run("heatmap", tmp_path / "none", photos, "--scale", "relativ")
    assert result.stderr == (
        "error: --scale relativ: expected one of auto, fixed, relative (did you mean 'relative'?).\n"
    )
    result = run("heatmap", tmp_path / "none", photos, "--scale", "fixed", "--coupled")
    assert result.stderr == (
        "error: --coupled maps have no common scale, so --scale fixed has no meaning; remove one option.\n"
    )
