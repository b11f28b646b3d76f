"""Zero-shot scores with an image-text model of open_clip: the model by name, weights, prompts."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewtags.engine.model import ModelInfo
from fewtags.errors import ConfigError
from fewtags.labels import ClassNames
from fewtags.nets.spatial import HeadPlan
from fewtags.nets.zero_shot import Scores, ZeroShotNet
from fewtags.text import some, suggest

DEFAULT_MODEL, DEFAULT_WEIGHTS = "ViT-B-16-quickgelu", "openai"
DEFAULT_PROMPT = "a photo of a {}."
INSTALL = "pip install 'fewtags[teach]'"
TEXTS_AT_ONCE = 256
LOCAL, HUB, CONFIG_FILE = "local-dir:", "hf-hub:", "open_clip_config.json"


@final
@dataclass(frozen=True, kw_only=True)
class ZeroShotOptions:
    """How zero-shot scores are made.

    Attributes:
        model: name of a model of open_clip, a folder with its open_clip_config.json, or "hf-hub:OWNER/NAME".
        weights: name of pretrained weights of open_clip, or a file; None for those of the folder, of the hub's model,
            or of the default model.
        prompts: texts with {} in place of the class name; the embeddings of several are averaged.
        scores: "softmax" over the classes, or "sigmoid" of each class; "auto": what the model was trained with.
        temperature: of the scores; None for the one that the model learned.
    """

    model: str = DEFAULT_MODEL
    weights: str | None = None
    prompts: tuple[str, ...] = (DEFAULT_PROMPT,)
    scores: Literal["auto", "softmax", "sigmoid"] = "auto"
    temperature: float | None = None


@final
class _ImageEncoder(nn.Module):
    """The image part of a model of open_clip."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.model.encode_image(images)
        return embeddings


def make_zero_shot(options: ZeroShotOptions, classes: ClassNames) -> tuple[ZeroShotNet, ModelInfo]:
    """Return a classifier for classes by their display names, and the metadata that prediction needs.

    Photos are resized to the square input, so that nothing is cut off.

    Raises:
        ConfigError: open_clip is not installed, a prompt has no place for the name, or the model or its weights cannot
            be had.
    """
    wrong = [prompt for prompt in options.prompts if _places(prompt) != [""]]
    if wrong:
        raise ConfigError(
            f"--prompt {wrong[0]!r}: write {{}} once, where the class name goes, as in {DEFAULT_PROMPT!r}."
        )
    if options.temperature is not None and not options.temperature > 0:
        raise ConfigError(f"--temperature {options.temperature:g} must be above 0.")
    model, tokenizer = _load(options)
    bias = getattr(model, "logit_bias", None)
    scores: Scores = options.scores if options.scores != "auto" else "softmax" if bias is None else "sigmoid"
    if scores == "sigmoid" and bias is None:
        raise ConfigError(
            f"--scores sigmoid: {options.model} was trained with a softmax and has no bias, so that the sigmoid of its "
            "similarity is not a probability; use softmax, or a SigLIP model."
        )
    if scores == "softmax" and len(classes) < 2:
        raise ConfigError(
            "a softmax needs at least 2 classes; add classes such as 'background', or use a SigLIP model."
        )
    texts = _encode_texts(model, tokenizer, [name.replace("_", " ") for name in classes.names], options.prompts)
    scale = float(model.logit_scale.detach().exp()) if options.temperature is None else 1 / options.temperature
    net = ZeroShotNet(_ImageEncoder(model), texts, scale, 0.0 if bias is None else float(bias.detach()), scores)
    visual: Any = model.visual
    size = visual.image_size
    mean, std = visual.preprocess_cfg["mean"], visual.preprocess_cfg["std"]
    return net.eval(), ModelInfo(
        backbone=options.model,
        output_stride=0,
        head=HeadPlan(),
        size=int(size if isinstance(size, int) else size[0]),
        policy="coco",
        class_ids=classes.ids,
        class_names=classes.names,
        thresholds=(0.5,) * len(classes),
        threshold_rules=("zero-shot",) * len(classes),
        mean=(float(mean[0]), float(mean[1]), float(mean[2])),
        std=(float(std[0]), float(std[1]), float(std[2])),
        method={"name": "zero-shot", "scores": scores},
        selection=f"{options.model}, zero-shot",
        version=version("fewtags"),
    )


def _places(prompt: str) -> list[str | None]:
    """Return the names of the fields of a template; [""] for one {}."""
    try:
        return [name for _, name, _, _ in string.Formatter().parse(prompt) if name is not None]
    except ValueError:
        return []


def _load(options: ZeroShotOptions) -> tuple[Any, Any]:
    """Return model and tokenizer."""
    try:
        import open_clip
    except ModuleNotFoundError as error:
        raise ConfigError(f"teach needs {error.name}: {INSTALL}.") from None
    name, weights = options.model, options.weights
    if Path(name).is_dir():
        name = f"{LOCAL}{name}"
    elif not name.startswith(HUB):
        if name not in open_clip.list_models():
            raise ConfigError(
                f"--model {name!r} is not a model of open_clip{suggest(name, open_clip.list_models())}; give one of "
                f"its names, a folder with {CONFIG_FILE}, or {HUB}OWNER/NAME."
            )
        weights = weights or (DEFAULT_WEIGHTS if name == DEFAULT_MODEL else None)
        tags = open_clip.list_pretrained_tags_by_model(name)
        if weights is None or not (weights in tags or Path(weights).is_file()):
            given = "no --weights" if weights is None else f"--weights {weights!r} is not a file"
            raise ConfigError(f"{given}; give a file, or pretrained weights of {name}: {some(tags, 12)}.")
    own_file = weights if name.startswith((LOCAL, HUB)) else None
    if own_file is not None and not Path(own_file).is_file():
        raise ConfigError(f"--weights {own_file!r} is not a file; leave it out for the weights of {options.model}.")
    try:
        if own_file is not None:
            model = open_clip.create_model(name, load_weights=False)
            open_clip.load_checkpoint(model, own_file)
        else:
            model = open_clip.create_model(name, pretrained=weights, require_pretrained=True)
        return model.eval(), open_clip.get_tokenizer(name)
    except (RuntimeError, OSError, ValueError, ImportError, KeyError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"the model {options.model} cannot be loaded ({reason}). Without a network, get the weights on another "
            "computer and pass --weights FILE, or a folder with the model as --model."
        ) from error


@torch.inference_mode()
def _encode_texts(model: Any, tokenizer: Any, names: Sequence[str], prompts: Sequence[str]) -> Tensor:
    """Return the mean over prompts of the normalised embeddings of the classes, float32 [C, d]."""
    total: Tensor | float = 0.0
    for prompt in prompts:
        tokens = tokenizer([prompt.format(name) for name in names])
        parts = [F.normalize(model.encode_text(part).float(), dim=1) for part in tokens.split(TEXTS_AT_ONCE)]
        total = total + torch.cat(parts)
    assert isinstance(total, Tensor)
    return (total / len(prompts)).clone()
