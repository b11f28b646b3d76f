"""`fewtags figure`: photos with heatmaps of runs, their progress, and crops with their neighbours."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import Result

from fewtags.engine.gallery import load_gallery
from fewtags.engine.model import load_model
from fewtags.engine.predict import heatmaps
from fewtags.engine.running_maps import saved_averages
from fewtags.engine.tensor_files import load_part, save_part
from fewtags.labels import Label
from fewtags.table.storage import load

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def scl(trained: tuple[Path, Result]) -> Path:
    """The run of all tests of the command line: six epochs of EN + SCL, which keeps running averages."""
    return trained[0]


def numbers(result: Result, out: Path) -> list[dict]:
    """The numbers of a figure; its picture is not blank."""
    assert (result.exit_code, result.stdout) == (0, f"{out}\n"), (result.stderr, result.exception)
    assert np.asarray(Image.open(out).convert("L")).std() > 5
    found: list[dict] = json.loads(out.with_suffix(".json").read_text())
    return found


def test_maps_shows_averages_and_maps_of_each_run(run: Run, scl: Path, tmp_path: Path) -> None:
    """Averages are the stored levels over 255; photos are the first by name; classes by the net's probability."""
    found = numbers(
        run("figure", "maps", scl, "--count", 2, "--top", 2, "--cpu", "--out", tmp_path / "k.png"), tmp_path / "k.png"
    )
    train = load(scl / "tables" / "train.parquet")
    first = sorted(train.images.to_pylist())[:2]
    assert [(n["photo"], n["map"]) for n in found] == [
        (key, kind) for key in first for _ in range(2) for kind in ("running averages", "the net's maps")
    ]
    row = train.images.to_pylist().index(first[0])
    (checkpoint,) = (scl / "checkpoints").glob("step-*")
    stored = load_part(checkpoint / "parts-0", "heatmaps")["values"][row].float().numpy() / 255
    prob, maps = heatmaps(*load_model(scl), train.require_root() / first[0], torch.device("cpu"))
    class_ids = load_model(scl)[1].class_ids
    order = np.argsort(-prob, kind="stable")[:2]
    assert [n["class"] for n in found[:4:2]] == [class_ids[c] for c in order]
    assert found[0]["mean"] == pytest.approx(stored[order[0]].mean(), abs=1e-4)
    assert found[1]["mean"] == pytest.approx(maps[order[0]].mean(), abs=1e-4)
    assert found[0]["highest"] != found[1]["highest"]
    assert {n["share_in_boxes"] for n in found} == {None}


def test_boxes_of_the_labels_are_drawn_and_measured(run: Run, scl: Path, dataset: Path, tmp_path: Path) -> None:
    """A box over the left half of the photo: the share of the map that is there."""
    photo = dataset / "images" / "val" / "0.png"
    record = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 32, 48], "iscrowd": 0}
    content = {
        "images": [{"id": 1, "file_name": "0.png", "width": 64, "height": 48}],
        "annotations": [record], "categories": [{"id": 1, "name": "red"}],
    }  # fmt: skip
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    out = tmp_path / "b.png"
    asked = ("--on", tmp_path / "boxes.json", "--images", photo.parent, "--classes", "red", "--out", out, "--cpu")
    (found,) = numbers(run("figure", "maps", scl, *asked), out)
    _, maps = heatmaps(*load_model(scl), photo, torch.device("cpu"))
    map_ = maps[load_model(scl)[1].class_ids.index("red")]
    assert found["share_in_boxes"] == pytest.approx(map_[:, : map_.shape[1] // 2].sum() / map_.sum(), abs=1e-4)
    assert (found["label"], found["map"]) == ("positive", "the net's maps")


def test_progress_shows_the_epochs_that_were_kept(run: Run, scl: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.png"
    found = numbers(run("figure", "progress", scl, "--out", out), out)
    assert {n["epoch"] for n in found} == set(range(1, 7))
    last = load_gallery(scl, "epoch-0005")
    panel = next(p for photo in last if photo.key == found[0]["photo"] for p in photo.panels)
    own = [n for n in found if n["map"] == "running averages" and n["epoch"] == 6 and n["role"] == panel.role]
    assert own[0]["mean"] == pytest.approx(panel.average.mean(dtype=float), abs=1e-4)
    train = load(scl / "tables" / "train.parquet")
    row = train.images.to_pylist().index(found[0]["photo"])
    assert np.allclose(saved_averages(scl, [row], train.matrix)[0][panel.class_], panel.average, atol=1e-3)


def test_crops_are_boxes_with_neighbours_of_other_photos(run: Run, scl: Path, dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.png"
    asked = (dataset / "images" / "val", "--rows", 2, "-k", 3, "--size", 64, "--cpu", "--out", out)
    found = numbers(run("figure", "crops", scl, *asked), out)
    for line in (0, 1):
        own = [n for n in found if n["query"] == line]
        assert len({n["photo"] for n in own}) == 4
        assert own[0]["cosine"] is None
        assert own[1]["cosine"] >= own[2]["cosine"] >= own[3]["cosine"]
    for x0, y0, x1, y1 in (n["box"] for n in found):
        assert 0 <= x0 < x1 <= 1
        assert 0 <= y0 < y1 <= 1
        assert 0.2 - 1e-3 <= (x1 - x0) * (y1 - y0) <= 1


def test_photos_that_were_never_seen_have_the_start_values(scl: Path, tmp_path: Path) -> None:
    shutil.copytree(scl / "checkpoints", tmp_path / "checkpoints")
    (checkpoint,) = (tmp_path / "checkpoints").glob("step-*")
    state = load_part(checkpoint / "parts-0", "heatmaps")
    state["visits"] = state["visits"] * 0
    save_part(checkpoint / "parts-0", "heatmaps", state)
    train = load(scl / "tables" / "train.parquet")
    (maps,) = saved_averages(tmp_path, [3], train.matrix)
    assert (maps == (train.matrix.rows([3])[0] == Label.POSITIVE)[:, None, None]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("maps", "{scl}", "--photos", "x.png"), "--photos: 'x.png' is not a photo of these labels."),
        (("maps", "{scl}", "--classes", "rad"), "--classes: 'rad' is not a class (did you mean 'red'?)."),
        (("maps", "{scl}", "--split", "val2"), "--split val2: {scl} has no such labels; it has train, val."),
        (("maps", "{scl}", "--split", "val", "--maps", "averages"), "was not trained on"),
        (("maps", "{plain}", "--maps", "averages"), "keeps no running averages of maps"),
        (("maps", "{scl}", "--images", "x"), "--images and --complete are for --on; give --on LABELS as well"),
    ],
)
def test_what_cannot_be_drawn(run: Run, scl: Path, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """`plain` is the run without its averages."""
    shutil.copytree(scl, tmp_path / "plain")
    for file in (tmp_path / "plain" / "checkpoints").rglob("heatmaps.*"):
        file.unlink()
    places = {"scl": scl, "plain": tmp_path / "plain"}
    result = run("figure", *(a.format(**places) for a in arguments), "--cpu", "--out", tmp_path / "x.png")
    assert result.exit_code == 1, result.exception
    assert message.format(**places) in result.stderr
    assert not (tmp_path / "x.png").exists()
