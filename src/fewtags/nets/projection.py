"""Heads of self-supervised methods: projectors, predictors, and moving averages of modules."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


@final
class MLP(nn.Module):
    """Linear layers with ReLU between them; in float32 even inside autocast (float64 stays).

    `normalised` adds BatchNorm after each hidden layer, as in SimSiam and BYOL (MoCo-v2 has none), `normalised_output`
    BatchNorm without weight and bias after the last layer. Initial weights depend on the seed only.
    """

    def __init__(
        self, widths: tuple[int, ...], *, normalised: bool = False, normalised_output: bool = False, seed: int = 0
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            for i, (narrow, wide) in enumerate(pairwise(widths)):
                last = i == len(widths) - 2
                follows = normalised_output if last else normalised
                layers.append(nn.Linear(narrow, wide, bias=not follows))
                if follows:
                    layers.append(nn.BatchNorm1d(wide, affine=not last))
                if not last:
                    layers.append(nn.ReLU())
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Float[Tensor, "b d"]) -> Float[Tensor, "b o"]:
        """The projection, not normalised to unit length."""
        with torch.autocast(features.device.type, enabled=False):
            out: Tensor = self.layers(features.to(torch.promote_types(features.dtype, torch.float32)))
            return out


@final
class Follower(nn.Module):
    """Copies of named modules, whose parameters are a moving average of the originals' and get no gradient.

    MoCo's key encoder, BYOL's target. The copies have their own buffers. In training mode, as in MoCo's code, their
    BatchNorm statistics come from their own inputs (`take_modes` copies the mode of the originals).
    """

    def __init__(self, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, copy.deepcopy(module).requires_grad_(False))

    def take_modes(self, *originals: nn.Module) -> None:
        """Copy training or eval mode of each module from the originals, which may be inside wrappers."""
        copies = [[*module.modules()] for module in self.children()]
        for mine, original in zip(copies, originals, strict=True):
            for module, theirs in zip(mine, [*original.modules()][-len(mine) :], strict=True):
                module.training = theirs.training

    @torch.no_grad()
    def follow(self, originals: Iterable[nn.Parameter], momentum: float) -> None:
        """Update the copies by the originals' parameters: theta' <- m theta' + (1 - m) theta, with m = `momentum`."""
        mine: list[Tensor] = list(self.parameters())
        theirs: list[Tensor] = list(originals)
        assert len(mine) == len(theirs), (len(mine), len(theirs))
        # Not lerp: theta' + (1 - m) (theta - theta') rounds differently from the published code.
        torch._foreach_mul_(mine, momentum)
        torch._foreach_add_(mine, theirs, alpha=1.0 - momentum)


def parameters_of(*modules: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of several modules, one after the other."""
    for module in modules:
        yield from module.parameters()


def unit(vectors: Float[Tensor, "*shape"], dim: int = -1) -> Float[Tensor, "*shape"]:
    """Vectors of length 1 along `dim`, float32 or better."""
    with torch.autocast(vectors.device.type, enabled=False):
        return F.normalize(vectors.to(torch.promote_types(vectors.dtype, torch.float32)), dim=dim)
