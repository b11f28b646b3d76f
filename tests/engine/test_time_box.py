"""A run in a number of minutes: how many epochs of fine-tuning fit."""

from types import SimpleNamespace

import pytest
import torch

from fewtags.config.presets import ON_CPU, Candidate, Facts, resolve
from fewtags.config.search import candidates, settled
from fewtags.config.sections import TrainConfig
from fewtags.engine import planning
from fewtags.engine import time_box as time_box_module
from fewtags.engine.encoder_file import EncoderInfo, save_encoder
from fewtags.engine.planning import make_plan
from fewtags.engine.time_box import RESERVE, Fitting, Speed, TimeBox, measure_speed, time_box, within
from fewtags.engine.train_run import TrainRun, open_run
from fewtags.errors import ConfigError
from fewtags.nets.encoder import create_encoder
from fewtags.text import command_line

EPOCHS = 6
SPEED = Speed(decoding=0.0, forward=0.5, step=2.0)
"""Of the scenes, 24 + 11 + 5 photos: an epoch takes 24 x 2 + 11 x .5 = 53.5 s, all else 40 x .5 + 16 x .5 = 28 s."""


def timed(make_config, minutes, **train):
    """A configuration with no preset and no stages, as `fewtags train --minutes` makes it."""
    settings = TrainConfig(minutes=minutes, workers=0, **train)
    return make_config(objective={"name": "expected_negative"}).model_copy(update={"train": settings})


@pytest.fixture
def planned(make_config, tables, monkeypatch):
    """Make a plan on a machine of a known speed."""

    def make(minutes, speed=SPEED, **train):
        monkeypatch.setattr(planning, "measure_speed", lambda *_, **__: speed)
        monkeypatch.setattr(planning, "time", SimpleNamespace(perf_counter=lambda: 0.0))  # reading takes no time
        return make_plan(timed(make_config, minutes, **train), tables=tables, cpu=True)

    return make


def minutes_for(epochs):
    return (28 + 53.5 * epochs) / 60 / RESERVE


@pytest.mark.parametrize("epochs", [2, 5])
def test_as_many_epochs_as_fit_and_no_more_than_the_preset_has(planned, epochs):
    plan = planned(minutes_for(epochs) + 0.01)
    assert [(stage.name, stage.epochs) for stage in plan.resolved.stages][1:] == [("main", epochs)]
    assert plan.resolved.preset == "finetune"
    assert plan.notes[0].startswith(
        f"{minutes_for(epochs) + 0.01:g} minutes: {epochs} epochs of about 54 s, and 28 s of"
    )


@pytest.mark.parametrize(("minutes", "words"), [(1, "1 minute:"), (1.5, "1.5 minutes:")])
def test_one_minute_is_singular(minutes, words):
    assert TimeBox((Fitting(64, 0, 54.0),), 28.0).line(minutes).startswith(f"{words} too short for fine-tuning")
    assert TimeBox((Fitting(64, 2, 10.0),), 40.0).line(minutes).endswith("about 1 minute in all")


def test_a_long_time_is_not_used_up(planned):
    stages = planned(1000).resolved.stages
    assert stages == ON_CPU["finetune"].stages
    assert stages[-1].epochs == EPOCHS


def test_a_short_time_solves_the_head_alone(planned):
    plan = planned(minutes_for(2) - 0.01)
    assert plan.resolved.preset == "cpu"
    assert all(stage.solved for stage in plan.resolved.stages)
    assert plan.notes[0].endswith("an epoch takes about 54 s here: the preset cpu, which trains only the head")
    assert plan.config.train.minutes == pytest.approx(minutes_for(2) - 0.01)


def test_a_preset_that_was_named_is_not_replaced(planned):
    minutes = minutes_for(2) - 0.01
    short = f"--minutes {minutes:g} is too short for preset 'finetune': 2 epochs take about 3 minutes here"
    with command_line(), pytest.raises(ConfigError, match=short):
        planned(minutes, preset="finetune")
    assert planned(minutes_for(2) + 0.01, preset="finetune").resolved.stages[-1].epochs == 2


