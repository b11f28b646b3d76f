"""What tests of self-supervised objectives share: a tiny encoder, batches of two views, heads written out."""

import numpy as np
import torch
from torch import nn

from fewtags.labels import Batch, LabelMatrix, SecondView
from fewtags.objectives.base import Problem

SIDE, CHANNELS = 4, 5


class Cells(nn.Module):
    """Images of 4 x 4 pixels to features [b, 5, 2, 2] of one view or several; perhaps with BatchNorm."""

    def __init__(self, seed=0, *, batchnorm=False, dtype=torch.float64):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layers = nn.Sequential(
                nn.Conv2d(3, CHANNELS, 2, 2), nn.BatchNorm2d(CHANNELS) if batchnorm else nn.Identity(), nn.ReLU()
            )
        self.to(dtype)

    def forward(self, *views):
        return tuple(self.layers(view) for view in views)


def problem(samples=40, **others):
    unlabelled = LabelMatrix.from_dense(np.zeros((samples, 0), np.int8))
    return Problem(labels=unlabelled, grid=(2, 2), **{"features_dim": CHANNELS, "seed": 3, **others})


def batch_of(index, seed, dtype=torch.float64):
    """Images that follow from their number, and two views of each: the image and a little noise."""
    index = torch.as_tensor(index)
    images = np.stack([np.random.default_rng([7, i]).normal(size=(3, SIDE, SIDE)) for i in index.tolist()])
    noise = np.random.default_rng([8, seed]).normal(size=(2, *images.shape))
    one, two = torch.from_numpy(images + 0.3 * noise).to(dtype)
    views = torch.zeros(len(index), 2, 3)
    return Batch(
        images=one,
        labels=torch.zeros(len(index), 0, dtype=torch.int8),
        index=index,
        views=views,
        places=None,
        second_view=SecondView(two, views),
    )


def in_double(parts):
    """The modules among the parts, with weights in double precision."""
    return [part.double() for part in parts.values() if isinstance(part, nn.Module)]


def layer_by_layer(mlp, rows):
    """What an MLP in training mode makes of rows, with its layers written out."""
    for layer in mlp.layers:
        if isinstance(layer, nn.Linear):
            rows = rows @ layer.weight.T + (0 if layer.bias is None else layer.bias)
        elif isinstance(layer, nn.BatchNorm1d):
            centred = rows - rows.mean(0)
            rows = centred / (centred.square().mean(0) + layer.eps).sqrt()
            rows = rows * layer.weight + layer.bias if layer.affine else rows
        else:
            assert isinstance(layer, nn.ReLU)
            rows = rows.clamp(min=0)
    return rows


def lengths_one(rows, dim=1):
    return rows / rows.square().sum(dim, keepdim=True).sqrt()


def image_features(net, images):
    """The mean over the grid of what a `Cells` without BatchNorm gives, cell by cell."""
    conv, mean = net.layers[0], 0
    for y in (0, 2):
        for x in (0, 2):
            patch = images[:, :, y : y + 2, x : x + 2].flatten(1)
            mean = mean + (patch @ conv.weight.flatten(1).T + conv.bias).clamp(min=0) / 4
    return mean


def cell_features(net, images):
    """The same by cell, [b, d, 4]."""
    conv = net.layers[0]
    cells = [images[:, :, y : y + 2, x : x + 2].flatten(1) for y in (0, 2) for x in (0, 2)]
    return torch.stack([(c @ conv.weight.flatten(1).T + conv.bias).clamp(min=0) for c in cells], 2)


def assert_gradients(out, expected, *modules):
    """Loss and gradients of a step are those of another loss, of the same weights, which are found by autograd."""
    weights = [p for module in modules for p in module.parameters()]
    by_hand = torch.autograd.grad(expected, weights)
    mine = torch.autograd.grad(out.loss, weights)
    torch.testing.assert_close(out.loss, expected, rtol=1e-6, atol=1e-7)
    assert all(gradient.abs().sum() > 0 for gradient in by_hand)
    for one, other in zip(mine, by_hand, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
