"""The page of a pretraining run, and the page of nearest photos."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from fewtags.engine.methods import read_pretrain_settings
from fewtags.engine.pretrain_plan import make_pretrain_plan
from fewtags.engine.pretrain_run import PretrainRun
from fewtags.errors import CheckpointError, DataError
from fewtags.labels import ClassNames, Label
from fewtags.nets.encoder import create_encoder
from fewtags.photos.augment import WholeImage
from fewtags.report.neighbours import neighbour_rows
from fewtags.report.pretraining import build_pretraining_report, churn, curves
from fewtags.table.table import LabelTable

COLOURS = {"red": (230, 20, 20), "blue": (20, 20, 230)}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Five red and five blue photos, noise on top."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for n in range(10):
        pixels = np.array(COLOURS["red" if n < 5 else "blue"]) + rng.integers(-15, 15, (40, 50, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{n}.png")
    return folder


def labelled(folder):
    dense = np.full((10, 2), Label.NEGATIVE, np.int8)
    dense[:5, 0] = dense[5:, 1] = Label.POSITIVE
    image, class_ = np.nonzero(dense)
    return LabelTable.build(
        [f"{n}.png" for n in range(10)], ClassNames.of(COLOURS), image=image, class_=class_,
        state=dense[image, class_], source="made", root=folder,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "first"
    tree = {
        "data": {"train": str(photos)},
        "model": {"backbone": "test_resnet"},
        "augment": {"size": 32},
        "objective": {"name": "mls", "k": 2, "queue_size": 8, "projection_dim": 8},
        "train": {"epochs": 2, "batch_size": 4, "workers": 0},
    }
    for _ in PretrainRun(make_pretrain_plan(read_pretrain_settings(tree, "test"), cpu=True), out, cpu=True).start():
        pass
    return out


def test_the_page_shows_numbers_curves_settings_and_photos(run):
    page = build_pretraining_report(run).read_text("utf-8")
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert f"<b>{last['train/loss']:.2f}</b>" in page
    assert page.count("data:image/jpeg") == 8 * (1 + 9)  # eight of the ten photos, each with the other nine
    assert page.count("data:image/png") == 1
    assert '<td class="l">objective.k</td><td class="l">2</td>' in page
    assert "10 photos, 2 epochs" in page
    assert f"--init {run}" in page
    assert ("collapsed, and its" in page) == (last["train/spread"] < 0.05)


def test_photos_that_have_gone_leave_the_rest_of_the_page(run, photos, tmp_path):
    hidden = photos.rename(tmp_path / "hidden")
    try:
        page = build_pretraining_report(run).read_text("utf-8")
    finally:
        hidden.rename(photos)
    assert "No nearest photos: " in page
    assert "data:image/jpeg" not in page


def test_an_unfinished_run_has_no_page(tmp_path):
    (tmp_path / "pretrain.toml").write_text("")
    with pytest.raises(CheckpointError, match="has not finished an epoch, so there is nothing to report yet"):
        build_pretraining_report(tmp_path)


def test_colours_lie_near_their_own(photos):
    """Even random convolutions tell red from blue: the four nearest of every photo have its colour."""
    encoder = create_encoder("test_resnet", weights="none", size=32)
    found = neighbour_rows(encoder, labelled(photos), WholeImage(32), torch.device("cpu"), queries=10, k=4)
    assert found.report is not None
    assert found.report.precision == 1.0
    assert found.report.chance == pytest.approx(4 / 9)
    assert len(found.rows) == 10
    for query, *others in found.rows:
        assert (query.cosine, query.right) == (None, None)
        assert [tile.tags for tile in others] == [query.tags] * 4
        assert all(tile.right for tile in others)
        cosines = [tile.cosine for tile in others]
        assert cosines == sorted(cosines, reverse=True)
        assert query.name not in [tile.name for tile in others]


def test_without_classes_nothing_is_judged_and_too_few_photos_are_refused(photos):
    encoder = create_encoder("test_resnet", weights="none", size=32)
    bare = LabelTable.build(
        ["0.png", "1.png", "7.png"], ClassNames.of([]), source="made", root=photos, image=[], class_=[], state=[]
    )
    found = neighbour_rows(encoder, bare, WholeImage(32), torch.device("cpu"))
    assert found.report is None
    assert all(tile.right is None for row in found.rows for tile in row)
    gone = bare.with_root(photos / "elsewhere")
    with pytest.raises(DataError):
        neighbour_rows(encoder, gone, WholeImage(32), torch.device("cpu"))


def test_churn_is_what_could_come_back_and_did_not():
    assert churn({"train/neighbours_met": 0.5, "train/neighbours_kept": 0.2}) == pytest.approx(0.6)
    assert churn({"train/neighbours_met": 0.0, "train/neighbours_kept": 0.0}) is None
    assert churn({}) is None


def test_curves_name_chance_and_collapse():
    """Queue 8, k 2, tau .2: InfoNCE by chance log 9; the neighbours' loss of a collapsed net 5.007 - 1.25."""
    history = [
        {"epoch": 0, "train/loss": 2.0, "train/infonce": 1.5, "train/spread": 0.5, "train/neighbour_loss": 1.0},
        {"epoch": 1, "train/loss": 1.9, "train/infonce": 1.4, "train/spread": 0.6, "train/neighbour_loss": 1.0},
    ]
    objective = {
        "name": "mls",
        "queue_size": 8,
        "k": 2,
        "temperature": 0.2,
        "neighbour_loss": "bce",
        "reduction": "mean",
    }
    loss, spread = curves(history, objective).axes
    levels = [line.get_ydata()[0] for line in loss.lines if line.get_linestyle() == ":"]
    assert levels == pytest.approx([np.log(9), np.log1p(np.exp(5)) - 1.25])
    assert [text.get_text() for text in loss.get_legend().get_texts()][:3] == ["total", "InfoNCE", "neighbours"]
    assert spread.get_title() == "spread"
