"""`fewtags heatmap`."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from command_tables import Run, read
from model_info import plain_info
from PIL import Image

from fewtags.engine.model import save_model
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import HeadPlan
from fewtags.photos.decode import read_image
from fewtags.report.overlay import overlay


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
    info = plain_info(colours, (wanted.mean, wanted.std), backbone="test_vit", head=net.head.plan)
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
