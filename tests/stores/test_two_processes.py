"""Scores, rankings and heatmaps over two processes equal those of one, bit for bit."""

from pathlib import Path

import pytest
import torch
from two_processes import both, load

from fewtags.stores.shard import SINGLE_PROCESS, Shard

WORKER = Path(__file__).with_name("two_processes_worker.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What one process holds, and what each of two holds."""
    return load(WORKER).held(None, SINGLE_PROCESS), both(WORKER, tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("part", ["scores", "heatmaps"])
def test_rows_are_those_of_one_process(results, part):
    one, two = results
    for rank in range(2):
        for name, whole in one["state"][part].items():
            own = Shard(rank, 2).owned(len(whole))
            assert torch.equal(two[rank]["state"][part][name], whole[own]), (part, name, rank)


def test_both_processes_have_the_ranking_of_one(results):
    one, two = results
    assert one["state"]["expected_positives"]["cut_score"].isfinite().any()
    for rank in range(2):
        for name, whole in one["state"]["expected_positives"].items():
            assert torch.equal(two[rank]["state"]["expected_positives"][name], whole), (name, rank)


def test_each_process_ranks_its_share_of_the_classes(results):
    """Five classes in two epochs, and none of them twice."""
    one, two = results
    assert one["ranked"] == [0, 1, 2, 3, 4] * 2
    assert [held["ranked"] for held in two] == [[0, 2, 4] * 2, [1, 3] * 2]


def test_a_small_problem_is_shared_too(results):
    """Five classes, which one block would hold: blocks of half the cells, (N C / 2) / N = 2 classes wide."""
    one, two = results
    assert one["ranked_by_default"] == [0, 0]
    assert [held["ranked_by_default"] for held in two] == [[0, 4] * 2, [2] * 2]


def test_both_processes_report_the_diagnostics_of_one(results):
    one, two = results
    assert set(one["found"][2]) == {
        "predicted_positives_per_image",
        "expected_positives_per_image",
        "expected_positives_precision",
        "expected_positives_recall",
    }
    assert two[0]["found"] == two[1]["found"] == one["found"]


def test_rows_of_two_processes_have_the_ranking_of_blocks(results):
    """Some classes are found in the rows, and the others are left to blocks, which the processes share."""
    one, two = results
    assert 0 < len(one["left"]) < 10
    for held in (one, *two):
        assert sorted(two[0]["left"] + two[1]["left"]) == one["left"]
        for name, whole in one["by_blocks"][0].items():
            assert torch.equal(held["by_rows"][0][name], whole), name
        for logged, expected in zip(held["by_rows"][1], one["by_blocks"][1], strict=True):
            assert logged == pytest.approx(expected)


def test_rows_of_all_processes_stand_one_behind_the_other(results):
    """3 and 2, 1 and 4, 0 and 2 rows, those of the second process from 100 on; where each one's own begin."""
    one, two = results
    expected = ([0, 1, 2, 100, 101], [0, 100, 101, 102, 103], [100, 101])
    for rank, begin in enumerate(([0, 0, 0], [3, 1, 0])):
        assert [rows.flatten().tolist() for rows, _ in two[rank]["together"]] == [*expected]
        assert [first for _, first in two[rank]["together"]] == begin
        assert all(rows.dtype == torch.int64 for rows, _ in two[rank]["together"])
    assert [(rows.flatten().tolist(), first) for rows, first in one["together"]] == [([0, 1, 2], 0), ([0], 0), ([], 0)]
