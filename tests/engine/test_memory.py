"""Whether running scores and heatmaps fit, with the bytes counted by hand."""

from pathlib import Path

import pytest
import torch

from fewtags.engine import memory
from fewtags.engine.memory import heatmap_need, refuse_large_stores
from fewtags.errors import ConfigError
from fewtags.objectives.base import RunFacts
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.stores.rows import ScoreStore, score_bytes


def heatmap_memory(objective, samples, classes, grid, *, most_positives=1, **options):
    """Refuse what does not fit; bytes of the heatmaps, over all processes."""
    facts = RunFacts(samples=samples, classes=classes, grid=grid, most_positives=most_positives)
    stores = objective.memory(facts)
    refuse_large_stores(stores, samples, classes, **options)
    return sum(store.size(samples) for store in stores if store.name == "heatmaps")


@pytest.fixture
def gigabyte(monkeypatch):
    """Free in memory for the state of a run, and on the disk."""
    monkeypatch.setattr(memory, "free_memory", lambda device=None: 2 * 10**9)
    monkeypatch.setattr(memory, "free_disk", lambda path: 3 * 10**9)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_bytes_of_scores_are_those_of_the_store(dtype):
    store = ScoreStore(7, 5, dtype=getattr(torch, dtype))
    assert score_bytes(7, 5, dtype) == store.values.nbytes + store.visits.nbytes


def test_heatmaps_that_fit(gigabyte):
    """1000 images x 10 classes x 28 x 28 cells, and 4 bytes of visits per image."""
    needed = heatmap_memory(ExpectedNegative(scl_weight=1.0), 1000, 10, (14, 14), cpu=True)
    assert needed == 1000 * (10 * 28 * 28 + 4)


def test_heatmaps_that_do_not_fit_name_the_largest_k_that_does(gigabyte):
    """50,000 images x (k x 784 + 2 k ids + 4) bytes fit for k up to 25: 50,000 x 19,654 = 0.9827 GB.

    Scores take 50,000 x (80 x 4 + 4) = 0.0162 GB of the 1 GB, so that 0.9838 are left; with 26, it would be 1.02.
    """
    with pytest.raises(ConfigError) as error:
        heatmap_memory(ExpectedNegative(scl_weight=1.0), 50_000, 80, (14, 14), cpu=True)
    assert str(error.value) == (
        "heatmaps of 50,000 images and 80 classes take 3.1 GB, and 1.0 GB beside 0.0 GB of running scores may be used: "
        'objective.heatmap_top_k = 25 fits; objective.heatmap_storage = "disk" needs no more memory; '
        "objective.scl_weight = 0 does without heatmaps."
    )
    assert heatmap_memory(ExpectedNegative(scl_weight=1.0, heatmap_top_k=25), 50_000, 80, (14, 14), cpu=True) < 10**9
    with pytest.raises(ConfigError, match="heatmap_top_k = 25 fits"):
        heatmap_memory(ExpectedNegative(scl_weight=1.0, heatmap_top_k=26), 50_000, 80, (14, 14), cpu=True)


def test_no_k_below_the_annotated_positives_is_proposed(gigabyte):
    with pytest.raises(ConfigError, match="not even the 30 heatmaps of annotated classes per image would fit"):
        heatmap_memory(ExpectedNegative(scl_weight=1.0), 50_000, 80, (14, 14), most_positives=30, cpu=True)
    with pytest.raises(ConfigError, match="not even one heatmap per image would fit"):
        heatmap_memory(ExpectedNegative(scl_weight=1.0), 2_000_000, 80, (14, 14), cpu=True)


def test_heatmaps_on_disk_need_room_for_two_checkpoints_as_well(gigabyte):
    method = ExpectedNegative(scl_weight=1.0, heatmap_storage="disk")
    assert heatmap_memory(method, 15_000, 80, (14, 14)) < 10**9
    with pytest.raises(ConfigError) as error:
        heatmap_memory(method, 50_000, 80, (14, 14))
    assert str(error.value) == (
        "heatmaps of 50,000 images and 80 classes take 3.1 GB, and 1.0 GB of the disk may be used: "
        "objective.heatmap_top_k = 25 fits; objective.scl_weight = 0 does without heatmaps."
    )


