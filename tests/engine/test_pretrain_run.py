"""Pretraining runs: what they write, going on after an interruption to the same bits, and what they refuse."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from fewtags.engine.encoder_file import find_encoder, load_encoder
from fewtags.engine.events import EpochEnded, Noted, StepEnded
from fewtags.engine.methods import read_pretrain_settings
from fewtags.engine.pretrain_plan import make_pretrain_plan
from fewtags.engine.pretrain_run import PretrainRun, open_pretrain_run, purity_hint
from fewtags.engine.tensor_files import load_part
from fewtags.errors import CheckpointError, ConfigError, DataError, TrainingError

PHOTOS = 20
TREE = {
    "model": {"backbone": "test_resnet"},
    "augment": {"size": 32},
    "objective": {"name": "mls", "k": 2, "queue_size": 16, "projection_dim": 8, "momentum": 0.9},
    "train": {"epochs": 3, "batch_size": 6, "lr": 0.05, "workers": 0, "checkpoint_every_steps": 1},
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Twenty small photos of smooth noise."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for n in range(PHOTOS):
        coarse = rng.integers(0, 255, (4, 5, 3), np.uint8)
        Image.fromarray(coarse).resize((50, 40), Image.Resampling.BICUBIC).save(folder / f"{n:02}.png")
    return folder


def plan_for(photos, **sections):
    tree = {name: {**TREE.get(name, {}), **sections.get(name, {})} for name in {*TREE, *sections}}
    tree["data"] = {"train": str(photos), **sections.get("data", {})}
    return make_pretrain_plan(read_pretrain_settings(tree, "test"), cpu=True)


def finish(events, stop=None):
    """Records of the epochs; leaves after so many optimiser steps."""
    found = []
    for event in events:
        if isinstance(event, EpochEnded):
            found.append({k: v for k, v in event.record.items() if k not in ("seconds", "cpu_seconds")})
        if isinstance(event, StepEnded) and event.global_step == stop:
            break
    return found


@pytest.fixture(scope="module")
def whole(photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, finish(PretrainRun(plan_for(photos), out, cpu=True).start())


def test_a_run_leaves_a_backbone_and_what_lay_near_what(whole, photos):
    out, records = whole
    encoder, info = load_encoder(out)
    assert (info.backbone, info.size, info.images, info.epochs) == ("test_resnet", 32, PHOTOS, 3)
    assert info.method["name"] == "mls"
    assert not encoder.training
    features = find_encoder(out)[0](torch.zeros(1, 3, 32, 32))[0]
    assert features.shape[1] == encoder.features_dim
    neighbours = np.load(out / "neighbours.npy")
    assert neighbours.shape == (PHOTOS, 2)
    assert ((neighbours >= 0) & (neighbours < PHOTOS)).all()
    assert [r["epoch"] for r in records] == [0, 1, 2]
    assert all(np.isfinite(r["train/loss"]) for r in records)
    before = plan_for(photos).encoder.state_dict()
    name = next(iter(before))
    assert not torch.equal(before[name], encoder.state_dict()[name])


@pytest.mark.parametrize("stop", [1, 4, 6, 11])
def test_an_interrupted_run_has_the_same_bits(whole, photos, tmp_path, stop):
    """Stopped in the first epoch, at the end of one, and just before the end of the last; 4 steps an epoch."""
    out, records = whole
    first = finish(PretrainRun(plan_for(photos), tmp_path / "run", cpu=True).start(), stop)
    second = finish(open_pretrain_run(tmp_path / "run", cpu=True).resume())
    assert first + second[len(first) + len(second) - len(records) :] == records
    one, two = (load_file(place / "encoder.safetensors") for place in (out, tmp_path / "run"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert np.array_equal(np.load(out / "neighbours.npy"), np.load(tmp_path / "run" / "neighbours.npy"))
    (a,), (b,) = ([*(place / "checkpoints").glob("step-*/parts-0")] for place in (out, tmp_path / "run"))
    for part in ("queues", "follower", "projector", "neighbours"):
        one, two = load_part(a, part), load_part(b, part)
        assert all(torch.equal(one[name], two[name]) for name in one), part


def test_workers_change_nothing(whole, photos, tmp_path):
    _, records = whole
    again = finish(PretrainRun(plan_for(photos, train={"workers": 2}), tmp_path / "run", cpu=True).start())
    assert again == records


def test_small_problems_scale_what_nobody_chose(photos):
    """20 photos: the smallest queue, of which 5 in 256 are less than one label; a tenth of 40 epochs warms up."""
    plan = plan_for(photos, objective={"name": "mls", "momentum": 0.95}, train={"epochs": 40})
    objective = {"name": "mls", "momentum": 0.95}
    tree = read_pretrain_settings(
        {"data": {"train": str(photos)}, "objective": objective, "train": {"epochs": 40}}, "x"
    )
    objective = make_pretrain_plan(tree, cpu=True).resolved.objective
    assert {k: objective[k] for k in ("queue_size", "k", "momentum", "neighbour_from", "reduction")} == {
        "queue_size": 16,
        "k": 1,
        "momentum": 0.95,
        "neighbour_from": 4,
        "reduction": "balanced",
    }
    assert plan.resolved.objective["k"] == 2


def test_the_default_is_moco(photos):
    assert (
        make_pretrain_plan(read_pretrain_settings({"data": {"train": str(photos)}}, "x"), cpu=True).resolved.objective[
            "name"
        ]
        == "moco"
    )


def test_the_plan_says_what_suits_the_data_badly(photos):
    lines = [*plan_for(photos, objective={"queue_size": 21, "k": 4}).lines()]
    assert any(line.startswith("warning: a queue of 21 for 20 photos has several keys of the same") for line in lines)
    assert "warning: k = 4 of a queue of 21: more than a twentieth are positives; lower objective.k" in lines
    assert not any(line.startswith("warning: the queue has") for line in lines)


def test_a_queue_shorter_than_a_step_is_said(photos):
    lines = [*plan_for(photos, objective={"queue_size": 4, "k": 1}).lines()]
    assert any(
        line.startswith("warning: the queue has 4 slots, but a step has 6 photos: 2 keys of each step are not stored")
        for line in lines
    )


def test_an_unreadable_photo_is_named_and_left_out(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "03.png").write_bytes(b"no picture")
    plan = plan_for(tmp_path / "photos")
    assert len(plan.photos) == PHOTOS - 1
    assert [row.item for row in plan.photos.notes.excluded] == ["03.png"]


def test_a_collapsed_net_stops_the_run_and_says_what_helps(photos, tmp_path):
    """Weight decay that leaves nothing of the weights but the biases: every image gets the same vector."""
    plan = plan_for(photos, train={"epochs": 8, "weight_decay": 19.0, "lr": 0.05})
    with pytest.raises(TrainingError, match=r"^the net has collapsed by epoch \d: spread of the vectors 0\.0\d\d "):
        finish(PretrainRun(plan, tmp_path / "run", cpu=True).start())
    plan = plan_for(photos, train={"epochs": 8, "weight_decay": 19.0, "lr": 0.05, "collapse": "warn"})
    events = [*PretrainRun(plan, tmp_path / "warned", cpu=True).start()]
    assert sum(isinstance(event, EpochEnded) for event in events) == 8
    assert sum(isinstance(event, Noted) for event in events) == 1
    text = (tmp_path / "run" / "pretrain.toml").read_text()
    (tmp_path / "run" / "pretrain.toml").write_text(text.replace('collapse = "stop"', 'collapse = "warn"'))
    resumed = finish(open_pretrain_run(tmp_path / "run", cpu=True).resume())
    assert resumed[-1]["epoch"] == 7


def test_a_run_cannot_go_on_with_other_settings_or_photos(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "photos")
    out = tmp_path / "run"
    finish(PretrainRun(plan_for(tmp_path / "photos"), out, cpu=True).start(), 2)
    (tmp_path / "photos" / "new.png").write_bytes((photos / "00.png").read_bytes())
    assert len(open_pretrain_run(out, cpu=True).plan.photos) == PHOTOS
    text = (out / "pretrain.toml").read_text()
    (out / "pretrain.toml").write_text(text.replace("epochs = 3", "epochs = 4"))
    with pytest.raises(
        CheckpointError, match=r"was edited since the run began: train\.epochs 3 -> 4; restore the value"
    ):
        open_pretrain_run(out, cpu=True)
    (out / "pretrain.toml").write_text(text)
    (tmp_path / "photos" / "05.png").unlink()
    with pytest.raises(CheckpointError, match=r"05\.png no longer exists, but .* began with it; restore it"):
        open_pretrain_run(out, cpu=True)


def test_what_cannot_be_is_refused(whole, photos, tmp_path):
    out, _ = whole
    with pytest.raises(ConfigError, match="is not empty; choose another out"):
        finish(PretrainRun(plan_for(photos), out, cpu=True).start())
    with pytest.raises(CheckpointError, match=r"is finished; its encoder is .*encoder\.safetensors"):
        open_pretrain_run(out, cpu=True)
    with pytest.raises(ConfigError, match="leave no negative; lower k"):
        plan_for(photos, objective={"k": 16})
    with pytest.raises(ConfigError, match="sync_batchnorm needs several CUDA GPUs"):
        plan_for(photos, train={"sync_batchnorm": True})
    with pytest.raises(ConfigError, match=r"objective\.name = 'bce' is not a method"):
        plan_for(photos, objective={"name": "bce"})
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError):
        plan_for(tmp_path / "empty")


def test_the_record_says_what_was_found_and_chosen(whole):
    out, _ = whole
    record = json.loads((out / "environment.json").read_text())
    assert record["settings"]["resolved.toml"]["objective"]["k"] == 2
    assert any("20 photos" in line for line in record["notes"])


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"train": {"batch_size": 2}, "objective": {"queue_size": 4, "k": 1}},
            None,  # 20 photos: ten batches of two
        ),
        (
            {"objective": {"batchnorm_groups": 4}},
            "20 photos on 1 process(es) with train.batch_size = 6 give a batch of 5, but two images are needed in each "
            "of 4 BatchNorm groups; change the batch size, lower objective.batchnorm_groups or add photos.",
        ),
    ],
)
def test_batches_too_small_for_batchnorm_are_refused_before_anything_is_written(photos, sections, message):
    if message is None:
        plan_for(photos, **sections)
        return
    with pytest.raises(ConfigError) as error:
        plan_for(photos, **sections)
    assert str(error.value) == message


def test_a_last_batch_of_one_is_refused(photos, tmp_path):
    """Seven photos in batches of at most two: 2, 2, 2, 1."""
    for n in range(7):
        shutil.copy(photos / f"{n:02}.png", tmp_path)
    with pytest.raises(
        ConfigError, match=r"give a batch of 1, but two images are needed; change the batch size or add"
    ):
        plan_for(tmp_path, train={"batch_size": 2})


def test_the_paper_preset_leaves_nothing_to_derive(photos):
    plan = plan_for(photos, train={"preset": "paper"}, objective={"name": "mls", "k": 20, "queue_size": None})
    assert plan.resolved.objective["queue_size"] == 4096
    assert any("a queue of 4,096 for 20 photos has several keys" in note for note in plan.notes)
    assert plan.resolved.stages[0].lr == 0.05


def test_the_rate_is_in_proportion_to_the_photos_that_a_step_sees(photos):
    """20 photos in one batch of at most 64: .3 x 20 / 256; SimSiam .05 x 20 / 256."""
    for method, base in (("moco", 0.3), ("simsiam", 0.05)):
        tree = {"data": {"train": str(photos)}, "objective": {"name": method}, "model": {"backbone": "test_resnet"}}
        plan = make_pretrain_plan(read_pretrain_settings(tree, "x"), cpu=True)
        assert plan.resolved.stages[0].lr == pytest.approx(base * 20 / 256)


def test_a_broken_photo_can_be_replaced_before_the_first_epoch(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "photos")
    broken = tmp_path / "photos" / "04.png"
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    out = tmp_path / "run"
    plan = plan_for(tmp_path / "photos", data={"decode": False}, train={"checkpoint_every_steps": None})
    with pytest.raises(DataError, match=r"To continue, put a readable photo in its place and run `fewtags resume"):
        finish(PretrainRun(plan, out, cpu=True).start())
    broken.write_bytes(whole)
    assert len(finish(open_pretrain_run(out, cpu=True).resume())) == 3


def test_what_was_left_out_is_listed(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "03.png").write_bytes(b"no picture")
    plan = plan_for(tmp_path / "photos")
    assert any(line.startswith("  03.png: ") for line in plan.lines())
    finish(PretrainRun(plan, tmp_path / "run", cpu=True).start(), 1)
    assert "03.png" in (tmp_path / "run" / "excluded.csv").read_text()


def test_photos_in_a_step_and_batchnorm_that_is_not_shuffled(photos):
    tree = read_pretrain_settings({**TREE, "data": {"train": str(photos)}}, "test")
    said = "note: BatchNorm sees the whole batch at once"
    alone, two = (make_pretrain_plan(tree, cpu=True, processes=n) for n in (1, 2))
    assert [sum(said in line for line in plan.lines()) for plan in (alone, two)] == [1, 0]
    assert any("batch 12 (2 processes x 6)" in line for line in two.lines())
    grouped = plan_for(photos, objective={"batchnorm_groups": 2})
    assert not any(said in line for line in grouped.lines())


def test_labels_are_logged_and_change_nothing(whole, photos, tmp_path):
    """A table with half of the photos a, half b: purity from the second epoch on; the rest is as without labels."""
    names = [f"{n:02}.png" for n in range(PHOTOS)]
    lines = ["image,a,b", *(f"{name},{n % 2},{1 - n % 2}" for n, name in enumerate(names))]
    (tmp_path / "tags.csv").write_text("\n".join(lines), "utf-8")
    plan = plan_for(photos, data={"train": str(tmp_path / "tags.csv"), "images": str(photos)})
    assert any("only to log how many nearest photos share a class" in line for line in plan.lines())
    records = finish(PretrainRun(plan, tmp_path / "run", cpu=True).start())
    assert [set(r) - set(bare) for r, bare in zip(records, whole[1], strict=True)] == [
        set(),
        *2 * [{"state/neighbour_purity", "state/neighbour_chance"}],
    ]
    assert all(r[key] == value for r, bare in zip(records, whole[1], strict=True) for key, value in bare.items())
    stopped = tmp_path / "stopped"
    finish(
        PretrainRun(plan_for(photos, data=plan.config.data.model_dump(exclude_none=True)), stopped, cpu=True).start(), 6
    )
    assert finish(open_pretrain_run(stopped, cpu=True).resume())[-1] == records[-1]


def test_a_hint_where_neighbours_are_near_chance():
    near = purity_hint({"state/neighbour_purity": 0.265, "state/neighbour_chance": 0.231})
    assert near.startswith("26 % of the nearest photos share a class, by chance 23 %: neighbours cannot help yet, ")
    assert purity_hint({"state/neighbour_purity": 0.53, "state/neighbour_chance": 0.23}) == ""
    assert purity_hint({}) == ""
