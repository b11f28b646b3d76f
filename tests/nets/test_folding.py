"""BatchNorm in convolutions: by hand, the same outputs for nets of timm, and what may not be folded."""

import pytest
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import nn

from fewtags.nets.backbones import create_net
from fewtags.nets.encoder import Encoder
from fewtags.nets.folding import fold_batchnorm
from fewtags.nets.precision import mixed_precision

SIZE = (64, 64)
NETS = {  # name: BatchNorm layers before and after
    "test_resnet": (15, 0),
    "test_efficientnet": (13, 0),  # BatchNormAct2d
    "tf_efficientnet_lite0": (49, 0),  # BatchNormAct2d; padding that depends on the size
    "dpn48b": (54, 21),  # the others follow a concatenation
    "test_vit": (0, 0),
}


def norms(net: nn.Module) -> list[nn.BatchNorm2d]:
    return [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]


def shake(net: nn.Module) -> nn.Module:
    """Give every BatchNorm statistics and weights as after training; new ones change nothing."""
    generator = torch.Generator().manual_seed(0)
    for norm in norms(net):
        norm.running_mean.normal_(0, 0.1, generator=generator)
        norm.running_var.uniform_(0.5, 1.5, generator=generator)
        if norm.affine:
            norm.weight.data.uniform_(0.5, 1.5, generator=generator)
            norm.bias.data.normal_(0, 0.1, generator=generator)
    return net.eval()


def images(count: int = 2, side: int = 64) -> torch.Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


def encoder(backbone: nn.Module) -> Encoder:
    return Encoder(backbone, 4).eval()


def assert_close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-5) -> None:
    assert float((found - wanted).abs().max()) <= tolerance * float(wanted.abs().max())


def test_by_hand():
    """w = 3, b = 1; mean 2, variance 4, eps 0, scale 6, shift 5: (3x + 1 - 2) / 2 * 6 + 5 = 9x + 2."""
    convolution, norm = nn.Conv2d(3, 1, 1, groups=1), nn.BatchNorm2d(1, eps=0.0)
    for tensor, value in ((convolution.weight, 3.0), (convolution.bias, 1.0), (norm.weight, 6.0), (norm.bias, 5.0)):
        tensor.data.fill_(value)
    norm.running_mean.fill_(2.0)
    norm.running_var.fill_(4.0)
    folded = fold_batchnorm(encoder(nn.Sequential(convolution, norm, nn.ReLU())), SIZE)
    assert folded.backbone[0].weight.flatten().tolist() == [9.0] * 3
    assert folded.backbone[0].bias.tolist() == [2.0]
    assert [type(module) for module in folded.backbone] == [nn.Conv2d, nn.Identity, nn.ReLU]
    assert convolution.weight.flatten().tolist() == [3.0] * 3


@pytest.mark.parametrize("name", NETS)
@torch.no_grad()
def test_same_logits_and_maps(name):
    """Also for other image sizes than that of the first pass; the net itself and its state dict stay as they are."""
    net = shake(create_net(name, 5, weights="none", size=64 if name != "test_vit" else 160))
    side = 64 if name != "test_vit" else 160
    before = {key: value.clone() for key, value in net.state_dict().items()}
    folded = fold_batchnorm(net, (side, side))
    assert (len(norms(net)), len(norms(folded))) == NETS[name]
    for x in (images(side=side), images(1, side=96)) if name != "test_vit" else (images(side=side),):
        wanted, found = net(x), folded(x)
        assert_close(found.maps, wanted.maps)
        assert_close(found.logits, wanted.logits)
        assert_close(folded.predict_logits(x), net.predict_logits(x))
    after = net.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert not any(module.training for module in folded.modules())


@torch.no_grad()
def test_half_precision():
    """In bfloat16, folded weights are as near to float32 as the others are; nets in half precision keep their type."""
    net = shake(create_net("test_efficientnet", 5, weights="none", size=64))
    folded, x = fold_batchnorm(net, SIZE), images(2)
    exact = net.features(x)
    with mixed_precision("cpu", "bf16"):
        errors = [float((n.features(x).float() - exact).abs().mean() / exact.abs().mean()) for n in (folded, net)]
    assert 0 < errors[0] < 1.5 * errors[1] < 0.05
    half = fold_batchnorm(net.bfloat16(), SIZE)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert not norms(half)
    assert float((half.features(x.bfloat16()).float() - exact).abs().mean() / exact.abs().mean()) < 0.05


class _Branches(nn.Module):
    """Convolutions whose output is used in another way, too."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.other = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if self.kind == "two uses":
            return self.norm(y) + y
        if self.kind == "two norms":
            return self.norm(y) + self.other(y)
        if self.kind == "listed":
            return self.norm(y) + torch.cat([y, y], 1)[:, :4]
        if self.kind == "in place":
            y.mul_(2.0)
            return self.norm(y)
        if self.kind == "indexed":
            y[:, 0] = 1.0
            return self.norm(y)
        if self.kind == "shared convolution":
            return self.norm(self.second(y)) + self.second(y)
        if self.kind == "shared norm":
            return self.norm(self.second(self.norm(y)))
        if self.kind == "computed weight":
            return self.norm(nn.functional.conv2d(x, self.first.weight * 2))
        return self.norm(y.relu())


@pytest.mark.parametrize(
    "kind",
    [
        *("two uses", "two norms", "listed", "in place", "indexed"),
        *("shared convolution", "shared norm", "computed weight", "activation between"),
    ],
)
@torch.no_grad()
def test_what_may_not_be_folded(kind):
    net = encoder(shake(_Branches(kind)))
    folded = fold_batchnorm(net, SIZE)
    assert len(norms(folded)) == 2
    assert torch.equal(folded.features(images()), net.features(images()))


class _SecondName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, affine=False)
        self.alias = nn.Sequential(self.norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.alias(self.convolution(x))
        return found


@torch.no_grad()
def test_a_layer_with_two_names_and_no_weights():
    net = encoder(shake(_SecondName()))
    folded = fold_batchnorm(net, SIZE)
    assert not norms(folded)
    assert_close(folded.features(images()), net.features(images()))


def test_activation_and_dropout_of_timm_stay():
    norm = BatchNormAct2d(4, act_layer=nn.SiLU, drop_layer=nn.Dropout)
    net = encoder(shake(nn.Sequential(nn.Conv2d(3, 4, 1), norm)))
    folded = fold_batchnorm(net, SIZE)
    assert [type(module) for module in folded.backbone[1]] == [nn.Dropout, nn.SiLU]
    with torch.no_grad():
        assert_close(folded.features(images()), net.features(images()))


def test_without_statistics_nothing_is_folded():
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    assert len(norms(fold_batchnorm(encoder(nn.Sequential(nn.Conv2d(3, 4, 1), norm)), SIZE))) == 1


def test_shared_memory():
    """Only folded weights are new, so that a large transformer is not in memory twice."""
    net = create_net("test_vit", 5, weights="none", size=160)
    folded = fold_batchnorm(net, (160, 160))
    assert folded is not net
    pairs = zip(net.parameters(), folded.parameters(), strict=True)
    assert all(a is not b and a.data_ptr() == b.data_ptr() for a, b in pairs)
