"""`fewtags evaluate`."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from command_tables import Run

from fewtags.labels import Label
from fewtags.table.storage import load, save
from fewtags.table.table import LabelTable


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
