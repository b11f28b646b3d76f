"""What every self-supervised objective must do. A new method or option adds one line to METHODS of the worker."""

import copy
import dataclasses
import functools
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from contract_loop import assert_same
from two_processes import both, load

from fewtags.labels import Label
from fewtags.objectives.base import Part, Progress
from fewtags.stores.shard import SINGLE_PROCESS, Shard

WORKER = Path(__file__).with_name("self_supervised_worker.py")
loops = load(WORKER)
Loop, Net, METHODS = loops.Loop, loops.Net, loops.METHODS
every_method = pytest.mark.parametrize("name", METHODS)
STOPS = (2, 6, 10)
DRAWN = torch.from_numpy(
    np.random.default_rng(0).choice([1, 0, -1], size=(loops.SAMPLES, loops.CLASSES)).astype(np.int8)
)


class WithoutParts(pickle.Pickler):
    """Writes the parts, wherever they are held, as their names."""

    def __init__(self, file, parts):
        super().__init__(file)
        self.names = {id(part): name for name, part in parts.items()}

    def persistent_id(self, held):
        return self.names.get(id(held))


@dataclasses.dataclass(frozen=True)
class Whole:
    """A run to the end; its checkpoints by step; what was seen before it, and what is the same afterwards."""

    loop: Loop
    saved: dict
    loose: tuple
    tensors: tuple
    generators: tuple


@functools.cache
def whole_run(name):
    """The uninterrupted run of a method, once for all tests that only look at it."""
    loop, saved = Loop(name), {}
    before = loose(loop), tensors(loop), generators()
    for stop in STOPS:
        saved[stop] = loop.run(stop_after=stop - len(loop.losses)).save()
    loop.run()
    return Whole(loop, saved, *zip(before, (loose(loop), tensors(loop), generators()), strict=True))


def loose(loop):
    """The state of a method that is not in its parts."""
    file = io.BytesIO()
    WithoutParts(file, loop.parts).dump(vars(loop.method))
    return file.getvalue()


def tensors(loop):
    return {(name, key): value for name, part in loop.parts.items() for key, value in part.state_dict().items()}


def generators():
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()  # noqa: NPY002


@every_method
def test_trained_beats_fresh_on_a_fixed_batch(name):
    """Queues and momentum encoder are those after seven steps and stay; a fresh start would have no queue."""
    loop = Loop(name).run(stop_after=7)
    fixed, at, losses = loops.batch(0, 0), Progress(loops.EPOCHS - 1, 0, loops.STEPS), []
    optimizer = torch.optim.SGD([p for group in loop.optimizer.param_groups for p in group["params"]], lr=0.03)
    for _ in range(20):
        loss = loop.method.step(loop.net, fixed, at).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@every_method
def test_an_interrupted_run_is_bitwise_equal(name):
    """Stopped inside an epoch, at the end of one, and after the queues have wrapped."""
    whole, saved = whole_run(name).loop, whole_run(name).saved
    assert len(whole.losses) == 12
    for stop in STOPS:
        with torch.random.fork_rng():
            torch.manual_seed(999)  # a new process has another global generator
            second = Loop(name, net=Net(5)).load(saved[stop]).run()
        assert second.losses == whole.losses[stop:]
        assert_same(second.state(), whole.state())


@every_method
def test_step_changes_no_part_and_repeats_itself(name):
    loop = Loop(name).run(stop_after=7)
    made, before = loop.batch(), loop.parts_now()
    inputs = copy.deepcopy(made)
    loop.net.eval()
    one, two = (loop.method.step(loop.net, made, loop.at()) for _ in range(2))
    assert one.loss.item() == two.loss.item()
    assert_same(dict(one.logs), dict(two.logs))
    assert {"spread", "positive"} <= one.logs.keys()
    assert -1 <= one.logs["positive"] <= 1
    assert one.logs["spread"] > 0
    assert not any(value.requires_grad for value in one.logs.values())
    assert_same(loop.parts_now(), before)
    loop.method.commit(loop.net, made, one)
    for field in ("images", "labels", "index", "views"):
        assert torch.equal(getattr(made, field), getattr(inputs, field)), field
    assert all(torch.equal(a, b) for a, b in zip(made.second_view, inputs.second_view, strict=True))


@every_method
def test_a_step_in_training_changes_the_statistics_of_batchnorm_alone(name):
    loop = Loop(name).run(stop_after=7)
    before = loop.parts_now()
    loop.method.step(loop.net, loop.batch(), loop.at())
    changed = {key for (_, key), value in loop.parts_now().items() if not torch.equal(value, before[_, key])}
    assert all(key.endswith(("running_mean", "running_var", "num_batches_tracked")) for key in changed)


@every_method
def test_all_that_changes_is_in_a_part(name):
    before, after = whole_run(name).loose
    assert after == before


@every_method
def test_parts_hold_flat_names_and_tensors_and_are_written_in_place(name):
    assert all(isinstance(part, Part) for part in whole_run(name).loop.parts.values())
    before, after = whole_run(name).tensors
    for key, value in before.items():
        assert isinstance(value, torch.Tensor)
        assert after[key].data_ptr() == value.data_ptr(), key


@every_method
def test_labels_never_matter(name):
    without, labelled = whole_run(name).loop, Loop(name, labels=DRAWN).run()
    assert {int(value) for value in DRAWN.flatten()} == {int(label) for label in Label}
    assert without.losses == labelled.losses
    assert_same(without.state(), labelled.state())


@every_method
def test_the_global_generator_is_left_alone(name):
    before, after = whole_run(name).generators
    assert after == before


@every_method
def test_a_loss_that_is_not_a_number_leaves_the_parts_untouched(name):
    loop = Loop(name).run(stop_after=9)
    loop.net.eval()
    made, before = loop.batch(), loop.parts_now()
    with pytest.raises(FloatingPointError):
        loop.train(dataclasses.replace(made, images=made.images * float("nan")))
    assert_same(loop.parts_now(), before)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return both(WORKER, tmp_path_factory.mktemp("two"))


@every_method
def test_two_processes_are_one_that_sees_the_same_batches(two, name):
    """Batches of 5, 5, 3 and 4, 4, 5, BatchNorm not looking at them: losses, weights, queues, own neighbours."""
    one = loops.ended(name, SINGLE_PROCESS)
    assert len(set(one["losses"])) == 7
    for rank in range(2):
        other = two[rank][name]
        assert other["losses"] == two[0][name]["losses"]
        assert other["losses"] == pytest.approx(one["losses"], abs=1e-6)
        assert_close(other["net"], one["net"])
        assert other["parts"].keys() == one["parts"].keys()
        for part, values in one["parts"].items():
            if part == "neighbours":
                values = {"ids": values["ids"][Shard(rank, 2).owned(loops.SAMPLES)]}
            assert_close(other["parts"][part], values)


def assert_close(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        torch.testing.assert_close(value, other[key], rtol=1e-5, atol=1e-6)
