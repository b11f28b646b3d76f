"""A backbone without a head, for training without classes."""

from __future__ import annotations

from pathlib import Path
from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from fewtags.nets.backbones import create_backbone
from fewtags.nets.spatial import Layout, Preprocessing, Trunk
from fewtags.nets.weights import Origin


@final
class Encoder(Trunk):
    """Images to features [b, d, h, w], for several views in one call: a `Trunk` with d = `features_dim`.

    Each view goes through the backbone separately, so that BatchNorm uses one view at a time. There is one forward
    pass for DistributedDataParallel, which would change buffers between two passes that the backward pass needs.
    """

    def __init__(
        self,
        backbone: nn.Module,
        features_dim: int,
        *,
        layout: Layout = "NCHW",
        prefix_tokens: int = 0,
        preprocessing: Preprocessing | None = None,
        origin: Origin | None = None,
    ) -> None:
        super().__init__(
            backbone, layout=layout, prefix_tokens=prefix_tokens, preprocessing=preprocessing, origin=origin
        )
        self.features_dim = features_dim

    def forward(self, *views: Float[Tensor, "_ 3 _ _"]) -> tuple[Tensor, ...]:
        """Features [b, d, h, w] of every view."""
        return tuple(self.features(view) for view in views)


def pooled(features: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d"]:
    """The image's feature vector, g of MLS (ICCV 2023), eq. 4: the mean over all cells, float32 or better."""
    return features.float().mean((2, 3)) if features.element_size() < 4 else features.mean((2, 3))


def create_encoder(
    backbone: str,
    *,
    weights: str | Path,
    size: int | tuple[int, int],
    seed: int = 0,
    drop_path: float | None = None,
    output_stride: int | None = None,
) -> Encoder:
    """Make an `Encoder`; arguments and errors are those of `create_backbone`."""
    made = create_backbone(
        backbone, weights=weights, size=size, seed=seed, drop_path=drop_path, output_stride=output_stride
    )
    return Encoder(
        made.module,
        made.features_dim,
        layout=made.layout,
        prefix_tokens=made.prefix_tokens,
        preprocessing=made.preprocessing,
        origin=made.origin,
    )
