"""What surrounds a step: seeds that follow from the key alone, settings that are put back."""

import os

import pytest
import torch
from torch import nn

from fewtags.engine.autocast import WORKSPACE, Autocast, repeatable, seeded
from fewtags.nets.spatial import Output

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")


class Maps(nn.Module):
    """A net that notes what it computes in."""

    def __init__(self):
        super().__init__()
        self.conv, self.seen = nn.Conv2d(3, 2, 1), None

    def forward(self, images):
        maps = self.conv(images)
        self.seen = maps.dtype
        return Output(maps.mean((2, 3)), maps, images)


@pytest.mark.parametrize(("precision", "inside"), [("no", torch.float32), ("bf16", torch.bfloat16)])
def test_precision_inside_and_float32_outside(precision, inside):
    net = Maps()
    out = Autocast(net, "cpu", precision)(torch.ones(1, 3, 2, 2))
    assert net.seen == inside
    assert {value.dtype for value in out} == {torch.float32}


# --- random numbers


def draw(seed, device=CPU):
    with seeded(device, seed):
        return torch.rand(4).tolist()


def test_draws_follow_from_the_seed_alone():
    """Whatever the global generator holds."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = draw(7)
        torch.manual_seed(2)
        assert draw(7) == first
        assert draw(8) != first
        assert first == torch.rand(4, generator=torch.Generator().manual_seed(7)).tolist()


def test_the_global_generator_is_put_back_also_after_an_error():
    before = torch.get_rng_state()
    draw(3)
    with pytest.raises(ZeroDivisionError), seeded(CPU, 3):
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture
def mps(monkeypatch):
    """A generator in the place of Apple's."""
    generator = torch.Generator().manual_seed(99)
    monkeypatch.setattr(torch.mps, "manual_seed", generator.manual_seed)
    monkeypatch.setattr(torch.mps, "get_rng_state", generator.get_state)
    monkeypatch.setattr(torch.mps, "set_rng_state", generator.set_state)
    return generator


def test_mps_has_a_generator_of_its_own_that_is_seeded_and_put_back(mps):
    before, expected = mps.get_state(), torch.rand(4, generator=torch.Generator().manual_seed(5))
    for _ in range(2):
        with seeded(MPS, 5):
            assert torch.equal(torch.rand(4, generator=mps), expected)
            assert torch.equal(torch.rand(4), expected)
        assert torch.equal(mps.get_state(), before)
    with pytest.raises(ZeroDivisionError), seeded(MPS, 5):
        raise ZeroDivisionError
    assert torch.equal(mps.get_state(), before)


def test_other_devices_leave_the_generator_of_mps_alone(mps):
    before = mps.get_state()
    with seeded(CPU, 5):
        assert torch.equal(mps.get_state(), before)


# --- kernels


def settings():
    """All that decides which kernels run."""
    cudnn = torch.backends.cudnn
    return {
        "cudnn": (cudnn.deterministic, cudnn.benchmark),
        "torch": (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "cublas": os.environ.get(WORKSPACE),
    }


@pytest.fixture
def told(monkeypatch):
    """Whatever a test sets is undone."""
    before = settings()
    monkeypatch.delenv(WORKSPACE, raising=False)
    yield monkeypatch
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before["cudnn"]
    torch.use_deterministic_algorithms(before["torch"][0], warn_only=before["torch"][1])
    torch.utils.deterministic.fill_uninitialized_memory = before["fill"]


def test_a_gpu_works_by_rule_inside_and_as_it_was_told_outside(told):
    """A user who lets cuDNN race, which may pick another kernel next time."""
    torch.backends.cudnn.benchmark = True
    before = settings()
    with repeatable(CUDA):
        assert settings() == {"cudnn": (True, False), "torch": (True, True), "fill": False, "cublas": ":4096:8"}
    assert settings() == before
    with pytest.raises(ZeroDivisionError), repeatable(CUDA):
        raise ZeroDivisionError
    assert settings() == before


def test_what_a_user_asked_for_stays(told):
    """Errors instead of warnings, and another workspace."""
    torch.use_deterministic_algorithms(True)
    told.setenv(WORKSPACE, ":16:8")
    before = settings()
    with repeatable(CUDA):
        assert settings()["torch"] == (True, False)
        assert settings()["cublas"] == ":16:8"
    assert settings() == before


@pytest.mark.parametrize("device", [CPU, MPS])
def test_other_devices_are_left_alone(device):
    before = settings()
    with repeatable(device):
        assert settings() == before