@pytest.mark.parametrize(
    ("workers", "seconds"), [(0, 24 * 3.0 + 11 * 1.5), (1, 24 * 2.0 + 11 * 1.0), (2, 24 * 2 + 5.5)]
)
def test_workers_decode_while_the_net_computes(make_config, tables, workers, seconds):
    resolved = resolve(timed(make_config, 10), Facts(samples=24, classes=10, device="cpu", cores=2))
    speed = Speed(decoding=1.0, forward=0.5, step=2.0)
    box = time_box(10, resolved.model_copy(update={"workers": workers}), tables, speed)
    assert box.first.epoch == pytest.approx(seconds)


def test_epochs_are_shared_by_the_stages_of_a_preset_for_a_gpu(make_config):
    resolved = resolve(timed(make_config, 10), Facts(samples=24, classes=10, device="cuda", cores=2))
    assert [stage.epochs for stage in resolved.stages] == [5, 12]
    assert [stage.epochs for stage in within(resolved, TimeBox((Fitting(64, 6, 1.0),), 1.0)).stages] == [2, 4]


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"epochs": 3}, "epochs gives it"),
        ({"preset": "cpu"}, "and preset='cpu' trains only the head"),
        ({"preset": "views"}, "preset='views' trains only the head"),
    ],
)
def test_settings_that_contradict_the_minutes_are_refused(make_config, train, words):
    with pytest.raises(ConfigError, match=words):
        resolve(timed(make_config, 10, **train), Facts(samples=24, classes=10, device="cpu", cores=2))


def boxed(make_config, tables, seconds, sizes=(64, 96, 128), maps=False, methods=()):
    resolved = resolve(timed(make_config, 10), Facts(samples=24, classes=10, device="cpu", cores=2))
    return resolved, time_box(seconds / 60 / RESERVE, resolved, tables, SPEED, sizes=sizes, maps=maps, methods=methods)


def test_sizes_are_compared_first_as_far_as_they_fit(make_config, tables):
    """At 64 px, 35 photos of train and val take 17.5 s; at 96 px 2.25 times as long. The last passes take 10.5 s."""
    of_two = 17.5 + 17.5 * 2.25 + 10.5 * 2.25
    assert [f.size for f in boxed(make_config, tables, of_two - 0.1)[1].sizes] == [64]
    resolved, box = boxed(make_config, tables, of_two + 0.1)
    assert [(f.size, f.epochs) for f in box.sizes] == [(64, 0), (96, 0)]
    assert "first compares photos of 64 and 96 px; too short for fine-tuning" in box.line(3)
    assert [(c.size, c.epochs) for c in within(resolved, box).search] == [(64, 0), (96, 0)]
    assert settled(within(resolved, box), within(resolved, box).search[1]).preset == "cpu"


def test_methods_are_named_with_the_sizes_at_which_they_are_compared(make_config, tables):
    """Two methods solve two heads on the same features, which takes .02 s more for each size."""
    methods = ("expected_negative", "bce")
    resolved, alone = boxed(make_config, tables, 20, methods=methods)
    named = "first compares the methods expected_negative and bce; too short for fine-tuning"
    assert alone.line(1).startswith(f"1 minute: {named}, since an epoch takes about 54 s here")
    assert [(c.size, c.method) for c in within(resolved, alone).search] == [(64, name) for name in methods]
    of_two = 17.5 + 17.5 * 2.25 + 10.5 * 2.25
    resolved, box = boxed(make_config, tables, of_two + 2 * 53.5 + 1, (64, 96), methods=methods)
    assert box.line(5).startswith(
        "5 minutes: first compares photos of 64 and 96 px, each with the methods expected_negative and bce; "
        "2 epochs of about 54 s at 64 px; 0 epochs of about 120 s at 96 px, and"
    )
    tried = [(64, "expected_negative"), (64, "bce"), (96, "expected_negative"), (96, "bce")]
    assert [(c.size, c.method) for c in within(resolved, box).search] == tried


