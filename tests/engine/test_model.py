"""The model file: everything comes back, and nothing else is taken for one."""

import errno
import json
import os
import stat
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import save_file

from fewtags.engine.model import ModelInfo, load_model, make_policy, read_info, save_model
from fewtags.engine.places import model_path
from fewtags.errors import CheckpointError
from fewtags.nets.backbones import create_net
from fewtags.nets.pool import Pool
from fewtags.nets.spatial import HeadPlan
from fewtags.photos.augment import ResizedCrop, SquareCrop, WholeImage

INFO = ModelInfo(
    backbone="test_resnet",
    output_stride=0,
    head=HeadPlan(),
    size=64,
    policy="coco",
    class_ids=("n01", "n02", "größe"),
    class_names=("鳥", "crane 🏗", "crane 🏗"),
    thresholds=(0.1 + 0.2, 1 / 3, 0.5),
    threshold_rules=("class_f1", "pooled_f1", "half"),
    mean=(0.1, 0.2, 0.3),
    std=(0.9, 0.8, 0.7),
    method={"name": "expected_negative", "scl_weight": 0.1, "class_prior": [0.1, 0.2, 0.3]},
    selection="epoch 2 of 3, the best by validation mAP",
    version="0.1.0",
)


@pytest.fixture(scope="module")
def net():
    return create_net("test_resnet", 3, weights="none", size=64, seed=4)


@pytest.fixture
def path(net, tmp_path):
    save_model(tmp_path / "model.safetensors", net, INFO)
    return tmp_path / "model.safetensors"


def test_everything_comes_back(net, path):
    loaded, info = load_model(path)
    assert info == INFO
    assert read_info(path) == INFO
    assert info.classes.display == ("鳥", "crane 🏗 [n02]", "crane 🏗 [größe]")
    assert not loaded.training
    assert (loaded.preprocessing.mean, loaded.preprocessing.std) == (INFO.mean, INFO.std)
    for key, value in net.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value), key
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(loaded(images).maps, net.eval()(images).maps)


def test_a_run_folder_or_its_file(path):
    assert model_path(path.parent) == model_path(str(path)) == path
    assert load_model(path.parent)[1] == INFO


def test_the_output_stride_is_part_of_the_model(tmp_path):
    net = create_net("test_resnet", 3, weights="none", size=64, output_stride=16)
    save_model(tmp_path / "m.safetensors", net, replace(INFO, output_stride=16))
    assert load_model(tmp_path / "m.safetensors")[0].grid((64, 64)) == net.grid((64, 64)) == (4, 4)


def test_the_head_is_part_of_the_model(tmp_path):
    plan = HeadPlan(3, Pool("csra", 2.0, 0.3))
    net = create_net("test_resnet", 3, weights="none", size=64, head=plan).eval()
    save_model(tmp_path / "m.safetensors", net, replace(INFO, head=plan))
    loaded, info = load_model(tmp_path / "m.safetensors")
    assert loaded.head.plan == info.head == plan
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(loaded(images).logits, net(images).logits)


def test_the_policies_of_a_name():
    assert make_policy("coco", 64) == SquareCrop(64, (0.25, 1.0))
    assert make_policy("coco", 64, 0.5, False) == SquareCrop(64, (0.5, 1.0), False)
    assert make_policy("imagenet", 64) == ResizedCrop(64, (0.08, 1.0))
    assert make_policy("imagenet", 64, 0.5, False) == ResizedCrop(64, (0.5, 1.0), flip=False)
    assert make_policy("none", 64) == WholeImage(64)


def refusal(path):
    with pytest.raises(CheckpointError) as error:
        load_model(path)
    return str(error.value)


def with_metadata(path, metadata):
    save_file({"x": torch.zeros(1)}, path, metadata)
    return refusal(path)


