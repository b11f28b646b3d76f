"""BYOL: each view predicts what a slowly following copy of the net makes of the other one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn

from fewtags.labels import Batch
from fewtags.losses.contrastive import byol_loss, collapse
from fewtags.nets.encoder import pooled
from fewtags.nets.precision import mixed_precision
from fewtags.nets.projection import Follower, parameters_of
from fewtags.objectives.base import Objective, Part, Problem, Progress, Step
from fewtags.objectives.momentum import check_ranges, predicting_heads, second_view

INFINITY = float("inf")


@final
@dataclass(eq=False)
class BYOL(Objective):
    """BYOL (Grill et al., NeurIPS 2020): L = |q(z1) - z2'|^2 + |q(z2) - z1'|^2, of unit vectors (eq. 2, both ways).

    z = f(net(view)) is the online projection, q the predictor, z' what the target makes of a view: a copy of net and f
    whose weights follow them as a moving average (eq. 1), after every optimiser step. Projector and predictor have one
    hidden layer with BatchNorm.

    Deviation: BatchNorm in projector and predictor sees the batch of one process (the paper synchronises it).

    Args:
        momentum: tau of the target at the start.
        momentum_schedule: "cosine": 1 - (1 - tau) (cos(pi k / K) + 1) / 2 at share k / K of the run, up to 1 at its
            end ("Implementation details"); "constant": tau throughout.
        projection_dim: of z and q.
        hidden_dim: width of the projector's hidden layer.
        predictor_dim: width of the predictor's hidden layer.

    Raises:
        ConfigError: a value that is out of range.
    """

    needs_second_view: ClassVar[bool] = True

    momentum: float = 0.996
    momentum_schedule: Literal["cosine", "constant"] = "cosine"
    projection_dim: int = 256
    hidden_dim: int = 4096
    predictor_dim: int = 4096

    def __post_init__(self) -> None:
        check_ranges(self, RANGES)

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Make the projector, the predictor and the target.

        Raises:
            ConfigError: the problem does not say how many channels the features have.
        """
        self._problem = problem
        self._projector, self._predictor = predicting_heads(
            problem, [self.hidden_dim], self.projection_dim, self.predictor_dim
        )
        self._follower = Follower(encoder=net, projector=self._projector).to(problem.device)
        return {"projector": self._projector, "predictor": self._predictor, "follower": self._follower}

    def step(self, net: nn.Module, batch: Batch, at: Progress) -> Step:
        """The symmetrised distance to the target's projections.

        Raises:
            ConfigError: a batch without second views.
        """
        images = batch.images, second_view(batch, "BYOL")
        projector, predictor = self._projector.train(net.training), self._predictor.train(net.training)
        z1, z2 = (projector(pooled(features)) for features in net(*images))
        target1, target2 = self._targets(net, *images)
        loss = byol_loss(predictor(z1), target2) + byol_loss(predictor(z2), target1)
        momentum = self.momentum_at(at)
        logs = {
            "spread": collapse(z1.detach()),
            "positive": 1 - loss.detach() / 4,
            "momentum": torch.full((), momentum, device=loss.device),
        }
        return Step(loss, logs, momentum)

    def commit(self, net: nn.Module, batch: Batch, out: Step) -> None:
        """Move the target."""
        momentum: float = out.payload
        self._follower.follow(parameters_of(net, self._projector), momentum)

    def momentum_at(self, at: Progress) -> float:
        """The target's tau at a step, a function of the share of the run that came before it."""
        if self.momentum_schedule == "constant":
            return self.momentum
        done = at.exact_epoch / self._problem.epochs
        return 1 - (1 - self.momentum) * (math.cos(math.pi * done) + 1) / 2

    @torch.no_grad()
    def _targets(self, net: nn.Module, *views: Tensor) -> list[Tensor]:
        self._follower.take_modes(net, self._projector)
        encoder, projector = (self._follower.get_submodule(name) for name in ("encoder", "projector"))
        with mixed_precision(views[0].device.type, self._problem.precision):
            encoded = encoder(*views)
        return [projector(pooled(features)) for features in encoded]


RANGES: Mapping[str, tuple[float, float]] = {
    "momentum": (0.0, 1.0),
    "projection_dim": (1.0, INFINITY),
    "hidden_dim": (1.0, INFINITY),
    "predictor_dim": (1.0, INFINITY),
}
