"""BYOL: each view predicts the projection of the other view by a moving average of the net."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn

from fewtags.labels import Batch
from fewtags.losses.contrastive import byol_loss, collapse
from fewtags.nets.encoder import pooled
from fewtags.nets.precision import mixed_precision
from fewtags.nets.projection import Follower, parameters_of
from fewtags.objectives.base import Derived, Part, Problem, Progress, RunFacts, Step
from fewtags.objectives.checks import Range
from fewtags.objectives.momentum import TwoViewObjective, derived_momentum, predicting_heads, second_view


@final
@dataclass(eq=False)
class BYOL(TwoViewObjective):
    """BYOL (Grill et al., NeurIPS 2020): L = |q(z1) - z2'|^2 + |q(z2) - z1'|^2, of unit vectors (eq. 2, both ways).

    z = f(net(view)) is the online projection, q the predictor, z' the projection by the target: a copy of net and f
    whose weights are a moving average of theirs (eq. 1), updated after every optimiser step. Projector and predictor
    have one hidden layer with BatchNorm.

    Deviation: BatchNorm in projector and predictor sees the batch of one process (the paper synchronises it).

    Args:
        momentum: tau of the target at the start.
        momentum_schedule: "cosine": 1 - (1 - tau) (cos(pi k / K) + 1) / 2 at share k / K of the run, up to 1 at its
            end ("Implementation details"); "constant": tau throughout.
        projection_dim: of z and q.
        hidden_dim: width of the projector's hidden layer.
        predictor_dim: width of the predictor's hidden layer.
    """

    momentum: Annotated[float, Range(0, 1)] = 0.996
    momentum_schedule: Literal["cosine", "constant"] = "cosine"
    projection_dim: Annotated[int, Range(1)] = 256
    hidden_dim: Annotated[int, Range(1)] = 4096
    predictor_dim: Annotated[int, Range(1)] = 4096

    def derived(self, facts: RunFacts) -> Mapping[str, Derived]:
        """Derive the momentum if there are few images."""
        return derived_momentum(facts)

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Create the projector, the predictor and the target."""
        self._problem = problem
        self._projector, self._predictor = predicting_heads(
            problem, [self.hidden_dim], self.projection_dim, self.predictor_dim
        )
        self._follower = Follower(encoder=net, projector=self._projector).to(problem.device)
        return {"projector": self._projector, "predictor": self._predictor, "follower": self._follower}

    def step(self, net: nn.Module, batch: Batch, at: Progress) -> Step:
        """Compute the symmetrised distance to the target's projections."""
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
        self._follower.follow(parameters_of(net, self._projector), out.payload)

    def momentum_at(self, at: Progress) -> float:
        """Return the target's tau at a step."""
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
