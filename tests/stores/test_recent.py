"""The newest predictions of every image."""

import numpy as np
import pytest
import torch

from fewtags.errors import CheckpointError
from fewtags.stores.recent import RecentScores
from fewtags.stores.shard import Shard


def prob(*rows):
    return torch.tensor(rows, dtype=torch.float32)


def test_by_hand():
    """Depth 2. Image 0 is written .25, .5, .75: the first has made room. Image 1 only once, image 2 never."""
    store = RecentScores(3, 1, 2)
    store.write(torch.tensor([1, 0]), prob([0.125], [0.25]))
    store.write(torch.tensor([0]), prob([0.5]))
    store.write(torch.tensor([0]), prob([0.75]))
    kept, complete = store.read(torch.tensor([0, 1, 2]))
    assert kept.dtype == torch.float32
    assert sorted(kept[:, 0, 0].tolist()) == [0.5, 0.75]
    assert kept[:, 1, 0].tolist() == [0.125, 0.0]
    assert complete.tolist() == [True, False, False]


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_a_list_for_every_image_does_the_same(depth):
    draw, store = np.random.default_rng(depth), RecentScores(6, 3, depth)
    lists = [[] for _ in range(6)]
    for _ in range(20):
        index = draw.choice(6, 4, replace=False)
        values = draw.random((4, 3)).astype(np.float16)
        store.write(torch.from_numpy(index), torch.from_numpy(values).float())
        for i, row in zip(index, values, strict=True):
            lists[i] = [*lists[i], row.tolist()][-depth:]
    kept, complete = store.read(torch.arange(6))
    for i, newest in enumerate(lists):
        assert complete[i] == (len(newest) == depth)
        assert sorted(kept[: len(newest), i].tolist()) == sorted(newest)


def test_a_process_keeps_its_own_rows():
    store = RecentScores(5, 2, 1, shard=Shard(1, 2))
    assert store.values.shape == (2, 1, 2)
    store.write(torch.tensor([3]), prob([0.5, 1.0]))
    assert store.values[:, 0].tolist() == [[0, 0], [0.5, 1]]
    assert store.read(torch.tensor([3, 1]))[1].tolist() == [True, False]


def test_state_comes_back_in_place():
    one, other = RecentScores(2, 2, 2), RecentScores(2, 2, 2)
    one.write(torch.tensor([1]), prob([0.25, 0.5]))
    kept = other.values
    other.load_state_dict({name: value.clone() for name, value in one.state_dict().items()})
    assert kept[1, 0].tolist() == [0.25, 0.5]
    for store in (one, other):
        store.write(torch.tensor([1]), prob([0.75, 1.0]))
    assert torch.equal(one.values, other.values)
    with pytest.raises(CheckpointError, match=r"recent scores\.values is float16"):
        RecentScores(2, 2, 3).load_state_dict(one.state_dict())