def test_larger_photos_leave_time_for_fewer_epochs(make_config, tables):
    of_all = 17.5 * (1 + 2.25 + 4) + 10.5 * 4
    resolved, box = boxed(make_config, tables, of_all + 5 * 53.5 + 1)
    assert [(f.size, f.epochs) for f in box.sizes] == [(64, 5), (96, 2), (128, 0)]
    asked = within(resolved, box)
    stages = [settled(asked, candidate).stages for candidate in asked.search]
    assert [[stage.epochs for stage in found] for found in stages] == [[6, 5], [6, 2], [6]]
    assert box.line(10).startswith(
        "10 minutes: first compares photos of 64, 96 and 128 px; 5 epochs of about 54 s at 64 px; 2 epochs of about "
        "120 s at 96 px; 0 epochs of about 214 s at 128 px, and"
    )


def test_solving_on_maps_takes_longer(make_config, tables):
    """240 cells on pooled features take .02 s, and on 4 and 9 places .09 s and .19 s.

    The head of the best is solved again for training: another .19 s at worst.
    """
    whole = 17.5 + 17.5 * 2.25 + 10.5 * 2.25
    assert len(boxed(make_config, tables, whole + 0.1, maps=False)[1].sizes) == 2
    assert len(boxed(make_config, tables, whole + 0.1, maps=True)[1].sizes) == 1
    assert len(boxed(make_config, tables, whole + 0.45, maps=True)[1].sizes) == 1
    box = boxed(make_config, tables, whole + 0.5, maps=True)[1]
    assert [(f.epochs, round(f.head, 2)) for f in box.sizes] == [(0, 0.09), (0, 0.19)]


def test_no_head_is_solved_before_epochs_with_maps(make_config, tables):
    heads = [[f.head for f in boxed(make_config, tables, 2000, maps=maps)[1].sizes] for maps in (True, False)]
    assert heads[0] == [0, 0, 0]
    assert heads[1] == pytest.approx([0.0216] * 3)


def test_the_head_that_is_solved_again_leaves_less_time_for_epochs(make_config, tables, monkeypatch):
    """Solving takes 30 s: once with one size, and once more for training after a comparison of two."""
    monkeypatch.setattr(time_box_module, "solving_seconds", lambda *_: 30.0)
    alone = 28 + 30 + 2 * 53.5 + 1
    assert boxed(make_config, tables, alone, sizes=(64,))[1].first.epochs == 2
    assert boxed(make_config, tables, alone - 2, sizes=(64,))[1].first.epochs == 0
    both = 17.5 + 17.5 * 2.25 + 10.5 * 2.25 + 2 * 30 + 30 + 2 * 120.375
    assert [f.epochs for f in boxed(make_config, tables, both + 1, sizes=(64, 96))[1].sizes] == [4, 2]
    assert [f.epochs for f in boxed(make_config, tables, both - 1, sizes=(64, 96))[1].sizes] == [4, 0]


def test_starts_are_compared_in_place_of_sizes(make_config, tables):
    """35 photos of train and val take 17.5 and 35 s, the last passes of the slower net 21 s, epochs 53.5 and 107 s."""
    resolved = resolve(timed(make_config, 10), Facts(samples=24, classes=10, device="cpu", cores=2))
    starts = {"weights none": SPEED, "weights a/encoder.safetensors": SPEED.at(2**0.5)}
    minutes = (17.5 + 35 + 21 + 5 * 53.5 + 1) / 60 / RESERVE
    box = time_box(minutes, resolved, tables, SPEED, sizes=(64, 96), starts=starts)
    assert [(f.start, f.epochs) for f in box.sizes] == [(name, n) for name, n in zip(starts, (5, 2), strict=True)]
    assert box.line(10).startswith(
        "10 minutes: first compares weights none and weights a/encoder.safetensors; 5 epochs of about 54 s from "
        "weights none; 2 epochs of about 107 s from weights a/encoder.safetensors, and"
    )
    own = Candidate(backbone="resnet50", weights="hub", size=64, pool="mean", method="expected_negative")
    other = own.model_copy(update={"backbone": "resnet18", "weights": "a/encoder.safetensors"})
    asked = within(resolved, box, (own, other))
    assert [(c.weights, c.epochs) for c in asked.search] == [("hub", 5), ("a/encoder.safetensors", 2)]
    assert (asked.weights, settled(asked, asked.search[1]).stages[-1].epochs) == ("hub", 2)
    assert len(time_box(0.01, resolved, tables, SPEED, starts=starts).sizes) == 2


