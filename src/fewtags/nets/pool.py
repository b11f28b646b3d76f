"""Pools from class maps to image logits.

With the mean, small objects get low image scores: an object of 5 of 196 cells at logit 8 on a background of -3 gives
the image a logit of -2.7, a probability of 0.06. The other pools avoid this, but do not commute with the 1x1 head, so
that prediction must compute the maps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from fewtags.errors import ConfigError
from fewtags.text import suggest

PoolName = Literal["mean", "mean_prob", "max", "lse", "softmax", "csra", "boost", "class_token"]


@final
@dataclass(frozen=True)
class Pool:
    """Map logits S of n cells -> one logit per class.

    Attributes:
        name: "mean": mean S (TS-CAM; SCL). "mean_prob": logit of the mean of sigmoid(S), PatchML's equation for the
            image score as printed. "max": the maximum. "lse": log(mean exp(T S)) / T, between the mean (T -> 0) and
            the maximum (T -> infinity). "softmax": the mean weighted by softmax(T S). "csra": mean + `weight` x the
            softmax pool (Zhu and Wu, "Residual Attention", ICCV 2021; unlike theirs, our head is not normalised).
            "boost": the mean of S, in which positive cells count `boost` times (BoostLU; Kim et al., "Bridging the Gap
            between Model Explanations in Partially Annotated Multi-label Classification", CVPR 2023). "class_token": no
            maps; the head classifies the class token of a ViT, which is the net's only cell (plain ViT and DeiT).
        temperature: T of lse, softmax and csra.
        weight: of the softmax term in csra.
        boost: factor of positive cells in boost.

    Raises:
        ConfigError: an unknown name, or a temperature that is not above 0.
    """

    name: PoolName = "mean"
    temperature: float = 1.0
    weight: float = 0.1
    boost: float = 5.0

    def __post_init__(self) -> None:
        if self.name not in (known := get_args(PoolName)):
            raise ConfigError(f"pool must be one of {', '.join(known)}, got {self.name!r}{suggest(self.name, known)}.")
        if not self.temperature > 0:
            raise ConfigError(f"the pool's temperature must be above 0, got {self.temperature}.")
        if not self.boost > 0:
            raise ConfigError(f"the pool's boost must be above 0, got {self.boost}.")

    def __call__(self, maps: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c"]:
        """Image logits.

        >>> maps = torch.tensor([[[[8.0, -3.0, -3.0, -3.0]]]])
        >>> [round(float(Pool(name)(maps)), 2) for name in ("mean", "max", "lse", "softmax")]
        [-0.25, 8.0, 6.61, 8.0]
        """
        cells, hot = maps.flatten(2), self.temperature
        match self.name:
            case "mean" | "class_token":
                # Over both dimensions, so that the sum follows the memory order of the maps.
                return maps.mean((2, 3))
            case "mean_prob":
                return _logit_of_mean(cells)
            case "max":
                return cells.amax(2)
            case "lse":
                return (torch.logsumexp(hot * cells, 2) - math.log(cells.shape[2])) / hot
            case "softmax":
                return _softmax_pool(cells, hot)
            case "csra":
                return cells.mean(2) + self.weight * _softmax_pool(cells, hot)
            case "boost":
                return torch.where(cells > 0, self.boost * cells, cells).mean(2)


def _softmax_pool(cells: Float[Tensor, "b c n"], hot: float) -> Float[Tensor, "b c"]:
    return ((hot * cells).softmax(2) * cells).sum(2)


def _logit_of_mean(cells: Float[Tensor, "b c n"]) -> Float[Tensor, "b c"]:
    """log(mean p) - log(mean (1 - p)), from logarithms, to avoid overflow and keep small values."""
    inside, outside = torch.nn.functional.logsigmoid(cells), torch.nn.functional.logsigmoid(-cells)
    return torch.logsumexp(inside, 2) - torch.logsumexp(outside, 2)
