"""`fewtags transfer` on tiny photos: output and refusals."""

import json

import numpy as np
import pytest
from PIL import Image

RANDOM = ("--backbone", "test_resnet", "--size", "32", "--cpu")
COLOURS = {"blue": (40, 60, 230), "red": (220, 30, 30)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """train/ and test/ with a folder per class; labels.csv with both, as splits and as complete labels."""
    root = tmp_path_factory.mktemp("colours")
    rows = ["image,split,blue,red"]
    for part, count in (("train", 6), ("test", 3)):
        for name, colour in COLOURS.items():
            for i in range(count):
                noise = np.random.default_rng(len(rows)).integers(0, 20, (32, 32, 3))
                path = root / part / name / f"{part}{i}{name}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray((noise + colour).clip(0, 255).astype(np.uint8)).save(path)
                rows.append(f"{path.relative_to(root)},{part},{int(name == 'blue')},{int(name == 'red')}")
    (root / "labels.csv").write_text("\n".join(rows) + "\n")
    return root


def probe(run, command, *arguments, encoder="none"):
    result = run("transfer", command, encoder, *arguments, *RANDOM)
    assert result.exit_code == 0, result.output
    return result


def test_knn_on_a_pair_of_class_folders(run, folders):
    result = probe(run, "knn", folders / "train", "--test", folders / "test", "-k", 3)
    lines = result.stdout.splitlines()
    assert lines[:2] == ["top-1 accuracy: 100.00", "mean accuracy of the classes: 100.00"]
    assert lines[2].startswith("protocol: the weighted vote of Wu et al. (CVPR 2018) with k = 3")
    assert "12 training photos, 6 test photos, 2 classes, one class per photo" in result.stderr


def test_svm_on_labels_with_splits_as_json(run, folders):
    result = probe(run, "svm", folders / "labels.csv", "--kind", "multi", "--cost", 5.0, "--json")
    content = json.loads(result.stdout)
    assert content["command"] == "svm"
    assert content["data"]["kind"] == "multi"
    assert content["classes_counted"] == "2 of 2 classes counted"
    assert content["settings"] == {"costs": [5.0]}
    assert (content["train_photos"], content["test_photos"], content["seeds"]) == ([12], 6, [0])
    assert list(content["metrics"]) == ["mAP", "mAP_all_point", "mAP_11_point"]
    assert content["metrics"]["mAP"] == {"mean": 1.0, "sd": None, "runs": [1.0]}
    assert content["protocol"].startswith("protocol: resembles the VOC07 SVM")


def test_runs_on_sampled_photos(run, folders):
    result = probe(run, "svm", folders / "labels.csv", "--per-class", 2, "--runs", 3, "--seed", 7)
    assert result.stdout.splitlines()[0] == "4 of 12 training photos per run"
    assert "over 3 runs)" in result.stdout
    content = json.loads(
        probe(run, "svm", folders / "labels.csv", "--per-class", 2, "--runs", 3, "--seed", 7, "--json").stdout
    )
    assert content["seeds"] == [7, 8, 9]
    assert content["train_photos"] == [4, 4, 4]


def test_the_linear_layer_tries_learning_rates(run, folders):
    result = probe(
        run, "linear", folders / "labels.csv", "--epochs", 4, "--views", 1, "--lr", 1e-9, "--lr", 5.0, "--json",
    )  # fmt: skip
    content = json.loads(result.stdout)
    assert content["settings"]["lr"] == [1e-9, 5.0]
    assert content["settings"]["views"] == 1
    assert content["notes"][0].startswith("seed 0: lr ")
    assert content["notes"][0] in result.stderr


def test_finetuning(run, folders):
    result = probe(
        run, "finetune", folders / "labels.csv", "--epochs", 2, "--batch-size", 6, "--share", 0.5, "--json"
    )  # fmt: skip
    content = json.loads(result.stdout)
    assert content["train_photos"] == [6]
    assert (content["settings"]["epochs"], content["settings"]["batch_size"], content["settings"]["lr"]) == (2, 6, 0.01)
    assert "epoch 2/2" in result.stderr


def test_defaults_of_finetuning_depend_on_the_kind(run, folders, monkeypatch):
    """Single-label: 120 epochs, batch 64, centre crops; multi-label: 30 epochs, batch 16, whole photos."""
    seen = []

    def no_training(trials, candidates, *, consume):
        from fewtags.transfer.trials import ProbeResults

        seen.append((candidates[0].epochs, candidates[0].batch_size, type(trials.context.policy).__name__))
        return ProbeResults([{"top1": 0.5}], [12], [])

    monkeypatch.setattr("fewtags.transfer.trials.run_finetune", no_training)
    for kind in ("single", "multi"):
        probe(run, "finetune", folders / "labels.csv", "--kind", kind)
    assert seen == [(120, 64, "ResizedCrop"), (30, 16, "SquareCrop")]


def test_an_encoder_of_a_training_run(run, folders, trained):
    out, _ = trained
    result = run("transfer", "knn", out, folders / "labels.csv", "-k", 1, "--cpu")
    assert result.exit_code == 0, result.output
    assert "test_resnet (" in result.stderr
    assert "images of 64 px" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("knn", "none", "train"), "train has no split test; give --test LABELS, or --as NAME"),
        (("knn", "none", "labels.csv", "--any-size"), "--any-size is for published sets; give --as NAME as well"),
        (
            ("knn", "none", "labels.csv", "--as", "dtd", "--complete", "--test", "x"),
            "--test, --complete: --as dtd defines this; leave it out.",
        ),
        (("knn", "none", "labels.csv", "--kind", "multiple"), "--kind multiple: expected one of single, multi"),
        (("knn", "none", "labels.csv", "--policy", "center"), "--policy center: expected one of imagenet, coco, none"),
        (("linear", "none", "labels.csv", "--schedule", "step"), "--schedule step: expected one of steps, cosine"),
        (("finetune", "none", "labels.csv", "--precision", "half"), "--precision half: expected one of no, bf16, fp16"),
        (("knn", "nowhere.pt", "labels.csv"), "nowhere.pt"),
        (
            ("knn", "none", "labels.csv", "-k", "2", "--runs", "2", "--share", "0"),
            "the share of the training photos must",
        ),
    ],
)
def test_refusals(run, folders, monkeypatch, arguments, words):
    monkeypatch.chdir(folders)
    result = run("transfer", *arguments, *RANDOM)
    assert result.exit_code == 1, result.output
    assert words in result.stderr


def test_probes_run_in_one_process(run, folders, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = run("transfer", "svm", "none", folders / "labels.csv", *RANDOM)
    assert result.exit_code == 1
    assert "transfer svm runs in one process; start it without torchrun or accelerate launch." in result.stderr
