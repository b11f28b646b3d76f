"""The loop: a run that was interrupted ends with the same bits, and what does not fit is refused."""

import json
import shutil
from functools import partial

import pytest
import torch
from fits import STEPS, assert_same_run, assert_same_state, records, state, take
from forks import forked
from torch import nn

from fewtags.config.sections import StageConfig
from fewtags.engine.checkpoint import sha256_of
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.events import Ended, Started
from fewtags.engine.fit import Fit, FitConfig
from fewtags.errors import CheckpointError
from fewtags.nets.spatial import SpatialHead, SpatialNet
from fewtags.objectives.assume_negative import AssumeNegative
from fewtags.objectives.base import Problem
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.photos.augment import SquareCrop
from fewtags.photos.dataset import PhotoFolder, TrainSet
from fewtags.photos.loader import Collate, EpochSampler, TrainLoader
from fewtags.photos.workers import Workers

VARIANTS = {
    "plain": {},
    "checkpoints inside epochs": {"checkpoint_every_steps": 2},
    "accumulate": {"accumulate": 4, "checkpoint_every_steps": 1},
    "averaged weights": {"weight_ema": 0.8, "checkpoint_every_steps": 4},
    "bf16": {"precision": "bf16", "checkpoint_every_steps": 4},
    "heatmaps on disk": {"method": {"heatmap_storage": "disk"}, "checkpoint_every_steps": 4},
    "everything": {
        "method": {"heatmap_storage": "disk", "heatmap_rounding": "stochastic", "corrected_averages": True},
        "accumulate": 2,
        "weight_ema": 0.9,
        "precision": "bf16",
        "clip_norm": 0.1,
        "weight_decay": 1e-3,
        "checkpoint_every_steps": 2,
    },
}


