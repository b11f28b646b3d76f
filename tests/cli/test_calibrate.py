"""`fewtags calibrate`: what it shows, stores and restores."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

import fewtags as ft
from fewtags.cli.follow import finish
from fewtags.engine.calibration import fit_to_run, store_calibration
from fewtags.engine.model import read_info
from fewtags.engine.own_thresholds import store_thresholds
from fewtags.engine.runfolder import run_folder
from fewtags.errors import CheckpointError, ConfigError
from fewtags.report.load import load_run

Run = Callable[..., Result]


@pytest.fixture
def model(trained: tuple[Path, Result], tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained[0], tmp_path / "run"))


def evaluated(run: Path) -> dict:
    return json.loads((run / "evaluation/val.json").read_text("utf-8"))


def tags(run: Run, model: Path, dataset: Path) -> list[str]:
    result = run("predict", model, dataset / "images/val", "--cpu")
    return sorted(",".join(line.split(",")[:2]) for line in result.stdout.splitlines())


@pytest.mark.parametrize(("error", "named"), [(0.123, True), (0.04, False), (None, False)])
def test_training_names_the_command(
    model: Path, capsys: pytest.CaptureFixture[str], error: float | None, named: bool
) -> None:
    content = evaluated(model)
    content["calibration"] = {"error": error}
    (model / "evaluation/val.json").write_text(json.dumps(content), "utf-8")
    finish(run_folder(model), cpu=True)
    said = capsys.readouterr().err
    hint = f"fewtags calibrate {model} --store    (probabilities are 12 points off in the mean on validation)"
    assert (hint in said) == named
    assert ("fewtags calibrate" in said) == named


def test_shows_and_stores_nothing(run: Run, model: Path) -> None:
    before = (model / "model.safetensors").read_bytes()
    result = run("calibrate", model)
    assert result.exit_code == 0, result.stderr
    assert "calibrated on 12 validation photos (3 classes from known labels); slope" in result.stdout
    assert "12 validation photos, cross-fitted" in result.stdout
    assert "(known 1.50)" in result.stdout
    assert "nothing is stored" in result.stderr
    assert (model / "model.safetensors").read_bytes() == before


def test_stored_probabilities_are_used_everywhere(run: Run, model: Path, dataset: Path) -> None:
    """Tags and AP stay; predictions, stored scores and metrics follow; a second calibration finds the same."""
    tagged, before = tags(run, model, dataset), evaluated(model)
    fitted = json.loads(run("calibrate", model, "--json").stdout)
    result = run("calibrate", model, "--store")
    assert result.exit_code == 0, result.stderr
    assert "evaluation of val is computed again" in result.stderr
    assert tags(run, model, dataset) == tagged
    after = evaluated(model)
    assert after["mAP"] == before["mAP"]
    assert after["CF1"] == before["CF1"]
    assert after["cardinality"]["expected"] == pytest.approx(after["cardinality"]["known"], abs=0.2)
    assert after["calibration"]["brier"] <= before["calibration"]["brier"]
    classifier = ft.Classifier.load(model, device="cpu")
    table = ft.read(dataset / "val.parquet")
    logits = np.load(model / "evaluation/val.npy").astype(np.float64)
    assert classifier.predict_proba(table) == pytest.approx(1 / (1 + np.exp(-logits)), abs=1e-4)
    assert "probabilities: calibrated on 12 validation photos" in "\n".join(classifier.info_.lines())
    again = json.loads(run("calibrate", model, "--json").stdout)
    assert again["slope"] == fitted["slope"]
    assert again["offsets"] == fitted["offsets"]


def test_the_report_shows_the_stored_probabilities(run: Run, model: Path, dataset: Path) -> None:
    """Its photos are stored as trained; `report` changes them as the model was changed."""
    table = model / "labels.csv"
    table.write_text("image,red,green,blue\n" + "".join(f"val/{i}.png,{i % 2},1,0\n" for i in range(12)), "utf-8")
    before = load_run(model).gallery
    result = run("calibrate", model, table, "--images", dataset / "images", "--store", "--cpu")
    assert result.exit_code == 0, result.stderr
    classifier, shown = ft.Classifier.load(model, device="cpu"), load_run(model).gallery
    assert [photo.panels[0].prob for photo in shown] != [photo.panels[0].prob for photo in before]
    for photo in shown:
        path = dataset / "images" / photo.key
        prob, maps = classifier.predict_proba(path)[0], classifier.heatmaps(path)
        for panel in photo.panels:
            assert panel.prob == pytest.approx(prob[panel.class_], abs=1e-3)
            low, high = maps[panel.class_].min(), maps[panel.class_].max()
            assert low - 0.02 <= panel.map.min() <= panel.map.max() <= high + 0.02


def test_what_a_kill_leaves_undone_is_done_again(run: Run, model: Path) -> None:
    """The model is stored, and the evaluation is not: its scores are still those of the trained head."""
    scores = (model / "evaluation/val.npy").read_bytes()
    assert run("calibrate", model, "--store").exit_code == 0
    complete = (model / "evaluation/val.npy").read_bytes()
    stored = (model / "model.safetensors").read_bytes()
    (model / "evaluation/val.npy").write_bytes(scores)
    assert run("calibrate", model, "--store").exit_code == 0
    assert (model / "evaluation/val.npy").read_bytes() == complete
    assert (model / "model.safetensors").read_bytes() == stored


def test_undo(run: Run, model: Path, dataset: Path) -> None:
    scores, before = (model / "evaluation/val.npy").read_bytes(), evaluated(model)
    prob = ft.Classifier.load(model, device="cpu").predict_proba(dataset / "images/val")
    run("calibrate", model, "--store")
    result = run("calibrate", model / "model.safetensors", "--undo")
    assert result.exit_code == 0, result.stderr
    assert (model / "evaluation/val.npy").read_bytes() == scores
    assert evaluated(model)["metrics"] == before["metrics"]
    assert ft.Classifier.load(model, device="cpu").predict_proba(dataset / "images/val") == pytest.approx(
        prob, abs=1e-5
    )
    twice = run("calibrate", model, "--undo")
    assert twice.exit_code == 1
    assert "is not calibrated, so there is nothing to undo" in twice.stderr


def test_other_labels(run: Run, model: Path, dataset: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copy(model / "model.safetensors", tmp_path / "alone.safetensors"))
    result = run("calibrate", alone, dataset / "val.parquet", "--store", "--cpu")
    assert result.exit_code == 0, result.stderr
    assert "calibrated on 12 photos (3 classes from known labels)" in result.stdout
    run("calibrate", model, "--store")
    info = ft.Classifier.load(model).info_.calibration
    own = ft.Classifier.load(alone).info_.calibration
    assert own.slope == pytest.approx(info.slope, rel=1e-3)
    assert own.offsets == pytest.approx(info.offsets, abs=1e-3)


def test_single_positives_fit_the_expected_number(run: Run, model: Path, dataset: Path) -> None:
    result = run("calibrate", model, dataset / "train.parquet", "--cpu")
    assert result.exit_code == 0, result.stderr
    assert "calibrated on 24 photos (3 classes from the expected number of positives); slope 1.00" in result.stdout
    assert "- -> -" in result.stdout


def test_in_python(model: Path, dataset: Path) -> None:
    classifier = ft.Classifier.load(model, device="cpu")
    tagged = classifier.predict(dataset / "images/val")
    found = classifier.calibrate()
    assert found.calibration.slope > 0
    assert [sorted(row) for row in classifier.predict(dataset / "images/val")] == [sorted(row) for row in tagged]
    again = classifier.calibrate(ft.read(dataset / "val.parquet"))
    assert again.calibration.slope == pytest.approx(found.calibration.slope, rel=1e-3)
    with pytest.raises(ConfigError, match="not trained yet"):
        ft.Classifier().calibrate()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--undo", "--store"), "--undo restores the trained model and takes nothing else; leave --store out."),
        (("--complete",), "--complete: there are no LABELS to read; give them, or leave this out."),
        (("--images", "."), "--images: there are no LABELS to read; give them, or leave this out."),
    ],
)
def test_options_that_do_nothing(run: Run, model: Path, options: tuple[str, ...], message: str) -> None:
    result = run("calibrate", model, *options)
    assert result.exit_code == 1
    assert f"error: {message}" in result.stderr


def test_no_validation_scores(run: Run, model: Path) -> None:
    shutil.rmtree(model / "evaluation")
    result = run("calibrate", model)
    assert result.exit_code == 1
    assert f"{model} has no validation scores to calibrate with; give labels (LABELS)." in result.stderr


def test_another_model_file_in_the_run_folder_is_what_changes(run: Run, model: Path) -> None:
    copy = Path(shutil.copy(model / "model.safetensors", model / "copy.safetensors"))
    before = (model / "model.safetensors").read_bytes(), evaluated(model)
    result = run("calibrate", copy, "--store")
    assert result.exit_code == 0, result.stderr
    assert f"stored in {copy}" in result.stderr
    assert ((model / "model.safetensors").read_bytes(), evaluated(model)) == before
    assert ft.Classifier.load(copy).info_.calibration is not None


def test_thresholds_of_a_calibrated_model_fit_its_probabilities(run: Run, model: Path, dataset: Path) -> None:
    """In memory, after `save` into the run folder, and after --store, they decide as those of the trained head.

    The scores of the run are replaced by ones that are far too low, but separate the labels.
    """
    labels = ft.read(dataset / "val.parquet").matrix.dense()
    scores = np.random.default_rng(0).uniform(-0.5, 0.5, labels.shape).astype(np.float32) + labels - 4
    np.save(model / "evaluation/val.npy", scores)
    trained = ft.Classifier.load(model)
    assert (probabilities(scores) >= trained.set_thresholds(precision=0.9).thresholds_).sum() == (labels > 0).sum()
    classifier = ft.Classifier.load(model)
    moved = classifier.calibrate().calibration.logits(scores)
    wanted = classifier.set_thresholds(precision=0.9).thresholds_
    assert ((probabilities(moved) >= wanted) == (labels > 0)).all()
    classifier = ft.Classifier.load(model)
    classifier.calibrate()
    classifier.save(model / "model.safetensors")
    result = run("thresholds", model, "--precision", "0.9", "--store")
    assert result.exit_code == 0, result.stderr
    assert ft.Classifier.load(model).thresholds_ == pytest.approx(wanted)
    assert np.load(model / "evaluation/val.npy") == pytest.approx(moved, abs=1e-5)
    assert (np.load(model / "evaluation/as_trained/val.npy") == scores).all()
    assert ft.Classifier.load(model).set_thresholds(precision=0.9).thresholds_ == pytest.approx(wanted)


def probabilities(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def test_a_second_calibration_in_python_starts_from_the_trained_head(model: Path) -> None:
    classifier = ft.Classifier.load(model)
    slope = classifier.calibrate().calibration.slope
    assert classifier.calibrate().calibration.slope == slope
    classifier.save(model / "model.safetensors")
    assert ft.Classifier.load(model).calibrate().calibration.slope == slope


def test_classes_that_the_labels_lack_get_the_mean_offset(run: Run, model: Path, dataset: Path, tmp_path: Path) -> None:
    table = ft.read(dataset / "val.parquet")
    first, second, _ = table.classes.ids
    labels = table.matrix.dense()
    rows = [
        f"{name},{int(row[0] > 0)},{int(row[1] > 0)}"
        for name, row in zip(table.images.to_pylist(), labels, strict=True)
    ]
    few = tmp_path / "two.csv"
    few.write_text("\n".join([f"image,{first},{second}", *rows]), "utf-8")
    result = run("calibrate", model, few, "--images", table.root, "--json", "--cpu")
    assert result.exit_code == 0, result.stderr
    assert "calibrating on 12 images" in result.stderr
    found = json.loads(result.stdout)
    assert "2 classes from known labels, 1 class without labels like the mean of these" in found["basis"]
    assert found["offsets"][2] == pytest.approx(sum(found["offsets"][:2]) / 2)
    tagged = tmp_path / "tags.csv"
    tagged.write_text(f"image,tags\n{table.images.to_pylist()[0]},{first}\n", "utf-8")
    result = run("calibrate", model, tagged, "--images", table.root, "--cpu")
    assert result.exit_code == 0, result.stderr
    assert "warning: 2 classes have no label: " in result.stderr


def test_thresholds_are_not_stored_over_a_calibration_that_came_in_between(model: Path) -> None:
    chosen = read_info(model / "model.safetensors")
    fitted = fit_to_run(chosen, model)
    store_calibration(model, fitted)
    with pytest.raises(
        CheckpointError, match="was calibrated while its thresholds were chosen; give the command again"
    ):
        store_thresholds(model, chosen)
    assert read_info(model / "model.safetensors").calibration is not None
