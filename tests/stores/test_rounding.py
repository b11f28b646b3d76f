import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewtags.stores.rounding import round_nearest, round_stochastic, sample_key


def scramble(word):
    """The hash in Python's unbounded integers."""
    word &= 0xFFFFFFFF
    word = ((word ^ (word >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    word = ((word ^ (word >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return word ^ (word >> 15)


def test_nearest_by_hand():
    """Halves go to the even neighbour; a cast would give 0, 0, 1, 2, 254; what is out of range is cut."""
    level = torch.tensor([0.5, 0.6, 1.5, 2.4, 254.7, 255.4, -0.3])
    assert round_nearest(level).tolist() == [0, 1, 2, 2, 255, 255, 0]


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.integers(0, 2**31 - 1))
def test_stochastic_equals_unbounded_integers(seed, index, visit):
    key = sample_key(seed, torch.tensor([index]), torch.tensor([visit]))
    assert key.item() == scramble(scramble(scramble(seed) ^ (index & 0xFFFFFFFF)) ^ visit)
    level = torch.linspace(0.1, 254.9, 7)[None]
    expected = [
        math.floor(np.float32(value) + np.float32((scramble(scramble(key.item()) ^ cell) >> 8) / 2**24))
        for cell, value in enumerate(level[0].tolist())
    ]
    assert round_stochastic(level, key)[0].tolist() == expected


def test_stochastic_is_right_in_the_mean():
    """100.3 becomes 101 in .3 of 100,000 draws: sd of the share sqrt(.3 * .7 / 1e5) = .00145; five of them allowed."""
    key = sample_key(0, torch.arange(1000), torch.zeros(1000, dtype=torch.int64))
    rounded = round_stochastic(torch.full((1000, 100), 100.3), key)
    assert set(rounded.unique().tolist()) == {100, 101}
    assert (rounded == 101).float().mean().item() == pytest.approx(0.3, abs=0.00725)


@pytest.mark.parametrize("level", [0.0, 1.0, 137.0, 255.0])
def test_stochastic_leaves_whole_levels_alone(level):
    key = sample_key(3, torch.arange(500), torch.ones(500, dtype=torch.int64))
    assert (round_stochastic(torch.full((500, 4), level), key) == level).all()


def test_stochastic_depends_on_seed_sample_and_visit_and_on_nothing_else():
    level, index, visit = torch.full((4, 64), 7.5), torch.arange(4), torch.zeros(4, dtype=torch.int64)
    draw = round_stochastic(level, sample_key(0, index, visit))
    assert torch.equal(draw, round_stochastic(level, sample_key(0, index, visit)))
    assert torch.equal(draw[2:3], round_stochastic(level[2:3], sample_key(0, index[2:3], visit[2:3])))
    for other in (sample_key(1, index, visit), sample_key(0, index + 4, visit), sample_key(0, index, visit + 1)):
        same = (round_stochastic(level, other) == draw).float().mean(1)
        assert (same - 0.5).abs().max() < 0.32  # independent fair draws: sd .0625 over 64 cells, five of them


def test_no_rows_are_no_trouble():
    empty = torch.zeros(0, dtype=torch.int64)
    assert round_stochastic(torch.zeros(0, 2, 3), sample_key(0, empty, empty)).shape == (0, 2, 3)


def test_stochastic_leaves_whole_levels_alone_for_the_largest_draw(monkeypatch):
    """137 + (1 - 2^-24) is 138 in float32."""
    monkeypatch.setattr("fewtags.stores.rounding._scramble", lambda word: torch.full_like(word, 0xFFFFFFFF))
    level = torch.tensor([[0.0, 137.0, 137.25, 255.0]])
    assert round_stochastic(level, torch.zeros(1, dtype=torch.int64)).tolist() == [[0, 137, 138, 255]]
