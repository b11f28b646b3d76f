"""A backbone with a convolutional head *before* pooling, so that every image logit is the pool of a map.

SCL (WACV 2023, section 3.3): Z = conv1x1(features); the image logit is the mean of Z over all cells. A 1x1 convolution
and average pooling commute, so that inference can pool first and skip the maps. TS-CAM (Gao et al., ICCV 2021) uses a
3x3 convolution on the tokens of a ViT instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fewtags.errors import ConfigError
from fewtags.nets.pool import Pool
from fewtags.nets.precision import mixed_precision
from fewtags.nets.weights import Origin

T = TypeVar("T")
Layout = Literal["NCHW", "NHWC", "NLC", "class_token"]


class Output(NamedTuple):
    """Output of a net for a batch.

    Attributes:
        logits: [b, C], pool of `maps`.
        maps: [b, C, h, w], class logits per cell.
        features: [b, d, h, w], input of the head.
    """

    logits: Tensor
    maps: Tensor
    features: Tensor


@final
@dataclass(frozen=True)
class Preprocessing:
    """Normalisation of the images of a backbone: (image - mean) / std per channel of RGB in 0..1."""

    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)


@final
@dataclass(frozen=True)
class HeadPlan:
    """The head's convolution size, 1 (a linear classifier of every cell) or 3 (TS-CAM), and pool.

    Raises ConfigError for another kernel, and for a kernel of 3 on the class token.
    """

    kernel: int = 1
    pool: Pool = field(default_factory=Pool)

    def __post_init__(self) -> None:
        if self.kernel not in (1, 3):
            raise ConfigError(f"the head's kernel must be 1 or 3, got {self.kernel}.")
        if self.kernel == 3 and not self.has_maps:
            raise ConfigError("a head on the class token has no neighbouring cells; use model.head_kernel = 1.")

    @property
    def has_maps(self) -> bool:
        """Whether there are class maps; a head on the class token has none."""
        return self.pool.name != "class_token"

    @property
    def commutes(self) -> bool:
        """Whether the pool may be applied before the convolution, so that predictions need no maps."""
        return self.kernel == 1 and self.pool.name in ("mean", "class_token")


@final
class SpatialHead(nn.Module):
    """A convolution to one map per class, and the pool of each map.

    It computes in float32 even inside autocast (float64 stays float64). Initial weights of a 1x1 kernel are N(0, 0.01),
    those of a 3x3 kernel torch's default, as in TS-CAM; biases are zero. `plan` defaults to 1x1 and the mean, and the
    generator to seed 0.
    """

    def __init__(
        self,
        features_dim: int,
        classes: int,
        *,
        plan: HeadPlan | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.plan = plan = plan or HeadPlan()
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        shape = (classes, features_dim) if plan.kernel == 1 else (classes, features_dim, plan.kernel, plan.kernel)
        weight = torch.empty(shape, device=generator.device)
        if plan.kernel == 1:
            weight.normal_(0.0, 0.01, generator=generator)
        else:
            nn.init.kaiming_uniform_(weight, a=5**0.5, generator=generator)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(classes, device=weight.device))

    @property
    def features_dim(self) -> int:
        """Channels of the features, d."""
        return self.weight.shape[1]

    @property
    def classes(self) -> int:
        """Number of classes, C."""
        return self.weight.shape[0]

    def forward(self, features: Float[Tensor, "b d h w"]) -> Output:
        """Maps for every cell, and their pool as logits."""
        with torch.autocast(features.device.type, enabled=False):
            precise, weight, bias = self._precise(features)
            weight = weight if weight.dim() == 4 else weight[:, :, None, None]
            maps = F.conv2d(precise, weight, bias, padding=self.plan.kernel // 2)
            return Output(self.plan.pool(maps), maps, features)

    def predict_logits(self, features: Float[Tensor, "b d h w"]) -> Float[Tensor, "b C"]:
        """The logits of `forward`, up to rounding; without maps if `HeadPlan.commutes`."""
        if not self.plan.commutes:
            output: Output = self(features)
            return output.logits
        with torch.autocast(features.device.type, enabled=False):
            precise, weight, bias = self._precise(features)
            return F.linear(precise.mean((2, 3)), weight, bias)

    def _precise(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dtype = torch.promote_types(features.dtype, torch.float32)
        return features.to(dtype), self.weight.to(dtype), self.bias.to(dtype)

    def extra_repr(self) -> str:
        """The head in `print(net)`."""
        return f"features_dim={self.features_dim}, classes={self.classes}, {self.plan}"


class Trunk(nn.Module):
    """Images to features: a backbone without its pool and classifier; base of `SpatialNet` and `Encoder`.

    Frozen parts (`requires_grad` False, see `freezing.freeze`) stay in eval mode when the net is in training mode, so
    that their features can be cached. With `batchnorm_eval`, every BatchNorm stays in eval mode. The backbone runs in
    the `precision` "no" (float32), "bf16" or "fp16"; in training it is "no", and `engine.autocast` sets another.

    Args:
        backbone: a module from images [b, 3, H, W] to features before pooling, in `layout`.
        layout: of the backbone's output. NLC: tokens in row-major order, after `prefix_tokens` others. "class_token":
            the same tokens, of which only the first, the class token, is used, as a grid of one cell.
        prefix_tokens: number of leading tokens (class, register, distillation) that are not cells.
        preprocessing: normalisation that the images need.
        origin: source of the backbone's weights, for the run record.
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        layout: Layout = "NCHW",
        prefix_tokens: int = 0,
        preprocessing: Preprocessing | None = None,
        origin: Origin | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.layout: Layout = layout
        self.prefix_tokens = prefix_tokens
        self.preprocessing = preprocessing or Preprocessing()
        self.origin = origin
        self.batchnorm_eval = False
        self.precision = "no"

    def features(self, images: Float[Tensor, "b 3 H W"]) -> Float[Tensor, "b d h w"]:
        """Features of normalised images before pooling, for any layout of the backbone."""
        size = (images.shape[2], images.shape[3])
        with mixed_precision(images.device.type, self.precision):
            raw = self.backbone(images)
        return spatial_features(raw, self.layout, size, self.prefix_tokens)

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """(height, width) of the features for images of `size` (height, width), from one image of zeros.

        If the size is not a multiple of the stride, backbones pad or cut at the right and lower edge, so that maps and
        images are not aligned. Raises ConfigError if the backbone does not support the size.
        """
        features = probe(self.features, self, size)
        return features.shape[2], features.shape[3]

    def train(self, mode: bool = True) -> Trunk:
        """Set training mode; frozen parts stay in eval mode."""
        super().train(mode)
        if mode:
            hold_frozen(self, batchnorm=self.batchnorm_eval)
        return self