# --- interrupted and resumed


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_interrupted_run_is_bitwise_equal(tiny, tmp_path, variant):
    """Left inside the warm-up, at its end, and inside and at the end of later epochs.

    What goes on starts from another net, whose weights the checkpoint replaces, and another global generator.
    """
    options = VARIANTS[variant]
    whole = tiny.make_fit(tmp_path / "whole", **options)
    events = take(whole)
    assert whole.parts.keys() == {"scores", "heatmaps", "expected_positives"}
    steps = events[-3].record["step"]  # EpochEnded, Saved, Ended
    ends = {2, steps} if variant in ("plain", "everything") else set()
    for stop in sorted({steps // 4, steps // 2 + 1} | ends):
        out = tmp_path / f"stop-{stop}"
        take(tiny.make_fit(out, **options), stop)
        second = tiny.make_fit(out, net_seed=5 if (out / "checkpoints").exists() else 0, **options)
        with torch.random.fork_rng():
            torch.manual_seed(999)
            take(second, resume=True)
        assert_same_run(second, out, whole, tmp_path / "whole")


@pytest.mark.parametrize("every", [1, 2])
def test_a_run_that_is_interrupted_again_and_again_is_bitwise_equal(tiny, tmp_path, every):
    options = {"checkpoint_every_steps": every, "weight_ema": 0.9}
    whole = tiny.make_fit(tmp_path / "whole", **options)
    take(whole)
    fits = 0
    while True:
        fit = tiny.make_fit(tmp_path / "pieces", net_seed=fits, **options)
        fits += 1
        if isinstance(take(fit, 3, resume=fits > 1)[-1], Ended):
            break
    assert fits >= 4 * STEPS // 3
    assert_same_run(fit, tmp_path / "pieces", whole, tmp_path / "whole")


def test_kill_9_in_the_middle_of_an_epoch(tiny, tmp_path):
    """Processes that got SIGKILL between two steps, and while they wrote a checkpoint.

    Checkpoints come after steps 4, 6 (end of the epoch), 8 and 12, and the fourth one is never completed: in both cases
    the last one is of step 8, in the second epoch.
    """
    options = {
        "checkpoint_every_steps": 4,
        "weight_ema": 0.9,
        "method": {"heatmap_storage": "disk", "positives_per_image": 1.8},
    }
    whole = tiny.make_fit(tmp_path / "whole", **options)
    take(whole)
    deaths = {"between steps": {"die_after": 10}, "while saving": {"die_saving": 4}}
    for name, death in deaths.items():
        assert forked(partial(tiny.run_until_death, tmp_path / name, **options, **death)).code == -9
    assert (tmp_path / "while saving" / "checkpoints" / ".step-000000012.tmp" / "net.safetensors").exists()
    for name in deaths:
        out = tmp_path / name
        second = tiny.make_fit(out, net_seed=5, **options)
        events = take(second, resume=True)
        assert events[0].resumed_from == out / "checkpoints" / "step-000000008"
        assert_same_run(second, out, whole, tmp_path / "whole")
        assert [p.name for p in (out / "checkpoints").iterdir() if p.name.startswith(".")] == []


def test_resume_without_a_checkpoint_starts_from_the_beginning(tiny, tmp_path):
    whole = tiny.make_fit(tmp_path / "whole")
    take(whole)
    take(tiny.make_fit(tmp_path / "early"), 3)
    assert not (tmp_path / "early" / "checkpoints").exists()
    second = tiny.make_fit(tmp_path / "early")
    events = take(second, resume=True)
    assert events[0] == Started(4, STEPS, None, 0)
    assert_same_run(second, tmp_path / "early", whole, tmp_path / "whole")


def test_resume_of_a_run_that_was_done_ends_at_once(tiny, tmp_path):
    whole = tiny.make_fit(tmp_path)
    ended = take(whole)[-1]
    again = tiny.make_fit(tmp_path, net_seed=5)
    assert take(again, resume=True) == [Started(4, STEPS, tmp_path / "checkpoints" / "step-000000024", 4), ended]
    assert_same_state(state(again), state(whole))


def test_the_global_generators_are_left_alone(tiny):
    fit = tiny.make_fit(None)
    before = torch.get_rng_state()
    take(fit)
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_draws_by_seed_and_step(tiny):
    """Without the generator of the step, two runs would differ: what the global generator holds must not matter."""
    weights = []
    for seed in (1, 2):
        fit = tiny.make_fit(None, dropout=0.5)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            take(fit)
        weights.append(fit.net.head.weight)
    without = tiny.make_fit(None, dropout=0.0)
    take(without)
    assert torch.equal(*weights)
    assert not torch.equal(weights[0], without.net.head.weight)


@pytest.mark.parametrize("left", [None, 4], ids=["uninterrupted", "resumed"])
def test_two_loader_workers_give_the_run_of_none(scenes, tmp_path, left):
    """Photos from disk, crops drawn in worker processes; also where a run goes on in the middle of an epoch."""
    train = scenes.train

    def make(out, workers, seed=0):
        generator = torch.Generator().manual_seed(seed)
        body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        net = SpatialNet(body, SpatialHead(8, len(train.classes), generator=generator))
        for name, parameter in net.named_parameters():
            if name.startswith("backbone"):
                nn.init.normal_(parameter, 0, 0.3, generator=generator)
        photos = TrainSet(
            photos=PhotoFolder(train.root, train.images), labels=train.matrix, policy=SquareCrop(16), seed=3
        )
        collate = Collate((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
        loader = TrainLoader(photos, EpochSampler(len(train), 5, 3), collate, Workers(workers))
        stages = (StageConfig(name="main", epochs=2, lr=1e-2),)
        method = ExpectedNegative(positives_per_image=2.9, scl_weight=0.5)
        problem = Problem(labels=train.matrix, grid=(8, 8), epochs=2, seed=3)
        config = FitConfig(stages=stages, seed=3, checkpoint_every_steps=3)
        return Fit(net, method, loader, config, problem, accelerator=make_accelerator(cpu=True), out=out)

    fits = []
    for workers in (0, 2):
        out = tmp_path / str(workers)
        if left is not None:
            take(make(out, workers), left)
        fits.append(make(out, workers, seed=0 if left is None else 1))
        take(fits[-1], resume=left is not None)
    assert_same_state(state(fits[1]), state(fits[0]))
    assert records(tmp_path / "2") == records(tmp_path / "0")


# --- what does not fit is refused


def edit(path, **changes):
    file = path / "progress.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    (path.parent / "LAST").write_text(f"{path.name} {sha256_of(file)}")


LEFT = {"checkpoint_every_steps": 2, "weight_ema": 0.9}


@pytest.fixture(scope="module")
def left(tiny, tmp_path_factory):
    """A run left in its second epoch."""
    out = tmp_path_factory.mktemp("left") / "run"
    take(tiny.make_fit(out, **LEFT), STEPS + 3)
    return out


@pytest.fixture
def interrupted(left, tmp_path):
    """A copy of it, its checkpoint, and how it was made."""
    out = shutil.copytree(left, tmp_path / "run")
    return out, out / "checkpoints" / f"step-{STEPS + 2:09d}", LEFT


def refusal(fit):
    with pytest.raises(CheckpointError) as error:
        take(fit, resume=True)
    return str(error.value)


def test_another_method_is_refused(tiny, interrupted):
    out, path, options = interrupted
    fit = tiny.make_fit(out, objective=AssumeNegative(), **options)
    assert refusal(fit) == (
        f"{path} was written with parts ['expected_positives', 'heatmaps', 'scores'], this run has []; resume it "
        "with what it began with."
    )


def test_another_number_of_processes_is_refused(tiny, interrupted):
    out, path, options = interrupted
    edit(path, processes=2)
    assert refusal(tiny.make_fit(out, **options)) == (
        f"{path} was written with processes 2, this run has 1; resume it with what it began with."
    )


def test_other_settings_are_refused(tiny, interrupted):
    out, path, options = interrupted
    assert refusal(tiny.make_fit(out, **options | {"accumulate": 2})) == (
        f"{path} was written with accumulate 1, this run has 2; resume it with what it began with."
    )
    assert "steps per epoch 6, this run has 5" in refusal(tiny.make_fit(out, samples=20, **options))
    # Where checkpoints are written changes nothing else.
    take(tiny.make_fit(out, **options | {"checkpoint_every_steps": 5}), resume=True)


def test_another_format_is_refused(tiny, interrupted):
    out, path, options = interrupted
    edit(path, format=99)
    assert refusal(tiny.make_fit(out, **options)) == (
        f"{path} has checkpoint format 99, this version reads 1; resume it with the version that wrote it, or "
        "start a new run."
    )


def test_stores_of_other_shapes_are_refused(tiny, interrupted):
    out, _, options = interrupted
    fit = tiny.make_fit(out, method={"heatmap_dtype": "float16"}, **options)
    assert "heatmaps.values is uint8 [22, 4, 6, 6] in the checkpoint and float16 [22, 4, 6, 6]" in refusal(fit)


def test_another_net_is_refused(tiny, interrupted):
    out, path, options = interrupted
    fit = tiny.make_fit(out, **options)
    fit.net.head = SpatialHead(12, 5)
    assert refusal(fit).startswith(f"{path / 'net.safetensors'} has the weights of another net than this run's: ")


FILES = ["net.safetensors", "averaged.safetensors", "optimizer.pt", "progress.json", *[f"parts-0/{p}.pt" for p in (
    "scores", "heatmaps", "expected_positives")]]  # fmt: skip


@pytest.mark.parametrize("damage", ["truncated", "overwritten", "missing"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_named(tiny, interrupted, name, damage):
    out, path, options = interrupted
    file = path / name
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-20])
    elif damage == "overwritten":
        file.write_bytes(b"\x00" * 100)
    else:
        file.unlink()
    message = refusal(tiny.make_fit(out, **options))
    assert str(path) in message or path.name in message
    assert message.endswith("restore it, or start a new run.")
