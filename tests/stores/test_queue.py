"""Queues that are kept in step."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from fewtags.errors import CheckpointError, ConfigError
from fewtags.stores.queue import AlignedQueues

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "mls.json").read_text())["queue"]


def int64(values):
    return torch.tensor(list(values), dtype=torch.int64)


def coded(ids):
    """Rows that tell whose they are: (i, -i) of kind `features`, (2 i, 3 i, 5 i) of kind `projections`."""
    column = int64(ids)[:, None].float()
    return {"features": column * torch.tensor([1.0, -1.0]), "projections": column * torch.tensor([2.0, 3.0, 5.0])}


def make(size):
    return AlignedQueues(size, {"features": 2, "projections": 3})


def aligned(queues):
    """Whether every counted slot of every queue holds the rows of the image that `ids` names; and the others zeros."""
    counted = queues.counted()
    rows = coded(queues.ids.clamp(min=0).tolist())
    assert ((queues.ids >= 0) == counted).all()
    return all(torch.equal(queues.read(name), torch.where(counted[:, None], rows[name], 0.0)) for name in rows)


def test_by_hand():
    """Four slots. Images 1, 2, 3 fill slots 0, 1, 2; images 4, 5 slot 3 and, round the end, slot 0: 1 has gone."""
    queues = make(4)
    assert queues.counted().tolist() == [False] * 4
    assert queues.ids.tolist() == [-1] * 4
    queues.enqueue(int64([1, 2, 3]), coded([1, 2, 3]))
    assert queues.counted().tolist() == [True, True, True, False]
    assert queues.read("features").tolist() == [[1, -1], [2, -2], [3, -3], [0, 0]]
    queues.enqueue(int64([4, 5]), coded([4, 5]))
    assert queues.ids.tolist() == [5, 2, 3, 4]
    assert queues.read("projections")[:, 0].tolist() == [10, 4, 6, 8]
    assert queues.counted().all()
    assert (queues.pointer.item(), queues.filled.item()) == (1, 4)


def test_more_rows_than_slots():
    """Three slots, the pointer at 1; images 1 to 7 singly go to slots 1 2 0 1 2 0 1: 5, 6, 7 stay, at 2, 0, 1."""
    queues = make(3)
    queues.enqueue(int64([0]), coded([0]))
    queues.enqueue(int64(range(1, 8)), coded(range(1, 8)))
    assert queues.ids.tolist() == [6, 7, 5]
    assert aligned(queues)
    assert queues.pointer.item() == 2


def test_golden_steps():
    """Slots that are not filled keep what they were loaded with: the golden queues do not start from zeros."""
    size, number = GOLDEN["D"], 0
    queues = AlignedQueues(size, {"g": 3, "z": 2})
    start = {"rows.g": torch.tensor(GOLDEN["Qg0"]), "rows.z": torch.tensor(GOLDEN["Qz0"])}
    queues.load_state_dict({**queues.state_dict(), **start})
    for step in GOLDEN["steps"]:
        ids = int64(range(number, number + step["n"]))
        queues.enqueue(ids, {"g": torch.tensor(step["g2"]), "z": torch.tensor(step["z2"])})
        number += step["n"]
        np.testing.assert_allclose(queues.read("g"), step["Qg"], rtol=0, atol=1e-7)
        np.testing.assert_allclose(queues.read("z"), step["Qz"], rtol=0, atol=1e-7)
        assert (queues.pointer.item(), queues.filled.item()) == (step["ptr"], step["filled"])
        assert queues.counted().sum() == step["filled"]
        kept = step["slots"][-size:]
        assert queues.ids[kept].tolist() == ids[-size:].tolist()
    assert {step["n"] for step in GOLDEN["steps"]} == {1, 3, 7, 9, 16}


@given(st.integers(1, 9), st.lists(st.integers(0, 25), max_size=12))
def test_a_list_that_is_written_singly_does_the_same(size, batches):
    queues, slots, number = make(size), [-1] * size, 0
    for n in batches:
        ids = range(number, number + n)
        queues.enqueue(int64(ids), coded(ids))
        for i in ids:
            slots[i % size] = i
        number += n
        assert queues.ids.tolist() == slots
        assert aligned(queues)
        assert queues.pointer.item() == number % size
        assert queues.filled.item() == min(number, size)


def test_rows_are_cast_and_kept_without_a_gradient():
    queues = AlignedQueues(3, {"a": 1, "b": 1})
    rows = {"b": torch.ones(2, 1, dtype=torch.float64), "a": torch.full((2, 1), 0.5, dtype=torch.bfloat16)}
    queues.enqueue(int64([3, 4]), {name: row.requires_grad_() for name, row in rows.items()})
    for name, expected in (("a", [0.5, 0.5, 0.0]), ("b", [1.0, 1.0, 0.0])):
        assert queues.read(name).dtype == torch.float32
        assert not queues.read(name).requires_grad
        assert queues.read(name)[:, 0].tolist() == expected


def test_what_is_read_is_the_queue_itself():
    queues = make(2)
    before = queues.read("features")
    queues.enqueue(int64([7]), coded([7]))
    assert before[0].tolist() == [7, -7]


class NoWaiting(TorchFunctionMode):
    """Refuses to tell the value of a tensor, for which a GPU would have to finish first."""

    asking = ("item", "tolist", "nonzero", "__bool__", "__int__", "__float__", "__index__")

    def __torch_function__(self, func, types, args=(), kwargs=None):
        assert func.__name__ not in self.asking, func.__name__
        return func(*args, **(kwargs or {}))


def test_nothing_waits_for_the_device():
    queues = make(5)
    with NoWaiting():
        for n in (3, 4, 11):
            queues.enqueue(int64(range(n)), coded(range(n)))
            queues.counted()
            queues.read("features")
        for ask in (int, bool, torch.Tensor.item, range):
            with pytest.raises(AssertionError, match=r"item|__(int|bool|index)__"):
                ask(queues.pointer)


def test_state_comes_back_in_place_and_goes_on_alike():
    one, other = make(4), make(4)
    one.enqueue(int64(range(6)), coded(range(6)))
    kept = other.read("projections")
    other.load_state_dict({name: value.clone() for name, value in one.state_dict().items()})
    assert torch.equal(kept, one.read("projections"))
    for queues in (one, other):
        queues.enqueue(int64([8, 9, 7]), coded([8, 9, 7]))
    assert one.state_dict().keys() == {"ids", "pointer", "filled", "rows.features", "rows.projections"}
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    with pytest.raises(CheckpointError, match=r"queues\.ids is int64 \[4\] in the checkpoint and int64 \[5\]"):
        make(5).load_state_dict(one.state_dict())


ROWS = coded([1, 2])


@pytest.mark.parametrize(
    ("rows", "given"),
    [
        ({"features": ROWS["features"]}, "{'features': (2, 2)}"),
        (
            {**ROWS, "other": torch.zeros(2, 1)},
            "{'features': (2, 2), 'projections': (2, 3), 'other': (2, 1)}",
        ),
        ({**ROWS, "projections": torch.zeros(1, 3)}, "{'features': (2, 2), 'projections': (1, 3)}"),
        ({**ROWS, "projections": torch.zeros(2, 4)}, "{'features': (2, 2), 'projections': (2, 4)}"),
    ],
)
def test_rows_that_would_drift_apart_are_refused_and_nothing_is_written(rows, given):
    queues = make(4)
    queues.enqueue(int64([5]), coded([5]))
    before = {name: value.clone() for name, value in queues.state_dict().items()}
    with pytest.raises(ValueError) as error:  # noqa: PT011
        queues.enqueue(int64([1, 2]), rows)
    assert str(error.value) == f"rows to enqueue must be {{'features': (2, 2), 'projections': (2, 3)}}, got {given}"
    assert all(torch.equal(value, before[name]) for name, value in queues.state_dict().items())


def test_a_queue_has_a_slot():
    with pytest.raises(ConfigError) as error:
        AlignedQueues(0, {"features": 2})
    assert str(error.value) == "a queue must have at least 1 slot, got 0."
