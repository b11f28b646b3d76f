"""Methods of other authors on two processes learn what they learn on one, to rounding."""

from pathlib import Path

import pytest
import torch
from two_processes import both, load

from fewtags.stores.shard import SINGLE_PROCESS, Shard

WORKER = Path(__file__).with_name("baselines_worker.py")
METHODS = load(WORKER).METHODS


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return both(WORKER, tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("name", METHODS)
def test_two_processes_are_one(two, name):
    """Weights are float64; losses are float32, so that a sum in another order differs by 1e-7."""
    one = load(WORKER).train(name, SINGLE_PROCESS)
    for rank in range(2):
        own = two[rank][name]
        torch.testing.assert_close(own["weight"], one["weight"], rtol=0, atol=2e-5)
        assert own["reports"] == [pytest.approx(report, abs=1e-5) for report in one["reports"]]
        for part, state in one["parts"].items():
            for key, whole in state.items():
                rows = whole[Shard(rank, 2).owned(len(whole))] if whole.shape[:1] == (22,) else whole
                torch.testing.assert_close(own["parts"][part][key], rows, rtol=0, atol=2e-3, msg=f"{part} {key}")


@pytest.mark.parametrize("name", METHODS)
def test_the_methods_do_something_here(name):
    """Otherwise the test above could not fail."""
    result = load(WORKER).train(name, SINGLE_PROCESS)
    for part, state in result["parts"].items():
        assert any(value.any() for value in state.values()), part
    if "apl" in name:
        assert result["reports"][-1]["soft_labels_per_image"] > 1
    if name == "curriculum":
        assert result["reports"][-1]["new_positives_per_image"] > 0
