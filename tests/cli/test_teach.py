"""`fewtags teach`: an image-text model with random weights, and what is refused; and training with what it writes."""

import importlib.util
import json
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from fewtags.cli.teach import read_classes, with_names
from fewtags.engine.zero_shot import ZeroShotOptions, make_zero_shot
from fewtags.errors import ConfigError, DataError
from fewtags.labels import ClassNames

needs_open_clip = pytest.mark.skipif(importlib.util.find_spec("open_clip") is None, reason="open_clip is not installed")
CLASSES = ClassNames.of(["red", "green", "blue"])
CONFIG = {
    "model_cfg": {
        "embed_dim": 8,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 16},
        "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 8, "heads": 1, "layers": 1},
    },
    "preprocess_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of two tiny models: "clip", and "siglip" with a bias."""
    import open_clip
    import torch
    from safetensors.torch import save_file

    root = tmp_path_factory.mktemp("models")
    for name, more in (("clip", {}), ("siglip", {"init_logit_bias": -1.0})):
        folder = root / name
        folder.mkdir()
        config = {**CONFIG, "model_cfg": {**CONFIG["model_cfg"], **more}}
        (folder / "open_clip_config.json").write_text(json.dumps(config))
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = open_clip.create_model(f"local-dir:{folder}", load_weights=False)
        save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return root


@needs_open_clip
def test_scores_of_photos_are_a_table_that_train_reads(run, models, dataset, train_command, tmp_path):
    out = tmp_path / "scores.parquet"
    labels = dataset / "train.parquet"
    result = run("teach", dataset / "images", "--classes", labels, "--model", models / "clip", "--out", out, "--cpu")
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "scores: softmax of 3 classes, temperature 0.07" in result.stderr
    table = pq.read_table(out)
    assert table.column_names == ["image", "red", "green", "blue"]
    scores = np.stack([table[name].to_numpy() for name in CLASSES.ids], 1)
    assert scores.shape == (36, 3)
    np.testing.assert_allclose(scores.sum(1), 1, atol=1e-5)
    assert scores.std(0).min() > 0
    command = (*train_command, "--teacher", out, "--method", "gr", "--dry-run")
    result = run(*command)
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "has scores for 24 of 24 training photos and 3 of 3 classes" in result.stderr


@needs_open_clip
def test_scores_are_those_of_the_model(models, tmp_path):
    """The softmax of scaled cosines, computed with open_clip alone; two prompts are averaged as unit vectors."""
    import open_clip
    import torch
    from torch.nn.functional import normalize

    prompts = ("a photo of a {}.", "a drawing of a {}")
    net, info = make_zero_shot(ZeroShotOptions(model=str(models / "clip"), prompts=prompts), CLASSES)
    assert (info.size, info.mean, info.std) == (32, (0.5,) * 3, (0.25,) * 3)
    model = open_clip.create_model(f"local-dir:{models / 'clip'}").eval()
    tokenizer = open_clip.get_tokenizer(f"local-dir:{models / 'clip'}")
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        texts = [normalize(model.encode_text(tokenizer([p.format(c) for c in CLASSES.ids])), dim=1) for p in prompts]
        text = normalize(texts[0] + texts[1], dim=1)
        expected = (model.logit_scale.exp() * normalize(model.encode_image(images), dim=1) @ text.T).softmax(1)
        torch.testing.assert_close(net.predict_logits(images).sigmoid(), expected, rtol=1e-4, atol=1e-6)
        siglip, made = make_zero_shot(ZeroShotOptions(model=str(models / "siglip"), temperature=0.5), CLASSES)
        assert made.method["scores"] == "sigmoid"
        assert (siglip.scale, siglip.bias) == (2.0, -1.0)


@needs_open_clip
def test_weights_from_a_file_replace_those_of_the_folder(models, tmp_path):
    import torch

    file = models / "clip" / "open_clip_model.safetensors"
    options = ZeroShotOptions(model=str(models / "clip"), weights=str(file))
    plain = ZeroShotOptions(model=str(models / "clip"))
    assert torch.equal(make_zero_shot(options, CLASSES)[0].texts, make_zero_shot(plain, CLASSES)[0].texts)


@needs_open_clip
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "ViT-B-61"}, "is not a model of open_clip (did you mean 'ViT-B-16'?)"),
        ({"model": "ViT-B-32"}, "no --weights; give a file, or pretrained weights of ViT-B-32: 'openai'"),
        ({"weights": "opena"}, "--weights 'opena' is not a file; give a file, or pretrained weights"),
        ({"model": "clip", "scores": "sigmoid"}, "was trained with a softmax"),
        ({"model": "clip", "weights": "x.pt"}, "--weights 'x.pt' is not a file; leave it out"),
        ({"prompts": ("a photo",)}, "--prompt 'a photo': write {} once"),
        ({"prompts": ("a {} and {name}",)}, "write {} once"),
        ({"temperature": 0.0}, "--temperature 0 must be above 0"),
    ],
)
def test_wrong_options(models, options, message):
    if options.get("model") == "clip":
        options = {**options, "model": str(models / "clip")}
    with pytest.raises(ConfigError) as error:
        make_zero_shot(ZeroShotOptions(**options), CLASSES)
    assert message in str(error.value)


@needs_open_clip
def test_one_class_has_no_softmax(models):
    with pytest.raises(ConfigError, match="at least 2 classes"):
        make_zero_shot(ZeroShotOptions(model=str(models / "clip")), ClassNames.of(["cat"]))


def test_without_open_clip_the_error_names_the_extra(run, dataset, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    result = run("teach", dataset / "images", "--classes", "red,blue", "--out", tmp_path / "s.parquet")
    assert result.exit_code == 1
    assert "teach needs open_clip: pip install 'fewtags[teach]'." in result.stderr
    assert not (tmp_path / "s.parquet").exists()


def test_a_file_that_train_does_not_read_is_refused(run, dataset):
    result = run("teach", dataset / "images", "--classes", "red,blue", "--out", "s.jsonl")
    assert result.exit_code == 1
    assert "--out s.jsonl: expected a file ending in .parquet or .csv" in result.stderr


def test_classes_from_words_files_and_labels(tmp_path, dataset):
    assert read_classes("cat, traffic  light,cat").ids == ("cat", "traffic light")
    (tmp_path / "classes.txt").write_text("cat\n\ndog, black\n")
    assert read_classes(str(tmp_path / "classes.txt")).ids == ("cat", "dog, black")
    assert read_classes(str(dataset / "train.parquet")).ids == ("red", "green", "blue")
    for wrong, message in (
        (" , ", "names no class"),
        ("tags.csv", "does not exist"),
        ("some/folder", "does not exist"),
    ):
        with pytest.raises(DataError, match=message):
            read_classes(wrong)


def test_display_names_come_from_a_file(tmp_path):
    (tmp_path / "names.csv").write_text("id,name\nn01,tabby cat\n")
    found = with_names(ClassNames.of(["n01", "n02"]), tmp_path / "names.csv")
    assert (found.ids, found.names) == (("n01", "n02"), ("tabby cat", "n02"))
    with pytest.raises(DataError, match="none of its ids is a class"):
        with_names(ClassNames.of(["cat"]), tmp_path / "names.csv")
