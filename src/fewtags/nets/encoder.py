"""A backbone without a classifier, for training that knows no classes."""

from __future__ import annotations

from pathlib import Path
from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from fewtags.nets.backbones import create_backbone
from fewtags.nets.spatial import Layout, Preprocessing, hold_frozen, probe, spatial_features
from fewtags.nets.weights import Origin


@final
class Encoder(nn.Module):
    """Images to features per cell; several views in one call.

    Each view goes through the backbone on its own, so that BatchNorm sees one view at a time, but
    DistributedDataParallel sees one forward pass (between two of them it would change buffers that the backward pass
    of the first still needs).

    Args:
        backbone: a module from images [b, 3, H, W] to features before pooling, in `layout`.
        features_dim: d, channels of its features.
        layout: of what the backbone returns, see `SpatialNet`.
        prefix_tokens: how many leading tokens are no cells.
        preprocessing: how the images must be normalised.
        origin: where the weights came from, for the run record.
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
        super().__init__()
        self.backbone = backbone
        self.features_dim = features_dim
        self.layout: Layout = layout
        self.prefix_tokens = prefix_tokens
        self.preprocessing = preprocessing or Preprocessing()
        self.origin = origin
        self.batchnorm_eval = False

    def forward(self, *views: Float[Tensor, "_ 3 _ _"]) -> tuple[Tensor, ...]:
        """Features [b, d, h, w] of every view."""
        return tuple(self.features(view) for view in views)

    def features(self, images: Float[Tensor, "b 3 H W"]) -> Float[Tensor, "b d h w"]:
        """Features of one view."""
        size = (images.shape[2], images.shape[3])
        return spatial_features(self.backbone(images), self.layout, size, self.prefix_tokens)

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """(height, width) of the features for images of `size`; see `SpatialNet.grid`.

        Raises:
            ConfigError: the backbone cannot take images of this size.
        """
        features = probe(self.features, self, size)
        return features.shape[2], features.shape[3]

    def train(self, mode: bool = True) -> Encoder:
        """Put what is trained into training mode; what is frozen stays in eval mode."""
        super().train(mode)
        if mode:
            hold_frozen(self, batchnorm=self.batchnorm_eval)
        return self


def pooled(features: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d"]:
    """The image's feature vector, g of MLS (ICCV 2023), eq. 4: the mean over the grid, float32 or better."""
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
    """An `Encoder` from a timm architecture; the arguments are those of `create_backbone`.

    Raises:
        ConfigError: see `create_backbone`.
        CheckpointError: see `create_backbone`.
    """
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
