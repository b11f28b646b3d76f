"""A backbone leaves for other libraries and does there what it did here."""

import pickle
import re

import pytest
import timm
import torch
import torchvision
from safetensors import safe_open
from safetensors.torch import load_file

from fewtags.engine.encoder_file import EncoderInfo, load_encoder, read_encoder_info, save_encoder
from fewtags.errors import CheckpointError, ConfigError
from fewtags.export.backbone import as_format, detectron2_tensors, export_backbone
from fewtags.nets.backbones import create_backbone
from fewtags.nets.encoder import create_encoder, pooled

SIZE = 64


def encoder_of(backbone):
    encoder = create_encoder(backbone, weights="none", size=SIZE, seed=3).eval()
    pre = encoder.preprocessing
    return encoder, EncoderInfo(
        backbone=backbone,
        size=SIZE,
        mean=pre.mean,
        std=pre.std,
        method={"name": "moco"},
        images=10,
        epochs=2,
        version="0",
    )


def images():
    return torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_timm_gets_the_same_features(tmp_path):
    encoder, info = encoder_of("resnet18")
    text = export_backbone(encoder, info, tmp_path / "a.safetensors", "timm")
    assert text == f'timm.create_model("resnet18", num_classes=0), then load_state_dict of {tmp_path / "a.safetensors"}'
    model = timm.create_model("resnet18", num_classes=0).eval()
    model.load_state_dict(load_file(tmp_path / "a.safetensors"))
    torch.testing.assert_close(model(images()), pooled(encoder(images())[0]), rtol=1e-5, atol=1e-5)
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.metadata()["architecture"] == "resnet18"


@torch.no_grad()
@pytest.mark.parametrize(("ours", "theirs"), [("resnet18", "resnet18"), ("mobilenetv2_100", "mobilenet_v2")])
def test_torchvision_gets_the_same_features(tmp_path, ours, theirs):
    encoder, info = encoder_of(ours)
    text = export_backbone(encoder, info, tmp_path / "a.safetensors", "torchvision")
    assert text.startswith(f"torchvision.models.{theirs}()")
    model = torchvision.models.get_model(theirs, weights=None).eval()
    missing, unexpected = model.load_state_dict(load_file(tmp_path / "a.safetensors"), strict=False)
    assert all(name.startswith(("fc.", "classifier.")) or name.endswith("tracked") for name in missing)
    assert not unexpected
    if ours == "resnet18":
        model.fc = torch.nn.Identity()
        found = model(images())
    else:
        found = model.features(images()).mean((2, 3))
    torch.testing.assert_close(found, pooled(encoder(images())[0]), rtol=1e-4, atol=1e-4)


def test_detectron2_gets_its_own_names(tmp_path):
    """Written down from detectron2's ResNet: stem, res2 to res5, norms inside the convolutions, shortcuts."""
    encoder, info = encoder_of("resnet18")
    export_backbone(encoder, info, tmp_path / "a.pkl", "detectron2")
    content = pickle.loads((tmp_path / "a.pkl").read_bytes())
    assert content["matching_heuristics"] is True
    assert content["__author__"] == "fewtags"
    names = set(content["model"])
    assert {"stem.conv1.weight", "stem.conv1.norm.running_var", "res2.0.conv1.weight"} < names
    assert {"res3.0.shortcut.weight", "res3.0.shortcut.norm.bias", "res5.1.conv2.norm.weight"} < names
    assert not any("bn" in name or "layer" in name or "downsample" in name for name in names)
    kept = encoder.backbone.state_dict()["layer2.0.downsample.0.weight"]
    assert torch.equal(torch.from_numpy(content["model"]["res3.0.shortcut.weight"]), kept)
    assert len(names) == sum(not name.endswith("tracked") for name in encoder.backbone.state_dict())


def test_architectures_of_no_other_library_are_refused(tmp_path):
    encoder, info = encoder_of("test_resnet")
    with pytest.raises(ConfigError, match=r"^torchvision has no test_resnet.*; use --format timm\.$"):
        export_backbone(encoder, info, tmp_path / "a.safetensors", "torchvision")
    with pytest.raises(ConfigError, match=r"^detectron2's ResNets are resnet18, 34, 50, 101 and 152, not test_resnet"):
        export_backbone(encoder, info, tmp_path / "a.pkl", "detectron2")
    with pytest.raises(ConfigError, match=r"a\.pt: timm weights need a file that ends in \.safetensors; choose"):
        export_backbone(encoder, info, tmp_path / "a.pt", "timm")
    with pytest.raises(ConfigError, match=r"--format tim: expected one of timm, .* \(did you mean 'timm'\?\)"):
        as_format("tim")
    with pytest.raises(ConfigError):
        detectron2_tensors({}, "resnet10t")


