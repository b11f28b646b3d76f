"""pretrain, resume of it, train --init, export-backbone, transfer neighbours."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import Result

from fewtags.config.parse import load_toml
from fewtags.engine.events import Event, StepEnded
from fewtags.engine.pretrain_run import PretrainRun
from fewtags.engine.start_worth import PretrainingWorth, StartWorth

Run = Callable[..., Result]
TINY = (
    *("--cpu", "--backbone", "test_resnet", "--set", "augment.size=32", "--set", "train.workers=0"),
    *("--set", "train.epochs=2", "--set", "train.batch_size=4", "--set", "objective.queue_size=8"),
    *("--method", "mls", "--set", "objective.k=2", "--set", "objective.projection_dim=8"),
)


def stopping_at(step: int) -> Callable[[PretrainRun], Iterator[Event]]:
    """A start of a run that the user interrupts after so many steps."""
    start = PretrainRun.start

    def stopping(self: PretrainRun) -> Iterator[Event]:
        for event in start(self):
            yield event
            if isinstance(event, StepEnded) and event.global_step == step:
                raise KeyboardInterrupt

    return stopping


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for n in range(10):
        Image.fromarray(rng.integers(0, 255, (40, 50, 3), np.uint8)).save(folder / f"{n}.png")
    return folder


@pytest.fixture(scope="module")
def pretrained(run: Run, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    out = tmp_path_factory.mktemp("runs") / "pretrained"
    result = run("pretrain", photos, "--out", out, *TINY)
    assert result.exit_code == 0, result.stderr
    return out, result


def test_it_says_what_it_does_and_where_things_are(pretrained: tuple[Path, Result], photos: Path) -> None:
    out, result = pretrained
    assert result.stdout.splitlines() == [f"encoder: {out / 'encoder.safetensors'}", f"report: {out / 'report.html'}"]
    assert "10 photos; method: mls (k 2, weight 0.5, neighbour_loss bce" in result.stderr
    assert "net: test_resnet, weights none, 32 px" in result.stderr
    assert "2 epochs, SGD, lr 0.0046875 cosine_epoch, batch 4, weight decay 0.0001" in result.stderr
    assert f"  fewtags train LABELS --images PHOTOS --init {out}\n" in result.stderr
    assert f"  fewtags train LABELS --images PHOTOS --init preset --init {out}    (takes" in result.stderr
    assert load_toml(out / "pretrain.toml")["data"]["train"] == str(photos)


def test_dry_run_writes_nothing(run: Run, photos: Path, tmp_path: Path) -> None:
    result = run(
        "pretrain", photos, "--out", tmp_path / "run", "--method", "moco", "--backbone", "test_resnet", "--dry-run"
    )
    assert result.exit_code == 0, result.stderr
    assert "method: moco" in result.stderr
    assert not (tmp_path / "run").exists()


def test_an_interrupted_run_resumes_by_the_same_command_as_others(
    run: Run, photos: Path, pretrained: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(PretrainRun, "start", stopping_at(4))
        stopped = run("pretrain", photos, "--out", out, *TINY)
    assert stopped.exit_code == 130
    assert f"interrupted; `fewtags resume {out}` continues from the last checkpoint." in stopped.stderr
    assert run("resume", out, "--cpu").exit_code == 0
    one, two = (load_file(place / "encoder.safetensors") for place in (pretrained[0], out))
    assert all(torch.equal(one[name], two[name]) for name in one)
    (out / "report.html").unlink()
    again = run("resume", out, "--cpu")
    assert "is finished, but its report is missing; it is written now." in again.stderr
    assert (out / "report.html").exists()
    refused = run("resume", out, "--cpu")
    assert refused.exit_code == 1
    assert f"error: {out} is finished; its encoder is" in refused.stderr


def test_training_starts_from_the_pretrained_backbone(
    run: Run, dataset: Path, pretrained: tuple[Path, Result], tmp_path: Path
) -> None:
    """With a frozen trunk the weights are still there at the end."""
    out = pretrained[0]
    result = run(
        *("train", dataset / "train.parquet", "--val", dataset / "val.parquet", "--out", tmp_path / "run", "--cpu"),
        *("--init", out, "--set", "augment.size=64", "--set", "train.epochs=1", "--set", "train.workers=0"),
        *("--set", "train.cached_views=1"),
    )
    assert result.exit_code == 0, result.stderr
    assert f"net: test_resnet, weights {out / 'encoder.safetensors'}" in result.stderr
    worth = re.search(
        r"\ninit: (\d+) % of the 10 nearest photos share a class before training, the weights of the preset "
        r"\(tf_efficientnet_lite0, offline\) (\d+) %, by chance (\d+) % \((\d+) val photos\)(.*)\n",
        result.stderr,
    )
    found = json.loads((tmp_path / "run" / "init.json").read_text("utf-8"))
    shares = [found["init"], found["other"], found["chance"]]
    assert worth is not None
    *numbers, better = worth.groups()
    assert [int(word) for word in numbers] == [*(round(100 * share) for share in shares), found["photos"]]
    own = ", so the weights of the preset look better; with --init preset --init RUN, validation chooses"
    assert better == (own if found["init"] < found["other"] else "")
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert worth.group(0).strip().removeprefix("init: ") in page
    before, after = load_file(out / "encoder.safetensors"), load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(after[name], value) for name, value in before.items() if not name.endswith("tracked"))
    both = run("train", dataset / "train.parquet", "--init", out, "--weights", "none")
    assert both.exit_code == 1
    assert "are both initial weights; give one of them." in both.stderr
    nothing = run("train", dataset / "train.parquet", "--init", tmp_path / "nothing")
    assert "does not exist; give the folder of a pretraining run" in nothing.stderr


def test_several_starts_are_compared(run: Run, dataset: Path, pretrained: tuple[Path, Result], tmp_path: Path) -> None:
    """`--init` twice is the short form of search.starts; alone, `preset` says nothing."""
    words = ("train", dataset / "train.parquet", "--val", dataset / "val.parquet", "--cpu", "--weights", "none")
    words = (*words, "--set", "model.backbone=test_resnet", "--set", "augment.size=32", "--set", "train.workers=0")
    result = run(*words, "--init", "preset", "--init", pretrained[0], "--out", tmp_path / "run")
    assert result.exit_code == 0, result.stderr
    assert "\nsearch: weights none: val mAP " in result.stderr
    assert "\nsearch: weights pretrained/encoder.safetensors: val mAP " in result.stderr
    assert " is trained (+" in result.stderr
    alone = run(*words, "--init", "preset", "--out", tmp_path / "alone")
    assert alone.stderr.endswith("where training starts anyway; give a pretraining run as well, which is then compared "
                                 "with it, or leave it out.\n"), alone.stderr  # fmt: skip
    nothing = run(*words, "--init", "preset", "--init", tmp_path / "nothing")
    assert "nothing does not exist; give the folder of a pretraining run" in nothing.stderr
    unused = run(*words, "--init", pretrained[0], "--init", tmp_path / "nothing")
    assert unused.exit_code == 1


def test_a_run_with_labels_says_what_the_encoder_is_worth(
    run: Run, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says the same if it was interrupted."""
    out = tmp_path / "pre"
    result = run("pretrain", dataset / "val.parquet", "--out", out, *TINY)
    assert result.exit_code == 0, result.stderr
    worth = re.search(
        r"\n(worth: (\d+) % of the 10 nearest photos share a class before pretraining, (\d+) % after it, by chance "
        r"(\d+) % \((\d+) photos\).*)\n",
        result.stderr,
    )
    assert worth is not None, result.stderr
    found = json.loads((out / "worth.json").read_text("utf-8"))
    shares = [found["before"], found["after"], found["chance"]]
    assert [int(word) for word in worth.groups()[1:]] == [*(round(100 * share) for share in shares), found["photos"]]
    assert worth.group(1).removeprefix("worth: ") in (out / "report.html").read_text("utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(PretrainRun, "start", stopping_at(4))
        assert run("pretrain", dataset / "val.parquet", "--out", tmp_path / "stopped", *TINY).exit_code == 130
    assert run("resume", tmp_path / "stopped", "--cpu").exit_code == 0
    assert json.loads((tmp_path / "stopped" / "worth.json").read_text("utf-8")) == found


@pytest.mark.parametrize(
    ("init", "other_name", "end"),
    [
        (0.5, "net, offline", "the weights of the preset (net, offline) 40 %, by chance 20 % (200 train photos)"),
        (
            0.3,
            "net, offline",
            "so the weights of the preset look better; with --init preset --init RUN, validation chooses",
        ),
        (0.3, "none", "random weights 40 %, by chance 20 % (200 train photos)"),
        (0.3, "offline", "offline weights 40 %, by chance 20 % (200 train photos)"),
    ],
)
def test_the_run_says_which_start_looks_better(init: float, other_name: str, end: str) -> None:
    """Random weights, and names of older versions, are only reported."""
    shares = {"init": init, "other": 0.4, "other_name": other_name, "chance": 0.2}
    assert str(StartWorth(photos=200, split="train", **shares)).endswith(end)
    worth = PretrainingWorth(photos=200, before=0.4, after=init, chance=0.2)
    assert str(worth).endswith("(200 photos)" if init > 0.4 else "(200 photos), so it did not help by this measure")


def test_a_backbone_is_exported(run: Run, pretrained: tuple[Path, Result], tmp_path: Path) -> None:
    result = run("export-backbone", pretrained[0], tmp_path / "a.safetensors")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == str(tmp_path / "a.safetensors")
    assert 'timm.create_model("test_resnet", num_classes=0)' in result.stderr
    refused = run("export-backbone", pretrained[0], tmp_path / "b.safetensors", "--format", "detectron")
    assert refused.exit_code == 1
    assert "did you mean 'detectron2'?" in refused.stderr


def test_nearest_photos_of_labels_and_of_a_bare_folder(
    run: Run, dataset: Path, photos: Path, pretrained: tuple[Path, Result], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    result = run(
        "transfer", "neighbours", pretrained[0], dataset / "val.parquet", "--out", page, "-k", 3, "--cpu", "--json"
    )
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["k"], told["page"]) == (3, str(page))
    assert 0 <= told["precision"] <= 1
    assert 'class="right"' in page.read_text("utf-8") or 'class="wrong"' in page.read_text("utf-8")
    result = run("transfer", "neighbours", pretrained[0], photos, "--unlabelled", "--out", page, "-k", 3, "--cpu")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == str(page)
    assert 'class="right"' not in page.read_text("utf-8")


def test_nothing_to_train_on_and_bad_settings_are_said(run: Run, photos: Path, tmp_path: Path) -> None:
    nothing = run("pretrain")
    assert nothing.exit_code == 1
    assert "nothing to train on: give a folder of photos" in nothing.stderr
    wrong = run("pretrain", photos, "--out", tmp_path / "run", "--set", "objective.queue=5")
    assert wrong.exit_code == 1
    assert "unknown key 'objective.queue'; did you mean 'objective.queue_size'?" in wrong.stderr
    out = tmp_path / "used"
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    used = run("pretrain", photos, "--out", out)
    assert f"{out} is not empty; choose another --out." in used.stderr


def test_what_is_exported_never_overwrites_what_it_comes_from(run: Run, pretrained: tuple[Path, Result]) -> None:
    out = pretrained[0]
    before = (out / "encoder.safetensors").read_bytes()
    refused = run("export-backbone", out, out / "encoder.safetensors")
    assert refused.exit_code == 1
    assert "is an input of this command and would be lost; write to another file." in refused.stderr
    assert (out / "encoder.safetensors").read_bytes() == before


def test_other_commands_know_a_pretraining_run(run: Run, pretrained: tuple[Path, Result], photos: Path) -> None:
    out = pretrained[0]
    assert run("report", out).stdout.strip() == str(out / "report.html")
    predicted = run("predict", out, photos)
    assert predicted.exit_code == 1
    assert f"{out} is a pretraining run, which has no classes; train a model from it" in predicted.stderr


def test_a_collapse_leaves_curves(run: Run, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = run("pretrain", photos, "--out", out, *TINY, "--set", "train.weight_decay=19", "--set", "train.lr=0.05",
                 "--set", "train.epochs=9")  # fmt: skip
    assert result.exit_code == 1
    assert "error: the net has collapsed by epoch" in result.stderr
    assert "No nearest photos: the run is not finished" in (out / "report.html").read_text("utf-8")
    assert not (out / "encoder.safetensors").exists()
