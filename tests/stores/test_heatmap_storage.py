"""Which heatmaps are kept, and where: top-k, shards, memory maps and states."""

import io
import os
import re

import numpy as np
import psutil
import pytest
import torch
from heatmap_maps import WHOLE, N, P, U, filled, random_labels, random_maps
from hypothesis import given
from hypothesis import strategies as st
from views import random_views

from fewtags.batched_views import stack_views
from fewtags.errors import CheckpointError
from fewtags.labels import LabelMatrix
from fewtags.stores.heatmap_size import HeatmapPlan
from fewtags.stores.heatmaps import HeatmapStore
from fewtags.stores.rounding import tie_key
from fewtags.stores.rows import ScoreStore
from fewtags.stores.shard import Shard

# --- top-k


def scores_of(values):
    """A score store that holds `values`."""
    store = ScoreStore(*values.shape)
    store.values.copy_(values)
    store.visits.fill_(1)
    return store


def test_choice_of_classes_by_hand():
    """Annotated first whatever its score, then the highest scores; ties go to the smallest key."""
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.8], [0.3, 0.3, 0.3, 0.3], [0.0, 0.2, 0.9, 0.1]])
    labels = np.array([[P, U, U, N], [U, U, U, P], [U, P, U, P]], np.int8)
    store = HeatmapStore(3, 4, (1, 1), HeatmapPlan(top_k=2))
    store.choose(scores_of(scores), LabelMatrix.from_dense(labels))
    tied = int(tie_key(torch.tensor([1]), torch.arange(3)).argmin())
    assert store.class_ids.tolist() == [[0, 1], [tied, 3], [1, 3]]
    assert store.class_ids.dtype == torch.int16


def test_many_tied_scores_go_to_the_smallest_keys():
    """Sorting is stable by chance for a few numbers only. Images do not all get the first classes of the file."""
    store = HeatmapStore(2, 3000, (1, 1), HeatmapPlan(top_k=4))
    labels = np.zeros((2, 3000), np.int8)
    labels[0, 2999] = P
    store.choose(scores_of(torch.full((2, 3000), 0.5)), LabelMatrix.from_dense(labels))
    keys = tie_key(torch.arange(2)[:, None], torch.arange(3000)).argsort(1).tolist()
    assert store.class_ids.tolist() == [sorted([*keys[0][:3], 2999]), sorted(keys[1][:4])]
    assert keys[0][:4] != keys[1][:4]


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 4]))
def test_top_k_is_the_dense_store_restricted_to_the_chosen_classes(seed, top_k):
    rng = np.random.default_rng(seed)
    labels = torch.full((4, 5), U, dtype=torch.int8)
    labels[torch.arange(4), torch.from_numpy(rng.integers(5, size=4))] = P
    dense, few = HeatmapStore(4, 5, (2, 2), HeatmapPlan()), HeatmapStore(4, 5, (2, 2), HeatmapPlan(top_k=top_k))
    few.choose(scores_of(torch.from_numpy(rng.random((4, 5), np.float32))), LabelMatrix.from_dense(labels.numpy()))
    for _ in range(3):
        index = torch.from_numpy(rng.permutation(4)[:3])
        views, maps = stack_views(random_views(rng, 3)), random_maps(rng, 3, 5, (2, 2))
        chosen = torch.zeros(3, 5, dtype=torch.bool).scatter(1, few.class_ids[index].long(), True)
        assert (chosen | (labels[index] != P)).all()
        target, expected = (s.read(index, labels[index], views, (2, 2))[0] for s in (few, dense))
        assert torch.equal(target, torch.where(chosen[:, :, None, None], expected, 0.0))
        for store in (few, dense):
            store.update(index, labels[index], views, maps)


def test_k_of_at_least_the_number_of_classes_keeps_them_all():
    store = HeatmapStore(2, 3, (1, 1), HeatmapPlan(top_k=3))
    assert store.class_ids is None
    assert store.values.shape == (2, 3, 2, 2)
    store.choose(ScoreStore(2, 3), LabelMatrix.from_dense(np.zeros((2, 3), np.int8)))
    assert store.class_ids is None


# --- storage


