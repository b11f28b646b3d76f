"""A trained net as it is used: it only runs forward, so it may compute the same in another way than in training.

BatchNorm is folded into convolutions (`nets.folding`), and on GPUs the backbone runs in mixed precision by the rule of
`train.precision`. Training, cached features of a frozen trunk, export and everything that writes a model file keep the
net of `engine.model.load_model`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from fewtags.config.precision import Precision, choose_precision
from fewtags.engine.model import ModelInfo
from fewtags.engine.onnx_net import OnnxNet, Predictor, load_trained
from fewtags.errors import ConfigError
from fewtags.nets.folding import fold_batchnorm
from fewtags.text import flag


def load_predictor(
    place: Path | str, device: torch.device, precision: Precision | None = None
) -> tuple[Predictor, ModelInfo]:
    """Load a net that only runs forward, and its metadata, from a run folder, its model file, or an ONNX file.

    Raises:
        ConfigError: see `for_inference`; or an ONNX file is given, and onnxruntime is not installed.
        CheckpointError: see `engine.model.load_model` and `engine.onnx_net.load_onnx`.
    """
    net, info = load_trained(place)
    return for_inference(net, info, device, precision), info


def for_inference(
    net: Predictor, info: ModelInfo, device: torch.device, precision: Precision | None = None
) -> Predictor:
    """Return a net that gives the results of `net` faster, up to rounding; `net` does not change.

    Args:
        net: a net in float32, or an ONNX file, which is returned as it is.
        info: its metadata.
        device: where the net will compute.
        precision: of the backbone; see `choose_precision`.

    Raises:
        ConfigError: fp16 on a CPU, or a precision for an ONNX file.
    """
    if isinstance(net, OnnxNet):
        if precision is not None:
            raise ConfigError(
                f"{flag('mixed-precision', precision)} is for run folders: an ONNX file has its own precision; leave "
                "it out."
            )
        return net
    bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
    chosen = choose_precision(precision, device.type, bf16, flag("mixed-precision", "fp16"))
    folded = fold_batchnorm(net, (info.size, info.size))
    folded.precision = chosen
    return folded


@final
class CompiledBackbone(nn.Module):
    """A backbone that `torch.compile` translates for one batch size; smaller batches are filled up.

    Args:
        backbone: maps images [n, 3, h, w] to one tensor with n rows, which do not depend on each other.
        batch: n of all batches.
    """

    def __init__(self, backbone: nn.Module, batch: int) -> None:
        super().__init__()
        self.backbone, self.batch = backbone, batch
        # Freezing packs the weights as oneDNN wants them; the gain on a CPU is nothing without it. On a GPU it would
        # only take memory.
        options: dict[str, Any] | None = (
            {"freezing": True} if next(backbone.parameters()).device.type == "cpu" else None
        )
        self._run = torch.compile(lambda images: backbone(images), dynamic=False, options=options)

    def forward(self, images: Tensor) -> Tensor:
        """The backbone's output for at most `batch` images."""
        n, shape = len(images), (self.batch, *images.shape[1:])
        # A copy in any case: torch compiles again for images of another memory layout, or made outside inference mode.
        full = torch.empty(shape, dtype=images.dtype, device=images.device, memory_format=torch.channels_last)
        full[:n], full[n:] = images, images[:1]
        found: Tensor = self._run(full)
        return found[:n]


def compile_net(net: Predictor, info: ModelInfo, device: torch.device, batch: int) -> tuple[Predictor, str]:
    """Compile the backbone of a net of `for_inference` for batches of photos.

    Returns:
        the net; and why it could not be compiled, or "". It runs without that, too.

    Raises:
        ConfigError: it is an ONNX file.
    """
    if isinstance(net, OnnxNet):
        raise ConfigError(
            f"{flag('compile')} is for run folders: onnxruntime compiles {net.path} itself; leave it out."
        )
    net = net.to(device).eval()
    plain = net.backbone
    net.backbone = CompiledBackbone(plain, batch)
    side = (info.size, info.size)
    try:
        with torch.inference_mode():
            net.predict_logits(torch.zeros((batch, 3, *side), device=device))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # of the compiler: it is missing, or cannot translate this net
        net.backbone = plain
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return net, f"torch.compile does not work here, so the net runs as it is: {reason}"
    return net, ""
