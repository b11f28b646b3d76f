"""What the loop needs of Accelerate beside its public interface."""

from importlib.metadata import version
from inspect import signature

from accelerate.state import AcceleratorState


def test_accelerate_still_has_the_function_that_resets_its_state():
    """It is private; see `distributed.make_accelerator`."""
    reset = getattr(AcceleratorState, "_reset_state", None)
    assert reset is not None, f"accelerate {version('accelerate')} has no AcceleratorState._reset_state"
    assert "reset_partial_state" in signature(reset).parameters, f"accelerate {version('accelerate')} changed it"
