"""Optimisers and learning rates of a stage."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import nn

from fewtags.config.sections import StageConfig

Name = Literal["adam", "adamw", "sgd"]
SGD_MOMENTUM = 0.9


def make_optimizer(
    name: Name, stage: StageConfig, parameters: Iterable[nn.Parameter], head: nn.Module | None, weight_decay: float
) -> torch.optim.Optimizer:
    """Make the optimiser of a stage; each parameter group has its `factor` of the stage's learning rate.

    Parameters in `head` have the factor `stage.head_factor`. "adamw" decouples weight decay and applies it to matrices
    and kernels only; the others add it to every gradient. "sgd" has a momentum of 0.9.
    """
    in_head = set[int]() if head is None else {id(parameter) for parameter in head.parameters()}
    members: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for parameter in parameters:
        factor = stage.head_factor if id(parameter) in in_head else 1.0
        members.setdefault((factor, name == "adamw" and parameter.ndim < 2), []).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": group, "factor": factor, **({"weight_decay": 0.0} if undecayed else {})}
        for (factor, undecayed), group in members.items()
    ]
    rate = _base_rate(stage)
    if name == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=SGD_MOMENTUM, weight_decay=weight_decay)
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=rate, weight_decay=weight_decay)
    return torch.optim.Adam(groups, lr=rate, weight_decay=weight_decay)


def set_learning_rate(optimizer: Any, stage: StageConfig, epoch: int, step: int, steps: int) -> None:
    """Set the learning rate for a step: constant, or a cosine from the stage's rate to 0 over the stage.

    `epoch` counts from the start of the stage. The schedule "cosine_epoch" changes the rate between epochs only.
    """
    done = (epoch * steps + (0 if stage.schedule == "cosine_epoch" else step)) / (stage.epochs * steps)
    rate = _base_rate(stage) * (1.0 if stage.schedule == "constant" else 0.5 * (1 + math.cos(math.pi * done)))
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]


def _base_rate(stage: StageConfig) -> float:
    assert stage.lr is not None, stage  # only stages that solve the head have none
    return stage.lr