def test_a_size_that_the_user_chose_is_not_searched(planned):
    assert planned(1000).resolved.search == ()


def test_minutes_compare_the_starts_that_the_user_lists(planned, make_config, tables, monkeypatch, tmp_path):
    encoder = create_encoder("test_resnet", weights="none", size=64, seed=1)
    pre = encoder.preprocessing
    info = EncoderInfo(backbone="test_resnet", size=64, mean=pre.mean, std=pre.std, method={"name": "moco"})
    save_encoder(tmp_path / "encoder.safetensors", encoder, info)
    planned(1000)  # the speed of the machine is known
    config = timed(make_config, 5)
    starts = ("preset", str(tmp_path))
    config = config.model_copy(update={"search": config.search.model_copy(update={"starts": starts})})
    resolved = make_plan(config, tables=tables, cpu=True).resolved
    assert [(c.weights, c.epochs) for c in resolved.search] == [
        ("none", 3),
        (str(tmp_path / "encoder.safetensors"), 3),
    ]
    short = config.model_copy(update={"train": config.train.model_copy(update={"minutes": 1.0})})
    plan = make_plan(short, tables=tables, cpu=True)
    assert [c.epochs for c in plan.resolved.search] == [0, 0]
    assert (plan.resolved.preset, plan.resolved.backbone, plan.resolved.weights) == ("cpu", "test_resnet", "none")


def test_minutes_and_a_search_of_the_user_are_refused(make_config):
    config = timed(make_config, 10)
    config = config.model_copy(update={"search": config.search.model_copy(update={"methods": ("bce",)})})
    facts = Facts(samples=24, classes=10, device="cpu", cores=2)
    with pytest.raises(ConfigError, match="minutes chooses what is tried first, and search gives it"):
        candidates(config, resolve(config, facts), facts)


def test_several_processes_would_not_agree(make_config):
    with pytest.raises(ConfigError, match="10 is for one process, and there are 2"):
        resolve(timed(make_config, 10), Facts(samples=24, classes=10, device="cpu", cores=2, processes=2))


def test_measuring_changes_no_weight_and_needs_no_luck(planned, tables):
    plan = planned(1000)
    before = {name: value.clone() for name, value in plan.net.state_dict().items()}
    state = torch.get_rng_state()
    speed = measure_speed(plan.net, plan.resolved, tables.train, cpu=True)
    assert min(speed.decoding, speed.forward, speed.step) > 0
    assert all(torch.equal(value, before[name]) for name, value in plan.net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_run_in_time_resumes_with_the_epochs_that_it_began_with(planned, tmp_path, monkeypatch):
    events = TrainRun(planned(minutes_for(2) + 0.01), tmp_path / "run", cpu=True).start()
    for event in events:
        if type(event).__name__ == "EpochEnded":
            break
    events.close()
    monkeypatch.setattr(planning, "measure_speed", lambda *_, **__: pytest.fail("measured again"))
    run = open_run(tmp_path / "run", cpu=True)
    assert [stage.epochs for stage in run.plan.resolved.stages][1:] == [2]
    for _ in run.resume():
        pass
    assert (tmp_path / "run" / "model.safetensors").exists()
