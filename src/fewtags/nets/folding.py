"""BatchNorm folded into the convolution before it, for nets that only run forward.

In eval mode BatchNorm multiplies each channel by a constant and adds another one, so a convolution with other weights
and biases gives the same result in one operation less. Folded are `nn.BatchNorm2d` and timm's `BatchNormAct2d`, whose
activation stays, if they directly follow an `nn.Conv2d` (or one of timm's variants) whose output nothing else uses.
Every other layer stays as it is: BatchNorm before a convolution (DenseNet, ResNet v2) or after a linear layer (LeViT),
and convolutions whose weights are computed in the forward pass.

Names do not say which layers follow each other, and `torch.fx` cannot trace nets whose padding depends on the image
size (all `tf_` nets of timm). So one forward pass records what BatchNorm gets.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, final

import torch.nn.functional as F
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.overrides import TorchFunctionMode

from fewtags.nets.spatial import Trunk, probe

AnyTrunk = TypeVar("AnyTrunk", bound=Trunk)

# What a layer may ask of its input without using the values.
_SHAPES = (Tensor.dim, Tensor.size)


def fold_batchnorm(net: AnyTrunk, size: tuple[int, int]) -> AnyTrunk:
    """Return a copy of a net, in eval mode, with BatchNorm folded into the convolutions of its backbone.

    Outputs differ by rounding, by about 1e-6 of the largest logit in float32. Weights are computed in float64 and
    stored in the type of the convolution. The copy shares all other tensors with `net`, which does not change.

    Args:
        net: a net on any device.
        size: (height, width) of the image of the forward pass that finds the layers.

    Raises:
        ConfigError: the backbone does not support the size.
    """
    folded = _shallow_copy(net).eval()
    convolutions = {id(m.weight): m for m in folded.backbone.modules() if isinstance(m, nn.Conv2d)}
    norms: dict[int, list[tuple[str, nn.BatchNorm2d]]] = {}  # a module can have several names
    for name, module in folded.backbone.named_modules(remove_duplicate=False):
        if type(module) in (nn.BatchNorm2d, BatchNormAct2d) and module.running_mean is not None:
            norms.setdefault(id(module.running_mean), []).append((name, module))
    if not convolutions or not norms:
        return folded
    for weight, mean in _pairs(folded, size):
        if weight in convolutions and mean in norms:
            _fold(convolutions[weight], norms[mean][0][1])
            for name, norm in norms[mean]:
                rest = nn.Sequential(norm.drop, norm.act) if isinstance(norm, BatchNormAct2d) else nn.Identity()
                folded.backbone.set_submodule(name, rest.eval())
    return folded


def _shallow_copy(net: AnyTrunk) -> AnyTrunk:
    """Return a copy of a net with its own modules and parameters, which share their memory with those of the net."""
    shared: dict[int, Any] = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in net.parameters()}
    shared |= {id(buffer): buffer.detach() for buffer in net.buffers()}
    return copy.deepcopy(net, shared)


def _pairs(net: Trunk, size: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the ids of a convolution's weight and of the mean of the only BatchNorm that uses its output, if any."""
    uses = _Uses()

    def run(images: Tensor) -> None:
        with uses:
            net.features(images)

    probe(run, net, size)
    return [*uses.pairs()]


@final
class _Uses(TorchFunctionMode):
    """Records, while it is active, the functions that use the output of a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self._outputs: dict[int, tuple[Tensor, Tensor]] = {}  # kept, so that no other tensor gets the same id
        self._norms: dict[int, Tensor] = {}
        self._uses: Counter[int] = Counter()
        self._calls: Counter[int] = Counter()

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in _SHAPES or (getattr(func, "__name__", "") == "__get__" and not isinstance(result, Tensor)):
            return result
        self._uses.update({id(tensor) for tensor in _tensors((args, kwargs)) if id(tensor) in self._outputs})
        if func is F.conv2d:
            weight = args[1] if len(args) > 1 else kwargs["weight"]
            self._calls[id(weight)] += 1
            self._outputs[id(result)] = result, weight
        elif func is F.batch_norm:
            taken, mean = args[0], args[1]
            self._calls[id(mean)] += 1
            if id(taken) in self._outputs:
                self._norms[id(taken)] = mean
        return result

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield the ids of a convolution's weight and of the mean of the only BatchNorm that uses its output.

        Both are called once, so that no other place of the net changes.
        """
        for output, mean in self._norms.items():
            weight = self._outputs[output][1]
            if self._uses[output] == self._calls[id(weight)] == self._calls[id(mean)] == 1:
                yield id(weight), id(mean)


def _tensors(value: object) -> Iterator[Tensor]:
    """Yield the tensors in nested arguments of a function."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _fold(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    """Replace weight and bias of a convolution by those of convolution and BatchNorm."""
    found = (convolution.weight, convolution.bias, norm.running_mean, norm.running_var, norm.weight, norm.bias)
    weight, bias, mean, variance, scale, shift = (None if t is None else t.detach().double() for t in found)
    assert weight is not None
    assert mean is not None
    assert variance is not None
    both = fuse_conv_bn_weights(weight, bias, mean, variance, norm.eps, scale, shift)
    dtype = convolution.weight.dtype
    convolution.weight, convolution.bias = (nn.Parameter(t.detach().to(dtype), requires_grad=False) for t in both)
