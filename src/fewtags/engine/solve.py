"""Solve a linear head on fixed features: full-batch L-BFGS with a Gaussian prior.

On a frozen trunk, the losses of a 1x1 head are convex or nearly convex, and their minimum is found in seconds. The
strength of regularisation matters more than the choice of the loss. It is one number, the prior variance of a logit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from fewtags.nets.spatial import SpatialHead
from fewtags.stores.shard import Shard

SMALLEST_STD = (1e-6, 1e-4)
"""Smallest standard deviation of a channel: the first number plus the second times the channel's mean.

The weight of a channel that varies less has almost no effect, and rounding of its mean does not matter.
"""


@final
@dataclass(frozen=True)
class Trial:
    """One solution of a search: the prior variance, and the weight of answers; None if it is not searched."""

    variance: float
    answer_weight: float | None = None


def next_trial(variances: Sequence[float], weights: Sequence[float], values: Sequence[float]) -> Trial:
    """Return what a search over prior variances and weights of answers tries next.

    All variances are tried with the first weight. Then every other weight is tried with the variance that was the best
    by then, and with the next one in the list (at its end: the one before), because the best variance depends on the
    weight. `StageConfig.solutions` is the number of trials.

    >>> values = [0.2, 0.5, 0.4]  # of the variances .1, 1 and 10 with weight 4
    >>> next_trial([0.1, 1.0, 10.0], [4.0, 16.0], values)
    Trial(variance=1.0, answer_weight=16.0)

    Args:
        variances: prior variances.
        weights: weights of answers; empty if they are not searched.
        values: validation metric of the trials so far, in their order; nan is worse than any number.
    """
    first = weights[0] if weights else None
    trials = [Trial(variance, first) for variance in variances]
    for weight in weights[1:]:
        if len(values) < len(trials):
            break
        known = [-math.inf if math.isnan(value) else value for value in values[: len(trials)]]
        best = trials[known.index(max(known))].variance
        at = min(variances.index(best), max(0, len(variances) - 2))
        trials += [Trial(variance, weight) for variance in variances[at : at + 2]]
    return trials[len(values)]


@final
@dataclass(frozen=True, eq=False)
class ChannelStatistics:
    """Mean and standard deviation of each channel of the pooled features, float32 [d]."""

    mean: Tensor
    std: Tensor


def channel_statistics(
    features: Tensor, samples: int, shard: Shard | None = None, device: torch.device | None = None
) -> ChannelStatistics:
    """Compute statistics over the training images of all processes, summed in float64 on the CPU.

    `features` are [V, n, d, h, w], V views of this process's images, and `samples` is N of all processes. Processes
    exchange tensors on `device`, by default the CPU.
    """
    shard = shard or Shard()
    total = torch.zeros(2, features.shape[2], dtype=torch.float64)
    for view in features:
        for part in view.split(1024):
            pooled = part.float().mean((2, 3)).double()
            total += torch.stack([pooled.sum(0), pooled.square().sum(0)])
    if shard.world > 1:
        total = shard.sum(total.to(device)).cpu()
    mean, square = total / (samples * len(features))
    std = (square - mean.square()).clamp_min(0).sqrt().maximum(SMALLEST_STD[0] + SMALLEST_STD[1] * mean.abs())
    return ChannelStatistics(mean.float(), std.float())


@final
class HeadSolver:
    """Minimises a loss plus a penalty on the weights that the head would have on standardised features.

    The head itself uses raw features: weight = v / std and bias = b - weight . mean, where v and b are the variables of
    L-BFGS. The penalty is d / (2 c N) |v|^2 for a loss that is a mean over N images and a sum over classes. This is the
    Gaussian prior on v under which the logit of a standardised feature vector of d channels has variance c, for all
    numbers of images and channels. Biases have no penalty. `minimise` changes the head and the `others` in place; these
    have no penalty either.
    """

    def __init__(
        self,
        head: SpatialHead,
        statistics: ChannelStatistics,
        others: Sequence[nn.Parameter] = (),
        *,
        max_iterations: int = 100,
    ) -> None:
        self.head, self.others, self.max_iterations = head, list(others), max_iterations
        shape = (-1, *(1,) * (head.weight.dim() - 2))
        mean, std = statistics.mean.to(head.weight), statistics.std.to(head.weight)
        self.std = std.reshape(shape)
        # A 3x3 kernel pads with zeros, not with the mean, so only its scale is standardised.
        self.mean = mean if head.plan.kernel == 1 else torch.zeros_like(mean)

    def minimise(self, loss: Callable[[], Tensor], variance: float, samples: int) -> float:
        """Minimise, starting from the head's current weights; `variance` is c > 0, and `samples` is N.

        `loss` computes the loss of the head's current weights and leaves its gradients in the parameters.

        Returns:
            the penalised loss. If it is not finite, the weights are useless.
        """
        head = self.head
        penalty = head.weight[0].numel() / (variance * samples)
        with torch.no_grad():
            # L-BFGS needs contiguous parameters and gradients.
            v = (head.weight * self.std).contiguous().requires_grad_()
            b = (head.bias + self._offset(head.weight)).requires_grad_()
        optimizer = torch.optim.LBFGS(
            [v, b, *self.others],
            max_iter=self.max_iterations,
            history_size=10,
            tolerance_grad=1e-5,
            tolerance_change=1e-7,
            line_search_fn="strong_wolfe",
        )

        def evaluate() -> float:
            with torch.no_grad():
                weight = v / self.std
                head.weight.copy_(weight)
                head.bias.copy_(b - self._offset(weight))
            for parameter in (head.weight, head.bias, *self.others):
                parameter.grad = None
            value = loss()
            assert head.weight.grad is not None
            assert head.bias.grad is not None
            # The chain rule through weight = v / std, bias = b - weight . mean.
            through = head.bias.grad[:, None] * self.mean if head.weight.dim() == 2 else torch.zeros_like(head.weight)
            v.grad = ((head.weight.grad - through) / self.std + penalty * v.detach()).contiguous()
            b.grad = head.bias.grad
            penalised = float(value + penalty / 2 * v.detach().square().sum())
            if not math.isfinite(penalised):
                raise FloatingPointError(penalised)
            return penalised

        try:
            optimizer.step(evaluate)
            return evaluate()
        except FloatingPointError as error:  # L-BFGS would continue with values that are not finite
            return float(error.args[0])

    def _offset(self, weight: Tensor) -> Tensor:
        """[C]: weight . mean."""
        return weight @ self.mean if weight.dim() == 2 else torch.zeros_like(self.head.bias)
