"""Taking a store's tensors back from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fewtags.errors import CheckpointError


def copy_state(own: Mapping[str, Tensor], given: Mapping[str, Tensor], owner: str) -> None:
    """Copy `given` into the tensors `own`, in place, so that memory maps stay memory maps.

    Raises:
        CheckpointError: other names, shapes or dtypes than `own`; nothing has been copied then.
    """
    if own.keys() != given.keys():
        raise CheckpointError(
            f"the checkpoint holds {sorted(given)} for {owner}, this run keeps {sorted(own)}. "
            "Resume with the settings the checkpoint was written with."
        )
    for name, mine in own.items():
        theirs = given[name]
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            raise CheckpointError(
                f"{owner}.{name} is {_kind(theirs)} in the checkpoint and {_kind(mine)} in this run. "
                "Resume with the settings, data and number of processes the checkpoint was written with."
            )
    for name, mine in own.items():
        mine.copy_(given[name])


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