@final
class SpatialNet(Trunk):
    """Images to logits and class maps: a `Trunk` with a `SpatialHead` for its features."""

    def __init__(
        self,
        backbone: nn.Module,
        head: SpatialHead,
        *,
        layout: Layout = "NCHW",
        prefix_tokens: int = 0,
        preprocessing: Preprocessing | None = None,
        origin: Origin | None = None,
    ) -> None:
        super().__init__(
            backbone, layout=layout, prefix_tokens=prefix_tokens, preprocessing=preprocessing, origin=origin
        )
        self.head = head

    def forward(self, images: Float[Tensor, "b 3 H W"]) -> Output:
        """Logits, maps and features of normalised images."""
        output: Output = self.head(self.features(images))
        return output

    def predict_logits(self, images: Float[Tensor, "b 3 H W"]) -> Float[Tensor, "b C"]:
        """The logits of `forward`, up to rounding; skips the maps if possible."""
        return self.head.predict_logits(self.features(images))


def spatial_features(
    raw: Tensor, layout: Layout, size: tuple[int | Tensor, int | Tensor], prefix_tokens: int = 0
) -> Float[Tensor, "b d h w"]:
    """Convert a backbone's output to [b, d, h, w].

    For NLC, `raw` is [b, prefix_tokens + h w, d], from images of `size` (height, width). Raises ConfigError if the
    tokens do not fill an image of this shape. While torch traces a net, the lengths in `size` are tensors.
    """
    if layout == "NCHW":
        return raw
    if layout == "NHWC":
        return raw.permute(0, 3, 1, 2)
    if layout == "class_token":
        return raw[:, 0, :, None, None]
    rows, columns = _token_grid(int(raw.shape[1]) - prefix_tokens, (int(size[0]), int(size[1])))
    cells: Tensor = raw[:, prefix_tokens:].transpose(1, 2)
    return cells.reshape(*cells.shape[:2], rows, columns)


def refuse_without_maps(head: HeadPlan, what: str, otherwise: str = "") -> None:
    """Raise ConfigError if a head has no class maps, which `what` needs; `otherwise` is another cure."""
    if not head.has_maps:
        raise ConfigError(
            f"{what} needs class maps, and a model with model.pool = class_token has none. Train with model.pool = "
            f"mean{otherwise}."
        )


def probe(function: Callable[[Tensor], T], net: nn.Module, size: tuple[int, int]) -> T:
    """Run `function` on one image of zeros of `size` (height, width), in eval mode; `net` does not change.

    Raises ConfigError if `function` does not support this size.
    """
    reference = next(net.parameters())
    training = {module: module.training for module in net.modules()}
    net.eval()
    try:
        with torch.no_grad():
            return function(torch.zeros(1, 3, *size, device=reference.device, dtype=reference.dtype))
    # Backbones raise different errors for sizes that they do not support.
    except (AssertionError, IndexError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the backbone cannot take images of {size[0]} x {size[1]} pixels: {error}. "
            "Use a height and width that are multiples of its stride (multiples of 32 suit most)."
        ) from error
    finally:
        for module, mode in training.items():
            module.training = mode


def _token_grid(tokens: int, size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of `tokens` square cells that tile an image of `size` (height, width).

    >>> _token_grid(28, (64, 112))
    (4, 7)
    """
    height, width = size
    rows = round((tokens * height / width) ** 0.5)
    columns = tokens // rows if rows else 0
    if rows * columns != tokens or not tokens or rows * width != columns * height:
        raise ConfigError(
            f"{tokens} tokens do not tile an image of {height} x {width} pixels in square cells, so that this backbone "
            "has no spatial map. Choose another, for example resnet50, convnext_tiny or vit_small_patch16_224."
        )
    return rows, columns


def hold_frozen(net: nn.Module, *, batchnorm: bool) -> None:
    """Put frozen parts of a net back into eval mode; with `batchnorm`, every BatchNorm as well."""
    _hold_frozen(net, inherited=True)
    if batchnorm:
        for module in net.modules():
            if isinstance(module, _BatchNorm):
                module.eval()


def _hold_frozen(module: nn.Module, *, inherited: bool) -> None:
    """Put frozen parts of a module back into eval mode.

    A module with parameters is frozen if none of them is trained. A module without (activation, dropout, pool) is
    frozen if any parameter of its parent is, because it may be before the frozen part.
    """
    flags = [parameter.requires_grad for parameter in module.parameters()]
    if not (any(flags) if flags else inherited):
        module.eval()
        return
    whole = all(flags) if flags else inherited
    for child in module.children():
        _hold_frozen(child, inherited=whole)
