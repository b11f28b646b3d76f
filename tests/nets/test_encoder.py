"""Encoders: several views in one call, features by cell, and their mean."""

import pytest
import torch
from torch import nn

from fewtags.errors import ConfigError
from fewtags.nets.backbones import create_backbone
from fewtags.nets.encoder import Encoder, create_encoder, pooled
from fewtags.nets.weights import fingerprint


def images(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.convolution, self.norm = nn.Conv2d(3, 4, 2, 2), nn.BatchNorm2d(4)

    def forward(self, views):
        return self.norm(self.convolution(views))


def test_every_view_is_normalised_on_its_own():
    """The features of each have the mean 0 and the deviation 1, which those of both together would not."""
    encoder = Encoder(Small(), 4)
    one, two = encoder(images(5, 3, 8, 8), 3 * images(2, 3, 4, 4, seed=1) + 1)
    assert (one.shape, two.shape) == ((5, 4, 4, 4), (2, 4, 2, 2))
    for features in (one, two):
        torch.testing.assert_close(features.mean((0, 2, 3)), torch.zeros(4), rtol=0, atol=1e-5)
        torch.testing.assert_close(features.var((0, 2, 3), correction=0), torch.ones(4), rtol=1e-3, atol=0)
    assert int(encoder.backbone.norm.num_batches_tracked) == 2


def test_layouts_are_brought_into_one():
    """Tokens with one that is no cell, and channels last, of the same 2 x 3 cells."""
    cells = torch.arange(24.0).view(1, 4, 2, 3)

    class Fixed(nn.Module):
        def __init__(self, raw):
            super().__init__()
            self.raw = raw

        def forward(self, views):
            return self.raw

    tokens = torch.cat([torch.full((1, 1, 4), 99.0), cells.flatten(2).transpose(1, 2)], 1)
    for raw, layout, prefix in ((cells, "NCHW", 0), (cells.permute(0, 2, 3, 1), "NHWC", 0), (tokens, "NLC", 1)):
        encoder = Encoder(Fixed(raw), 4, layout=layout, prefix_tokens=prefix)
        assert torch.equal(encoder(images(1, 3, 32, 48))[0], cells)


def test_what_is_frozen_stays_in_eval_mode():
    encoder = Encoder(Small(), 4)
    encoder.backbone.norm.requires_grad_(False)
    encoder.train()
    assert [encoder.backbone.convolution.training, encoder.backbone.norm.training] == [True, False]
    encoder.backbone.norm.requires_grad_(True)
    encoder.batchnorm_eval = True
    assert encoder.train() is encoder
    assert not encoder.backbone.norm.training
    encoder.batchnorm_eval = False
    assert encoder.train().backbone.norm.training
    assert not encoder.train(False).backbone.convolution.training


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_pooled_is_the_mean_over_cells_in_float32_or_better(dtype):
    """1 and 512 zeros less than one each would be lost in bfloat16: (257 * 1 + 255 * .5) / 512 = .751."""
    values = torch.full((512,), 0.5)
    values[:257] = 1
    features = values.view(1, 1, 16, 32).expand(2, 3, 16, 32).to(dtype)
    mean = pooled(features)
    assert mean.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(mean, torch.full((2, 3), 384.5 / 512, dtype=mean.dtype), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_an_encoder_is_the_backbone_that_timm_makes(name):
    encoder = create_encoder(name, weights="none", size=64, seed=5).eval()
    made = create_backbone(name, weights="none", size=64, seed=5)
    assert fingerprint(encoder.backbone.state_dict()) == fingerprint(made.module.state_dict())
    assert (encoder.features_dim, encoder.layout, encoder.prefix_tokens) == (
        made.features_dim,
        made.layout,
        made.prefix_tokens,
    )
    assert encoder.origin == made.origin
    assert encoder.preprocessing == made.preprocessing
    (features,) = encoder(images(2, 3, 64, 64))
    assert tuple(features.shape) == (2, encoder.features_dim, *encoder.grid((64, 64)))
    other = create_encoder(name, weights="none", size=64, seed=6)
    assert fingerprint(other.backbone.state_dict()) != fingerprint(encoder.backbone.state_dict())


def test_a_grid_leaves_no_trace():
    encoder = create_encoder("test_resnet", weights="none", size=64)
    before = fingerprint(encoder.state_dict())
    encoder.train()
    encoder.grid((96, 64))
    assert encoder.training
    assert fingerprint(encoder.state_dict()) == before


def test_a_size_that_the_backbone_cannot_take():
    encoder = create_encoder("test_vit", weights="none", size=160)
    with pytest.raises(ConfigError, match="65"):
        encoder.grid((65, 65))