def test_what_is_no_model(tmp_path, path):
    nowhere = tmp_path / "no" / "model.safetensors"
    assert refusal(nowhere) == f"{nowhere} does not exist; give a run folder or its model.safetensors."
    empty = tmp_path / "empty"
    empty.mkdir()
    assert refusal(empty).startswith(f"{empty / 'model.safetensors'} does not exist; give a run folder")
    text = tmp_path / "a.safetensors"
    text.write_text("weights")
    assert refusal(text).startswith(f"{text} is not a safetensors file (")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(path.read_bytes()[:-100])
    assert refusal(cut).startswith(f"{cut} is not a safetensors file (")
    other = tmp_path / "b.safetensors"
    message = f"{other} has weights but no fewtags metadata; use the model.safetensors of a run."
    assert with_metadata(other, None) == with_metadata(other, {"format": "pt"}) == message


def test_a_run_that_is_not_finished(tmp_path):
    (tmp_path / "run.toml").touch()
    message = (
        f"{tmp_path} is a run that is not finished, so it has no model yet; finish it with `fewtags resume {tmp_path}`."
    )
    assert refusal(tmp_path) == refusal(tmp_path / "model.safetensors") == message
    other = tmp_path / "other.safetensors"
    assert refusal(other) == f"{other} does not exist; give a run folder or its model.safetensors."


def test_a_model_that_may_not_be_read(path, monkeypatch):
    """Who runs the tests as root may read everything, so the system's answer is given here."""
    plain = type(path).open

    def refusing(self, *arguments, **options):
        if self == path:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return plain(self, *arguments, **options)

    monkeypatch.setattr(type(path), "open", refusing)
    assert refusal(path) == f"{path} cannot be read: Permission denied; ask its owner for permission."


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_the_file_may_be_read_by_whom_the_umask_lets(net, tmp_path, mask):
    before = os.umask(mask)
    try:
        save_model(tmp_path / "m.safetensors", net, INFO)
        save_model(tmp_path / "m.safetensors", net, INFO)  # over one that is there
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "m.safetensors").stat().st_mode) == 0o666 & ~mask
    assert [file.name for file in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_model_that_cannot_be_written_leaves_the_old_one(net, path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("fewtags.engine.tensor_files._save", fail)
    with pytest.raises(OSError, match="disk full"):
        save_model(path, net, replace(INFO, size=96))
    assert read_info(path) == INFO
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_damaged_and_foreign_metadata(tmp_path):
    file = tmp_path / "a.safetensors"
    good = {"format": 1, **asdict(INFO)}
    assert with_metadata(file, {"fewtags": "{"}).startswith(f"{file} has damaged metadata: Invalid JSON")
    assert with_metadata(file, {"fewtags": json.dumps(good | {"format": 2})}) == (
        f"{file} was written by another version of fewtags (0.1.0)."
    )
    bad = json.dumps(good | {"size": "large"})
    assert "has damaged metadata: Input should be a valid integer" in with_metadata(file, {"fewtags": bad})
    for key, value in (("std", [1, 0, 1]), ("mean", [0, float("nan"), 0]), ("thresholds", [float("inf")] * 9)):
        assert with_metadata(file, {"fewtags": json.dumps(good | {key: value})}) == (
            f"{file} has damaged metadata: mean, std and thresholds must be numbers, and std above 0. Train it again."
        )
    short = json.dumps(good | {"thresholds": [0.5]})
    assert with_metadata(file, {"fewtags": short}) == (
        f"{file} has damaged metadata: the numbers of classes and thresholds differ. Train it again."
    )


@pytest.mark.parametrize("place", ["weights", "thresholds"])
def test_a_changed_model_is_damaged(net, path, place):
    """A flipped bit of a weight still makes a number, and another threshold other tags."""
    content = path.read_bytes()
    if place == "weights":
        changed = content[:-1] + bytes([content[-1] ^ 1])
    else:
        at = content.index(b"thresholds") + content[content.index(b"thresholds") :].index(b"0.") + 2
        changed = content[:at] + (b"1" if content[at : at + 1] != b"1" else b"2") + content[at + 1 :]
    path.write_bytes(changed)
    assert refusal(path) == (
        f"{path} is damaged: its content has changed since it was written; restore it, or train again."
    )


def test_weights_of_another_backbone(net, tmp_path):
    file = tmp_path / "a.safetensors"
    save_model(file, net, replace(INFO, backbone="test_vit", size=160))
    assert refusal(file).startswith(f"{file} does not fit backbone test_vit: ")