def test_the_disk_is_that_of_the_run_folder(monkeypatch, tmp_path):
    free = {tmp_path / "runs" / "a": 10**12, Path.cwd(): 0}
    monkeypatch.setattr(memory, "free_disk", free.__getitem__)
    method = ExpectedNegative(scl_weight=1.0, heatmap_storage="disk")
    assert heatmap_memory(method, 100, 80, (14, 14), out=tmp_path / "runs" / "a", cpu=True) > 0
    with pytest.raises(ConfigError, match=r"and 0\.0 GB of the disk may be used"):
        heatmap_memory(method, 100, 80, (14, 14), cpu=True)


def test_scores_are_counted_also_without_heatmaps(gigabyte):
    """1,000,000 x (400 x 4 + 4) = 1.604 GB; in float16 0.804."""
    method = ExpectedNegative(scl_weight=0.0)
    assert heatmap_memory(method, 1000, 400, (14, 14), cpu=True) == 0
    with pytest.raises(ConfigError) as error:
        heatmap_memory(method, 1_000_000, 400, (14, 14), cpu=True)
    assert str(error.value) == (
        "running scores of 1,000,000 images and 400 classes take 1.6 GB, and 1.0 GB may be used: "
        'objective.score_dtype = "float16" fits.'
    )
    smaller = ExpectedNegative(scl_weight=0.0, score_dtype="float16")
    assert heatmap_memory(smaller, 1_000_000, 400, (14, 14), cpu=True) == 0
    with pytest.raises(ConfigError) as error:
        heatmap_memory(smaller, 2_000_000, 400, (14, 14), cpu=True)
    assert str(error.value) == (
        "running scores of 2,000,000 images and 400 classes take 1.6 GB, and 1.0 GB may be used: train with more "
        "memory, on fewer images, or with objective='assume_negative', which has no scores."
    )


def test_scores_leave_less_for_heatmaps(gigabyte):
    """Scores: 70,000 x (2,000 x 4 + 4) = 0.5603 GB, so that 0.4397 of 1 GB are left.

    Heatmaps of 14 x 14 cells with their ids: 70,000 x (31 x (196 + 2) + 4) = 0.4299 GB; with 32 it would be 0.4438.
    """
    fits = ExpectedNegative(heatmap_top_k=31)
    assert heatmap_memory(fits, 70_000, 2000, (7, 7), cpu=True) == 70_000 * (31 * 198 + 4)
    with pytest.raises(ConfigError, match=r"0\.4 GB beside 0\.6 GB of running scores .*heatmap_top_k = 31 fits"):
        heatmap_memory(ExpectedNegative(heatmap_top_k=32), 70_000, 2000, (7, 7), cpu=True)


@pytest.mark.parametrize(
    ("device", "images", "owner"), [("cuda", 12_500, " of this GPU"), ("cpu", 25_000, " of this machine")]
)
def test_each_memory_holds_the_rows_of_its_processes(gigabyte, monkeypatch, device, images, owner):
    """Four processes, two a machine: a GPU holds a quarter of the rows, main memory half of them.

    The bytes that are returned are those of all of them.
    """
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(memory, "torch_device", lambda cpu: torch.device(device))
    method = ExpectedNegative(scl_weight=1.0)
    assert heatmap_memory(method, 25_000, 80, (14, 14)) == 25_000 * (80 * 784 + 4)
    monkeypatch.setattr(memory, "free_memory", lambda device=None: 2 * 10**8)
    with pytest.raises(ConfigError, match=f"^heatmaps of {images:,} images{owner} and 80 classes take"):
        heatmap_memory(method, 50_000, 80, (14, 14))


def test_what_check_is_told(gigabyte):
    need = heatmap_need((7, 7))
    assert need.limit == 10**9
    assert need.needed(100, 10, None) == 100 * (10 * 14 * 14 + 4)
    assert need.needed(100, 10, 2) == 100 * (2 * 14 * 14 + 2 * 2 + 4)
