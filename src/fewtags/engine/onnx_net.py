"""A model in an ONNX file, run by onnxruntime with the same photos, thresholds and tables as its run folder.

`fewtags.export.onnx` writes such files.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from fewtags.engine.model import MODEL_FORMAT, ModelInfo, check_info, load_model, read_info
from fewtags.engine.places import model_path
from fewtags.engine.tensor_files import parse_metadata
from fewtags.errors import CheckpointError, ConfigError
from fewtags.nets.spatial import Output, SpatialNet

ENDING = ".onnx"
INPUT = "pixels"
SCORES, MAPS, LOGITS = OUTPUTS = ("scores", "maps", "logits")
KEY = "fewtags"
"""Key of the model's metadata, which are the same JSON as in a model file."""


@final
class OnnxNet(nn.Module):
    """Predicts as a `SpatialNet` does. Its images are pixel values 0..255, because the file normalises them.

    Args:
        path: the file.

    Raises:
        ConfigError: onnxruntime is not installed.
        CheckpointError: the file cannot be read, or is not a model that fewtags exported.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._sessions = {"cpu": open_session(path)}
        names = {output.name for output in self._sessions["cpu"].get_outputs()}
        if missing := [name for name in OUTPUTS if name not in names]:
            raise CheckpointError(
                f"{path} has no output called {missing[0]}; give a file that `fewtags export RUN --to onnx` wrote."
            )

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the file."""
        found: dict[str, str] = self._sessions["cpu"].get_modelmeta().custom_metadata_map
        return found

    def forward(self, images: Tensor) -> Output:
        """Logits, and the logits of the maps, of pixel values [b, 3, H, W]; there are no features."""
        logits, maps = self._run([LOGITS, MAPS], images)
        return Output(logits, maps.logit(), maps[:, :0])

    def predict_logits(self, images: Tensor) -> Tensor:
        """The logits of `forward`; no maps are computed if the pool can come first."""
        return self._run([LOGITS], images)[0]

    def _run(self, names: list[str], images: Tensor) -> list[Tensor]:
        import onnxruntime

        session = self._session(images.device.type)
        # Without this option, outputs that nobody asks for are computed as well.
        options = onnxruntime.RunOptions()
        options.only_execute_path_to_fetches = True
        pixels = np.ascontiguousarray(images.to("cpu", torch.uint8).numpy())
        try:
            found = session.run(names, {INPUT: pixels}, options)
        except Exception as error:  # onnxruntime's errors have no common base
            wanted = " x ".join(map(str, session.get_inputs()[0].shape))
            raise CheckpointError(
                f"{self.path} fails on a batch of {' x '.join(map(str, pixels.shape))} pixels; its input is {wanted}: "
                f"{str(error).strip().splitlines()[0]}"
            ) from error
        return [torch.from_numpy(values).to(images.device) for values in found]

    def _session(self, device: str) -> Any:
        """Return the session for a kind of device; onnxruntime without CUDA computes on the CPU."""
        if device not in self._sessions:
            import onnxruntime

            cuda = "CUDAExecutionProvider"
            usable = device == "cuda" and cuda in onnxruntime.get_available_providers()
            self._sessions[device] = open_session(self.path, [cuda]) if usable else self._sessions["cpu"]
        return self._sessions[device]


Predictor = SpatialNet | OnnxNet
"""A net that predicts: what `predict`, `evaluate` and `heatmap` accept."""


def open_session(path: Path, providers: list[str] | None = None) -> Any:
    """Open an ONNX file with as many threads as torch uses; the CPU does what `providers` cannot do.

    Raises:
        ConfigError: onnxruntime is not installed.
        CheckpointError: the file cannot be read.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise needs_extra(error) from error
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist; write it with `fewtags export RUN --to onnx`.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors only
    try:
        return onnxruntime.InferenceSession(path, options, providers=[*(providers or []), "CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common base
        raise CheckpointError(
            f"{path} cannot be read as ONNX: {str(error).strip().splitlines()[0]}; export it again."
        ) from error


def needs_extra(error: ModuleNotFoundError) -> ConfigError:
    """Return the error for a missing package of the extra `export`."""
    return ConfigError(f"ONNX files need {error.name}, which is not installed: pip install 'fewtags[export]'.")


def load_onnx(path: Path | str) -> tuple[OnnxNet, ModelInfo]:
    """Load an ONNX file, and its metadata with the `mean` and `std` that turn pixels into pixel values 0..255.

    Raises:
        ConfigError: onnxruntime is not installed.
        CheckpointError: the file cannot be read, or is not a model that fewtags exported.
    """
    path = Path(path)
    net = OnnxNet(path)
    text = net.metadata.get(KEY)
    if text is None:
        raise CheckpointError(f"{path} has no fewtags metadata; give a file that `fewtags export RUN --to onnx` wrote.")
    info = parse_metadata(path, text, ModelInfo, MODEL_FORMAT, "Export it again.")
    check_info(path, info, "Export it again.")
    return net, replace(info, mean=(0.0, 0.0, 0.0), std=(1 / 255, 1 / 255, 1 / 255))


def load_trained(place: Path | str) -> tuple[Predictor, ModelInfo]:
    """Load a net as it was trained, and its metadata, from a run folder, its model file, or an ONNX file.

    Raises:
        ConfigError: an ONNX file is given, and onnxruntime is not installed.
        CheckpointError: see `load_onnx` and `fewtags.engine.model.load_model`.
    """
    return load_onnx(place) if Path(place).suffix.lower() == ENDING else load_model(place)


def read_predictor_info(place: Path | str) -> ModelInfo:
    """Read the metadata of what `load_trained` loads; only the weights of a model file are not read."""
    return load_onnx(place)[1] if Path(place).suffix.lower() == ENDING else read_info(model_path(place))


def torch_net(net: Predictor, what: str) -> SpatialNet:
    """Return a net of torch; raise ConfigError if it is an ONNX file, which cannot do `what`."""
    if isinstance(net, OnnxNet):
        raise ConfigError(f"an ONNX file cannot {what}; give the run folder instead of {net.path}.")
    return net
