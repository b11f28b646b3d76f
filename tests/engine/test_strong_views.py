"""FixMatch from end to end: strong views arrive, whoever asks for them, and runs with them can be repeated."""

import json

import numpy as np
import pytest
import torch

from fewtags.engine.checkpoint import CheckpointFolder
from fewtags.engine.events import Ended, StepEnded
from fewtags.engine.planning import make_plan
from fewtags.engine.tables import Tables
from fewtags.engine.tensor_files import load_part
from fewtags.engine.train_run import TrainRun, open_run
from fewtags.errors import ConfigError
from fewtags.labels import Label
from fewtags.photos.workers import Workers
from fewtags.table.table import LabelTable

# Python 3.12 and later warn of every fork of a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

FIXMATCH = {"objective": {"name": "fixmatch", "pseudo_fill": "unknown", "pseudo_from": 1, "positive_from": 0.51,
                          "negative_to": 0.5, "uncertainty_views": 2, "uncertain_positive": 1.0,
                          "uncertain_negative": 1.0}}  # fmt: skip
UNCACHED = {
    "train__cached_views": 0,
    "train__stages": [{"name": "main", "epochs": 3, "lr": 1e-2, "trainable": 1}],
    "train__checkpoint_every_steps": 2,
}


@pytest.fixture
def start(tables, make_config):
    """Make a run in a folder; changes as in `make_config`."""

    def made(out, **changes):
        config = make_config(**FIXMATCH | changes)
        return TrainRun(make_plan(config, tables=tables, cpu=True), out, cpu=True)

    return made


def outcome(out):
    """Weights, and all that was recorded but for what a clock says."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in line.items() if k not in ("seconds", "cpu_seconds")} for line in lines]
    return (out / "model.safetensors").read_bytes(), kept


@pytest.mark.parametrize("changes", [{"train__checkpoint_every_steps": 2}, UNCACHED], ids=["cached", "uncached"])
def test_a_run_goes_on_with_the_same_bits_and_logs_its_pseudo_labels(start, tmp_path, changes):
    """Left in the middle of its second epoch, the first one with pseudo-labels."""
    assert isinstance([*start(tmp_path / "whole", **changes).start()][-1], Ended)
    for event in start(tmp_path / "left", **changes).start():
        if isinstance(event, StepEnded) and event.global_step == 5:
            break
    [*open_run(tmp_path / "left", cpu=True).resume()]
    assert outcome(tmp_path / "left") == outcome(tmp_path / "whole")
    first, second, third = outcome(tmp_path / "whole")[1]
    assert "train/pseudo" not in first
    assert second["train/pseudo"] > 0
    assert third["state/pseudo_positives_per_image"] + third["state/pseudo_negatives_per_image"] > 0
    assert any(0 <= third.get(f"state/pseudo_{kind}_precision", -1) <= 1 for kind in ("positive", "negative"))


def test_two_workers_give_the_run_of_none(start, tmp_path):
    for count in (0, 2):
        run = start(tmp_path / str(count), **UNCACHED | {"train__stages": UNCACHED["train__stages"][:1]})
        run.workers = Workers(count)
        [*run.start()]
    assert outcome(tmp_path / "0") == outcome(tmp_path / "2")


@pytest.mark.parametrize("views", [0, 2])
def test_only_an_objective_that_asks_gets_strong_views(start, tmp_path, views):
    asked, not_asked = (
        next(start(tmp_path / name, train__cached_views=views, **changes).photos.source().batches(1, 0))
        for name, changes in (("a", {}), ("b", {"objective": {"name": "patchml"}}))
    )
    assert not_asked.second_view is None
    assert torch.equal(asked.images, not_asked.images), "the weak views are those of everyone"
    assert asked.second_view.images.shape == asked.images.shape
    assert not torch.equal(asked.second_view.views, asked.views)
    assert not torch.equal(asked.second_view.images, asked.images)


def test_both_views_reach_the_net_in_one_memory_format(start, tmp_path):
    """Or torch would copy both when it puts them together."""
    run, seen = start(tmp_path, **UNCACHED), []
    step = run.plan.objective.step
    run.plan.objective.step = lambda net, batch, at: seen.append(batch) or step(net, batch, at)
    next(event for event in run.start() if isinstance(event, StepEnded))
    for images in (seen[0].images, seen[0].second_view.images):
        assert images.is_contiguous(memory_format=torch.channels_last)


def test_strong_views_count_in_the_plan_of_the_cache(start, tmp_path):
    one, other = (
        start(tmp_path / name, **changes).plan.cache
        for name, changes in (("a", {}), ("b", {"objective": {"name": "patchml"}}))
    )
    assert (one.views, other.views) == (2, 2)
    assert one.bytes == 2 * other.bytes


def test_images_without_any_label_are_what_it_is_for(scenes, start, make_config, tmp_path):
    """Every second image loses its label: only those get pseudo-labels. Where all are labelled, it is refused."""
    unlabelled = FIXMATCH["objective"] | {"pseudo_fill": "unlabelled"}
    with pytest.raises(ConfigError, match="each of the 24 training images has a label"):
        start(tmp_path, objective=unlabelled)
    dense = scenes.train.matrix.dense()
    dense[::2] = Label.UNKNOWN
    image, class_ = np.nonzero(dense)
    names = scenes.train.images.to_pylist()
    half = LabelTable.build(
        names, scenes.train.classes, image=image, class_=class_, state=dense[image, class_], root=scenes.train.root
    )
    plan = make_plan(make_config(objective=unlabelled), tables=Tables(half, scenes.val), cpu=True)
    out = tmp_path / "run"
    [*TrainRun(plan, out, cpu=True).start()]
    values = load_part(CheckpointFolder(out / "checkpoints").last() / "parts-0", "pseudo_labels")["values"]
    assert len(plan.tables.train) == 24
    assert (values[::2] != Label.UNKNOWN).any(1).all()
    assert (values[1::2] == Label.UNKNOWN).all()
