"""Scores, rankings and heatmaps over two processes equal those of one, bit for bit."""

import importlib.util
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from fewtags.stores.shard import SINGLE_PROCESS, Shard

WORKER = Path(__file__).with_name("two_processes_worker.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What one process holds, and what each of two holds."""
    folder = tmp_path_factory.mktemp("two")
    with ExitStack() as stack:
        logs = [stack.enter_context((folder / f"{rank}.log").open("w")) for rank in range(2)]
        workers = [
            subprocess.Popen(
                [sys.executable, "-W", "error", str(WORKER), str(rank), str(folder)],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stderr=log,
            )
            for rank, log in enumerate(logs)
        ]
        try:
            codes = [worker.wait(timeout=120) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    assert codes == [0, 0], [(folder / f"{rank}.log").read_text() for rank in range(2)]
    spec = importlib.util.spec_from_file_location("two_processes_worker", WORKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    state, found = module.run(SINGLE_PROCESS)
    saved = [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]
    return {"state": state, "found": found}, saved


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


def test_both_processes_report_the_diagnostics_of_one(results):
    one, two = results
    assert set(one["found"][2]) == {
        "predicted_positives_per_image",
        "expected_positives_per_image",
        "expected_positives_precision",
        "expected_positives_recall",
    }
    assert two[0]["found"] == two[1]["found"] == one["found"]
