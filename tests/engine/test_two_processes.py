"""Two processes train the same as one that sees the same batches, and measure every image once."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from two_processes import both

from fewtags.engine.evaluate import predict_logits
from fewtags.engine.model import load_model, make_policy
from fewtags.engine.tables import Tables
from fewtags.engine.thresholds import choose_thresholds
from fewtags.photos.dataset import EvalSet, PhotoFolder
from fewtags.photos.loader import Collate, EvalLoader
from fewtags.stores.shard import Shard
from fewtags.table.storage import load

WORKER = Path(__file__).with_name("two_processes_worker.py")


@pytest.fixture(scope="module")
def results(scenes, tmp_path_factory):
    """The folder of the two processes, and what each of them ended with."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "scenes").symlink_to(scenes.folder)
    return folder, both(WORKER, folder)


@pytest.fixture(scope="module")
def one(tiny, duo):
    """What one process ends with that sees the batches of both."""
    return duo.end_of(tiny.make_fit(None, seen_as=2, **duo.EQUAL)), duo.SAMPLES


def assert_equal(one, two):
    assert one.keys() == two.keys()
    for part, values in one.items():
        for key, value in values.items():
            assert torch.equal(value, two[part][key]), (part, key)


def test_weights_are_those_of_one_process(results, one):
    _, two = results
    single, _ = one
    for net in ("net", "averaged"):
        for key, value in single["state"][net].items():
            torch.testing.assert_close(two[0]["whole"]["state"][net][key], value, rtol=1e-4, atol=1e-5)
            assert torch.equal(two[0]["whole"]["state"][net][key], two[1]["whole"]["state"][net][key]), key


def test_rows_of_the_stores_are_those_of_one_process(results, one):
    _, two = results
    single, samples = one
    for rank in range(2):
        own, state = Shard(rank, 2).owned(samples), two[rank]["whole"]["state"]
        for part in ("scores", "heatmaps"):
            assert torch.equal(state[part]["visits"], single["state"][part]["visits"][own])
        torch.testing.assert_close(
            state["scores"]["values"], single["state"]["scores"]["values"][own], rtol=0, atol=1e-5
        )
        # A level of uint8 may round to its neighbour.
        levels = state["heatmaps"]["values"].int() - single["state"]["heatmaps"]["values"][own].int()
        assert levels.abs().max() <= 1
        assert (levels != 0).float().mean() < 0.01
        cuts = state["expected_positives"]
        assert torch.equal(cuts["cut_key"], single["state"]["expected_positives"]["cut_key"])


def test_records_are_means_over_all_images(results, one):
    """Not those of the first process: a batch of theirs has 12 or 11 samples on two processes."""
    _, two = results
    single, _ = one
    assert two[0]["whole"]["records"] == two[1]["whole"]["records"]
    together, alone = copy.deepcopy((two[0]["whole"]["records"], single["records"]))
    for record, expected in zip(together, alone, strict=True):
        assert record.pop("stage") == expected.pop("stage")
        assert record == pytest.approx(expected, rel=1e-4)


def test_modules_of_the_objective_are_those_of_one_process(results, tiny, duo):
    """Their gradients are averaged by the loop, for they are outside of the net."""
    _, two = results
    single = duo.end_of(tiny.make_fit(None, seen_as=2, objective=tiny.OwnLayer(0), **duo.EQUAL))["state"]["layer"]
    first, second = (one["layer"]["state"]["layer"] for one in two)
    for key, value in single.items():
        torch.testing.assert_close(first[key], value, rtol=1e-4, atol=1e-5)
        assert torch.equal(first[key], second[key]), key


def test_resume_is_bitwise_equal(results):
    _, two = results
    for rank in range(2):
        for whole, resumed in (("whole", "resumed"), ("trained", "trained and resumed")):
            assert_equal(two[rank][resumed]["state"], two[rank][whole]["state"])
            back = two[rank][resumed]["records"]
            assert back == two[rank][whole]["records"][-len(back) :]


def test_every_process_has_its_stores_in_the_checkpoint(results):
    folder, _ = results
    (path,) = (folder / "whole" / "checkpoints").glob("step-*")
    assert json.loads((path / "progress.json").read_text())["processes"] == 2
    for rank in range(2):
        saved = torch.load(path / f"parts-{rank}" / "scores.pt", weights_only=True)
        assert len(saved["values"]) == (12, 11)[rank]


def test_processes_measure_the_same_net(results):
    """BatchNorm in training mode sees other images on each process; at the end of an epoch the first one's count."""
    _, (first, second) = results
    assert first["trained"]["records"] == second["trained"]["records"]
    for net in ("net", "averaged"):
        for key, value in first["trained"]["state"][net].items():
            assert torch.equal(value, second["trained"]["state"][net][key]), (net, key)


def test_a_bad_loss_on_one_process_stops_both(results):
    _, two = results
    assert "nan at epoch 0, step 2; weights and stores are as before it" in two[1]["stopped"]
    assert "at epoch 0, step 2; weights and stores are as before it" in two[0]["stopped"]


def test_every_image_is_measured_once(results, scenes):
    """11 and 5 images on two processes: none is dropped, doubled or out of place."""
    folder, _ = results
    net, info = load_model(folder / "run")
    for name, table in (("val", scenes.val), ("test", scenes.test)):
        data = EvalSet(PhotoFolder(table.root, table.images), table.matrix, make_policy(info.policy, info.size))
        alone = predict_logits(net, EvalLoader(data, 4, Collate(info.mean, info.std)), len(table), torch.device("cpu"))
        together = np.load(folder / "run" / "evaluation" / f"{name}.npy")
        assert together.shape == (len(table), 10)
        np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)
        assert len(np.unique(together, axis=0)) == len(table)
        assert json.loads((folder / "run" / "evaluation" / f"{name}.json").read_text())["images"] == len(table)


def test_fewer_images_than_processes(results):
    _, (first, second) = results
    assert first["one photo"].shape == (1, 10)
    assert torch.equal(first["one photo"], second["one photo"])


@pytest.mark.parametrize("name", ["frozen", "moving"])
def test_thresholds_from_training_scores_are_those_of_one_process(results, scenes, name):
    """Three validation photos with positives only: each class takes its share of 3 + 24 photos, none twice."""
    folder, _ = results
    net, info = load_model(folder / name)
    train, val = load(folder / name / "tables" / "train.parquet"), load(folder / name / "tables" / "val.parquet")
    assert len(train) == len(scenes.train)
    logits = []
    for table in (val, train):
        data = EvalSet(PhotoFolder(table.root, table.images), table.matrix, make_policy(info.policy, info.size))
        loader = EvalLoader(data, 4, Collate(info.mean, info.std))
        logits.append(predict_logits(net, loader, len(table), torch.device("cpu")))
    alone = choose_thresholds(logits[0], Tables(train, val), None, logits[1])
    assert [*alone.rules] == [*info.threshold_rules]
    np.testing.assert_allclose(info.thresholds, alone.values, rtol=0, atol=1e-4)
    without = choose_thresholds(logits[0], Tables(train, val))
    assert np.abs(without.values - info.thresholds).max() > 1e-3


def test_the_model_is_there_when_the_run_has_ended_on_every_process(results):
    assert [one["model at once"] for one in results[1]] == [True, True]


def test_a_run_goes_on_with_the_same_bits(results):
    folder, _ = results
    for name in ("model.safetensors", "best.safetensors", "evaluation/val.npy", "evaluation/test.json"):
        assert (folder / "left run" / name).read_bytes() == (folder / "run" / name).read_bytes(), name
