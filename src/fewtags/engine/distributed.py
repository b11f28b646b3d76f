"""The Accelerator, and what processes exchange in addition to DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from fewtags.errors import ConfigError
from fewtags.labels import Batch


def make_accelerator(precision: str = "no", cpu: bool = False) -> Accelerator:
    """Make an Accelerator with any precision and device, also after another one was made in this process.

    Raises:
        ConfigError: fp16 without a GPU.
    """
    # Accelerate needs to know that there is no GPU: otherwise each of several processes runs as if it were alone.
    cpu = cpu or not torch.accelerator.is_available()
    if precision == "fp16" and cpu:
        raise ConfigError('train.precision = "fp16" needs a GPU; use bf16 or no.')
    # Accelerate's process-wide state refuses another precision or device than the first. Accelerate has no public
    # function to drop it; its notebook launcher and tests call this one, and a test fails if a new version renames it.
    AcceleratorState._reset_state(reset_partial_state=not dist.is_initialized())
    return Accelerator(mixed_precision=precision, cpu=cpu)


def mean_over_processes(accelerator: Accelerator, values: Mapping[str, Tensor]) -> dict[str, float]:
    """Average scalars over all processes."""
    return {key: float(accelerator.reduce(value, "mean")) for key, value in values.items()}


def batch_weights(accelerator: Accelerator, batches: Sequence[Batch]) -> list[Tensor | float]:
    """Return weights of this process's batch means, so that the mean over processes is a mean over all images.

    They differ from 1 if the batch of another process has another size.
    """
    if accelerator.num_processes == 1:
        return [1.0] * len(batches)
    own = torch.tensor([float(len(batch.index)) for batch in batches], device=accelerator.device)
    return list((own * accelerator.num_processes / accelerator.reduce(own, "sum")).unbind())


def reduce_gradients(accelerator: Accelerator, parameters: Iterable[nn.Parameter], how: str) -> None:
    """Replace gradients by their "mean" or "sum" over processes; for parameters outside DistributedDataParallel."""
    if accelerator.num_processes > 1:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad = accelerator.reduce(parameter.grad, how)


def broadcast_buffers(accelerator: Accelerator, nets: Iterable[nn.Module]) -> None:
    """Give every process the BatchNorm statistics of the first one, which are those that are saved.

    DistributedDataParallel does this before a forward pass, so after the last batch of an epoch the nets differ.
    """
    if accelerator.num_processes > 1:
        for net in {id(net): net for net in nets}.values():
            for buffer in net.buffers():
                dist.broadcast(buffer, 0)