@given(st.integers(0, 2**32 - 1))
def test_batches_split_freely_and_inputs_stay_as_they_are(seed):
    rng = np.random.default_rng(seed)
    labels, maps = random_labels(rng, 3, 2), random_maps(rng, 3, 2, (2, 3))
    views, index = stack_views(random_views(rng, 3)), torch.tensor([2, 0, 1])
    inputs = [t.clone() for t in (index, labels, views, maps)]
    whole, parted = HeatmapStore(3, 2, (2, 3), HeatmapPlan()), HeatmapStore(3, 2, (2, 3), HeatmapPlan())
    whole.update(index, labels, views, maps)
    for piece in (slice(0, 2), slice(2, 3)):
        parted.update(index[piece], labels[piece], views[piece], maps[piece])
    assert torch.equal(whole.values, parted.values)
    assert all(torch.equal(a, b) for a, b in zip(inputs, (index, labels, views, maps), strict=True))


def test_shards_hold_every_row_once():
    rng = np.random.default_rng(11)
    labels, maps, views = random_labels(rng, 5, 2), random_maps(rng, 5, 2, (2, 2)), stack_views(random_views(rng, 5))
    plan, whole = HeatmapPlan(rounding="stochastic"), HeatmapStore(5, 2, (2, 2), HeatmapPlan(rounding="stochastic"))
    whole.update(torch.arange(5), labels, views, maps)
    for rank in range(2):
        shard = Shard(rank, 2)
        part, own = HeatmapStore(5, 2, (2, 2), plan, shard=shard), shard.owned(5)
        part.update(own, labels[own], views[own], maps[own])
        assert torch.equal(part.values, whole.values[own])


@pytest.mark.parametrize("dtype", ["uint8", "float16"])
def test_a_memory_map_has_its_room_on_disk_and_equals_memory(tmp_path, dtype):
    rng = np.random.default_rng(13)
    labels, maps, views = random_labels(rng, 2, 3), random_maps(rng, 2, 3, (7, 7)), stack_views(random_views(rng, 2))
    plan, path = HeatmapPlan(dtype=dtype), tmp_path / "new" / "heatmaps.bin"
    memory, disk = HeatmapStore(2000, 3, (7, 7), plan), HeatmapStore(2000, 3, (7, 7), plan, path=path)
    for store in (memory, disk):
        store.update(torch.tensor([1999, 3]), labels, views, maps)
    assert torch.equal(memory.values, disk.values)
    stat = path.stat()
    assert stat.st_size == memory.values.nbytes
    # A mapped page that finds a full disk kills the process, so the room is reserved.
    assert stat.st_blocks * 512 >= stat.st_size
    kind = np.uint8 if dtype == "uint8" else np.float16
    on_disk = np.fromfile(path, kind).reshape(2000, 3, 14, 14)
    assert np.array_equal(on_disk, memory.values.numpy())


def test_a_store_takes_memory_as_it_is_written():
    """The least of three measurements: threads that other tests left behind may take memory, too."""
    grown = []
    for _ in range(3):
        before = psutil.Process().memory_info().rss
        store = HeatmapStore(1000, 80, (28, 28), HeatmapPlan(corrected=True))
        assert store.values.nbytes == 250_880_000
        grown.append(psutil.Process().memory_info().rss - before)
        del store
    assert min(grown) < 50_000_000


def test_a_new_store_forgets_what_an_old_file_held(tmp_path):
    path = tmp_path / "heatmaps.bin"
    path.write_bytes(b"\xff" * 10_000)
    assert not HeatmapStore(2, 1, (1, 1), HeatmapPlan(), path=path).values.any()


def test_a_process_without_rows_needs_no_file(tmp_path):
    path = tmp_path / "heatmaps.bin"
    store = HeatmapStore(1, 2, (1, 1), HeatmapPlan(), shard=Shard(1, 2), path=path)
    assert store.values.shape == (0, 2, 2, 2)
    assert not path.exists()