# Coming in


def backbone_of(tmp_path, content, name="resnet18"):
    torch.save(content, tmp_path / "in.pth")
    return create_backbone(name, weights=tmp_path / "in.pth", size=SIZE)


def trained():
    """A torchvision ResNet-18, as MoCo's and lightly's scripts train it."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return torchvision.models.resnet18(weights=None)


def test_a_checkpoint_of_mocos_code_comes_in(tmp_path):
    """`module.encoder_q.` is what was trained; the projector in fc, the key encoder and the queue are set aside."""
    model = trained()
    model.fc = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 128))
    state = {f"module.encoder_q.{k}": v for k, v in model.state_dict().items()}
    state |= {f"module.encoder_k.{k}": torch.zeros_like(v) for k, v in model.state_dict().items()}
    state |= {"module.queue": torch.zeros(128, 64), "module.queue_ptr": torch.zeros(1, dtype=torch.long)}
    made = backbone_of(tmp_path, {"epoch": 200, "arch": "resnet18", "state_dict": state, "optimizer": {}})
    assert torch.equal(made.module.state_dict()["layer4.1.conv2.weight"], model.layer4[1].conv2.weight)
    aside = set(made.origin.dropped)
    assert {"queue", "queue_ptr", "encoder_q.fc.2.weight", "encoder_k.conv1.weight"} < aside
    assert not any(name.startswith("encoder_q.layer") for name in aside)


def test_a_checkpoint_of_lightly_comes_in(tmp_path):
    """Its examples keep `backbone = nn.Sequential(*list(resnet.children())[:-1])`: numbers for names, in order."""
    model = trained()
    inner = torch.nn.Sequential(*list(model.children())[:-1])
    state = {f"backbone.{k}": v for k, v in inner.state_dict().items()}
    state |= {f"backbone_momentum.{k}": torch.zeros_like(v) for k, v in inner.state_dict().items()}
    state |= {"projection_head.layers.0.weight": torch.zeros(512, 512)}
    made = backbone_of(tmp_path, {"state_dict": state})
    assert torch.equal(made.module.state_dict()["layer4.1.conv2.weight"], model.layer4[1].conv2.weight)
    assert made.origin.matched == "order"
    assert "projection_head.layers.0.weight" in made.origin.dropped
    assert "backbone_momentum.0.weight" in made.origin.dropped


def test_densecls_pairs_come_in(tmp_path):
    """`encoder_q` is (backbone, neck) there: `encoder_q.0.` is the backbone."""
    model = trained()
    model.fc = torch.nn.Identity()
    state = {f"encoder_q.0.{k}": v for k, v in model.state_dict().items()}
    state |= {"encoder_q.1.mlp.0.weight": torch.zeros(2, 2), "queue2": torch.zeros(2, 2)}
    made = backbone_of(tmp_path, {"state_dict": state})
    assert torch.equal(made.module.state_dict()["conv1.weight"], model.conv1.weight)
    assert set(made.origin.dropped) == {"encoder_q.1.mlp.0.weight", "queue2"}


# Our own file


@torch.no_grad()
def test_an_encoder_file_gives_back_the_encoder_and_starts_training(tmp_path):
    encoder, info = encoder_of("resnet18")
    save_encoder(tmp_path / "encoder.safetensors", encoder, info)
    again, text = load_encoder(tmp_path)
    assert text == info
    assert torch.equal(again(images())[0], encoder(images())[0])
    started = create_backbone("resnet18", weights=tmp_path / "encoder.safetensors", size=SIZE)
    assert torch.equal(started.module.state_dict()["conv1.weight"], encoder.backbone.state_dict()["conv1.weight"])
    assert started.origin.matched == "names"


def test_files_that_are_not_encoders_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"does not exist; give the folder of a pretraining run or its encoder"):
        read_encoder_info(tmp_path / "encoder.safetensors")
    (tmp_path / "pretrain.toml").write_text("")
    with pytest.raises(CheckpointError, match=re.escape(f"finish it with `fewtags resume {tmp_path}`.")):
        read_encoder_info(tmp_path / "encoder.safetensors")
    encoder, info = encoder_of("resnet18")
    export_backbone(encoder, info, tmp_path / "a.safetensors", "timm")
    with pytest.raises(CheckpointError, match="also give its architecture: backbone='NAME'"):
        read_encoder_info(tmp_path / "a.safetensors")
