"""`fewtags export`, and the commands that take its files, on the tiny run; and the model card of that run."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
import timm
from huggingface_hub import ModelCard
from safetensors import safe_open

from fewtags.engine.model import read_info
from fewtags.engine.model_card import is_unedited


@pytest.fixture(scope="module")
def onnx_file(run, trained, tmp_path_factory):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("export") / "first"
    shutil.copytree(trained[0], folder)
    result = run("export", folder, "--to", "onnx", "--int8")
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert result.stdout.split() == [f"{folder}/model.onnx", f"{folder}/model.int8.onnx"]
    assert "compared with torch: max |dp|" in result.stderr
    assert "on 12 validation photos: mAP" in result.stderr
    return folder / "model.onnx"


def table(text):
    return [*csv.DictReader(io.StringIO(text))]


def test_predict_writes_the_same_table(run, dataset, trained, onnx_file):
    wanted, found = (table(run("predict", m, dataset / "images").stdout) for m in (trained[0], onnx_file))
    assert wanted
    for row, other in zip(wanted, found, strict=True):
        assert abs(float(row.pop("probability")) - float(other.pop("probability"))) < 1e-5
        assert row == other


def test_evaluate_gives_the_same_numbers(run, dataset, trained, onnx_file):
    wanted, found = (
        json.loads(run("evaluate", m, dataset / "val.parquet", "--json").stdout) for m in (trained[0], onnx_file)
    )
    assert wanted["mAP"] == pytest.approx(found["mAP"], abs=1e-6)
    assert [c["threshold"] for c in wanted["per_class"]] == [c["threshold"] for c in found["per_class"]]


def test_heatmap_and_python(run, dataset, onnx_file, tmp_path):
    from fewtags.api import Classifier

    photo = dataset / "images" / "val" / "0.png"
    result = run("heatmap", onnx_file, photo, "--class", "red", "--out", tmp_path)
    assert (result.exit_code, (tmp_path / "0.red.png").exists()) == (0, True)
    refused = run("heatmap", onnx_file, photo, "--coupled", "--out", tmp_path)
    assert "an ONNX file cannot give attention; give the run folder instead of" in refused.stderr
    assert Classifier.load(onnx_file).predict_proba(photo).shape == (1, 3)


def test_precision_comes_from_the_run_beside_the_file(run, onnx_file):
    shown = run("thresholds", onnx_file, "--precision", "0.5", "--json")
    assert shown.exit_code == 0, shown.stderr
    refused = run("thresholds", onnx_file, "--threshold", "0.5", "--store")
    assert "is an exported file, which does not change" in refused.stderr


def test_timm_and_hub_folders(run, trained, tmp_path):
    result = run("export", trained[0], "--to", "hub", "--out", tmp_path / "hub")
    assert result.exit_code == 0, result.stderr
    assert timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True).num_classes == 3
    assert (tmp_path / "hub" / "README.md").exists()
    refused = run("export", trained[0], "--to", "timm", "--out", trained[0])
    assert "is the run folder, whose model would be lost" in refused.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--to", "onxx"],
            "--to onxx: expected one of onnx, timm, hub, backbone, torchvision, detectron2 (did you mean",
        ),
        (["--to", "torchscript"], "(see `fewtags export --help` for the reason)"),
        (["--to", "timm", "--int8"], "--int8 needs --to onnx"),
        (["--to", "onnx", "--push", "me/x"], "--push needs --to hub"),
        (["--to", "hub", "--public"], "--public is for --push"),
    ],
)
def test_wrong_options(run, trained, options, message):
    result = run("export", trained[0], *options)
    assert result.exit_code == 1
    assert message in result.stderr


def test_the_earlier_name_works_and_names_the_new_one(run, trained, tmp_path):
    result = run("export-backbone", trained[0], tmp_path / "a.safetensors")
    assert result.exit_code == 0
    assert "`fewtags export " in result.stderr
    new = run("export", trained[0], "--to", "backbone", "--out", tmp_path / "b.safetensors")
    assert new.exit_code == 0
    # The order of the metadata in the file is not fixed.
    with safe_open(tmp_path / "a.safetensors", "np") as old, safe_open(tmp_path / "b.safetensors", "np") as other:
        assert old.metadata() == other.metadata()
        assert sorted(old.keys()) == sorted(other.keys())
        assert all(np.array_equal(old.get_tensor(key), other.get_tensor(key)) for key in old.keys())  # noqa: SIM118


def test_the_model_card(trained):
    """Counts by the fixture: 24 photos with one positive each; 12 complete photos, half of them with two colours."""
    card = ModelCard.load(trained[0] / "README.md")
    assert (card.data.pipeline_tag, card.data.license) == ("image-classification", "unknown")
    assert {r.metric_type for r in card.data.eval_results} >= {"mAP", "CF1"}
    assert "| train | 24 | 24 | 0 | 48 |" in card.text
    assert "| val | 12 | 18 | 18 | 0 |" in card.text
    threshold = read_info(trained[0] / "model.safetensors").thresholds[0]
    assert f"| red | {threshold:.3f} | 8 |" in card.text
    assert "The run had no test photos" in card.text
    assert str(trained[0].parent) not in card.content


def test_stored_thresholds_reach_a_card_that_nobody_edited(run, trained, tmp_path):
    shutil.copytree(trained[0], folder := tmp_path / "first")
    run("thresholds", folder, "--threshold", "red=0.125", "--store")
    assert "| red | 0.125 |" in (folder / "README.md").read_text()
    assert is_unedited(folder, read_info(folder / "model.safetensors"))
    (folder / "README.md").write_text("mine")
    result = run("thresholds", folder, "--threshold", "red=0.25", "--store")
    assert (folder / "README.md").read_text() == "mine"
    assert "README.md was edited, so it keeps the earlier thresholds" in result.stderr