@pytest.mark.parametrize("plan", [HeatmapPlan(), HeatmapPlan(top_k=2, corrected=True)])
def test_state_goes_through_a_file_into_a_memory_map(tmp_path, plan):
    rng = np.random.default_rng(17)
    labels, maps, views = random_labels(rng, 3, 4), random_maps(rng, 3, 4, (2, 2)), stack_views(random_views(rng, 3))
    store = HeatmapStore(3, 4, (2, 2), plan)
    store.choose(scores_of(torch.rand(3, 4)), LabelMatrix.from_dense(labels.numpy()))
    store.update(torch.arange(3), labels, views, maps)
    assert all(tensor is store.state_dict()[name] for name, tensor in store.state_dict().items())
    file = io.BytesIO()
    torch.save(dict(store.state_dict()), file)
    file.seek(0)
    other = HeatmapStore(3, 4, (2, 2), plan, path=tmp_path / "heatmaps.bin")
    other.load_state_dict(torch.load(file, weights_only=True))
    for mine, theirs in zip(store.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    assert np.fromfile(tmp_path / "heatmaps.bin", np.uint8).tolist() == store.values.flatten().tolist()


def test_a_state_of_another_kind_is_refused():
    message = (
        "the checkpoint contains ['cell_visits', 'values', 'visits'] for heatmaps, this run keeps ['values', 'visits']."
        " Resume with the settings the checkpoint was written with."
    )
    with pytest.raises(CheckpointError, match=re.escape(message)):
        HeatmapStore(1, 1, (1, 1), HeatmapPlan()).load_state_dict(
            HeatmapStore(1, 1, (1, 1), HeatmapPlan(corrected=True)).state_dict()
        )


def test_targets_are_probabilities_to_the_last_bit():
    """Seen through turned crops, interpolation weights add up to 1 + 1.2e-7 here and there: log(1 - t) would be NaN."""
    store = filled(HeatmapStore(5000, 1, (3, 3), HeatmapPlan()), torch.full((5000, 1, 6, 6), 255))
    views = torch.rand(5000, 2, 3, generator=torch.Generator().manual_seed(0)) - 0.5
    target, _ = store.read(torch.arange(5000), torch.zeros(5000, 1, dtype=torch.int8), views, (3, 3))
    assert target.max() == 1
    assert target.min().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("top_k", [None, 2])
def test_stretched_heatmaps_go_from_0_to_1(top_k):
    """Levels .2 to .6 become 0 to 1. No weight: what is not chosen, a flat heatmap, a row that was never updated."""
    labels = torch.zeros(2, 3, dtype=torch.int8)
    plan = HeatmapPlan(dtype="float16", top_k=top_k)
    store = filled(HeatmapStore(2, 3, (1, 2), plan), torch.full((2, top_k or 3, 2, 4), 0.25))
    store.values[0, 0] = torch.tensor([0.2, 0.2, 0.6, 0.6])
    store.values[1, 0] = store.values[0, 0]
    store.visits[1] = 0
    if store.class_ids is not None:
        store.class_ids.copy_(torch.tensor([[1, 2], [1, 2]]))
    index, first = torch.arange(2), 0 if top_k is None else 1
    target, weight = store.read(index, labels, stack_views([WHOLE] * 2), (2, 4))
    chosen = torch.ones(2, 3, dtype=torch.bool)
    found, factor = store.stretched(target, weight, chosen, index, labels)
    torch.testing.assert_close(found[0, first], torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 2), rtol=0, atol=1e-3)
    assert factor[0, first].min() == 1
    assert factor.sum() == 8
    assert store.stretched(target, weight, ~chosen, index, labels)[1].sum() == 0


def test_cells_that_no_crop_has_shown_do_not_stretch_a_heatmap():
    """The left half was seen with levels .4 and .8; the right half has the start value 0, and no weight."""
    store = HeatmapStore(1, 1, (1, 2), HeatmapPlan(dtype="float16", corrected=True))
    filled(store, torch.tensor([0.4, 0.8, 0.0, 0.0]).half())
    store.cell_visits[:, :, :2] = 1
    labels, index = torch.zeros(1, 1, dtype=torch.int8), torch.zeros(1, dtype=torch.int64)
    target, weight = store.read(index, labels, stack_views([WHOLE]), (2, 4))
    found, factor = store.stretched(target, weight, torch.ones(1, 1, dtype=torch.bool), index, labels)
    torch.testing.assert_close(found[0, 0, :, :2], torch.tensor([[0.0, 1.0]] * 2), rtol=0, atol=2e-3)
    assert factor[0, 0].tolist() == [[1.0, 1.0, 0.0, 0.0]] * 2


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system has no posix_fadvise")
def test_rows_on_disk_are_asked_for_ahead(tmp_path, monkeypatch):
    """Rows 1 and 2 of the second of two processes are samples 3 and 5; a row has 2 x 8 x 8 bytes."""
    asked = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, start, length, __: asked.append((start, length)))
    shard, path = Shard(1, 2), tmp_path / "heatmaps.bin"
    HeatmapStore(7, 2, (4, 4), HeatmapPlan(), shard=shard, path=path).expect(torch.tensor([5, 3]))
    assert asked == [(256, 128), (128, 128)]
    HeatmapStore(7, 2, (4, 4), HeatmapPlan(), shard=shard).expect(torch.tensor([5, 3]))
    assert len(asked) == 2


def test_asking_ahead_changes_nothing(tmp_path):
    store = HeatmapStore(3, 2, (2, 2), HeatmapPlan(), path=tmp_path / "heatmaps.bin")
    store.values.fill_(7)
    store.expect(torch.tensor([2, 0]))
    assert bool((store.values == 7).all())
