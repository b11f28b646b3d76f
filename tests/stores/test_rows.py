import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewtags.errors import CheckpointError
from fewtags.labels import Label, LabelMatrix
from fewtags.stores.rows import ScoreStore
from fewtags.stores.shard import Shard

SCL = json.loads((Path(__file__).parents[1] / "golden" / "scl.json").read_text())
STATE = {1: Label.POSITIVE, 0: Label.NEGATIVE, -1: Label.UNKNOWN}  # the encoding of the golden files
P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


def int8(rows):
    return torch.tensor(rows, dtype=torch.int8)


def random_labels(rng, samples, classes):
    return torch.from_numpy(rng.choice(np.array([P, N, U], np.int8), size=(samples, classes)))


def test_two_updates_by_hand():
    """mu .8 from (1, 0, 0): .8 + .2 * .5 = .9, 0 + .1, .1; then with f = 1: .72 + .2 = .92, .08 + .2 = .28, .28."""
    store, labels, index = ScoreStore(4, 3), int8([[P, U, N]]), torch.tensor([2])
    assert store.read(index, labels).tolist() == [[1, 0, 0]]
    store.update(index, torch.full((1, 3), 0.5), labels)
    torch.testing.assert_close(store.read(index, labels), torch.tensor([[0.9, 0.1, 0.1]]))
    store.update(index, torch.ones(1, 3), labels)
    torch.testing.assert_close(store.read(index, labels), torch.tensor([[0.92, 0.28, 0.28]]))


def test_corrected_average_by_hand():
    """min(.8, n / (n + 1)): the first f replaces the start value, the second makes the mean; .3, then (.3 + .5) / 2."""
    store, labels, index = ScoreStore(1, 1, corrected=True), int8([[P]]), torch.tensor([0])
    store.update(index, torch.tensor([[0.3]]), labels)
    assert store.read(index, labels).item() == pytest.approx(0.3)
    store.update(index, torch.tensor([[0.5]]), labels)
    assert store.read(index, labels).item() == pytest.approx(0.4)


def test_golden_start_and_first_update():
    labels = int8([[STATE[v] for v in row] for row in SCL["labels_single_positive"]])
    index, store = torch.arange(10), ScoreStore(10, 4, momentum=SCL["mu"])
    assert store.read(index, labels).tolist() == SCL["scores_init"]
    store.update(index, torch.tensor(SCL["logits"]).sigmoid(), labels)
    expected = torch.tensor(SCL["scores_after_one_update"])
    torch.testing.assert_close(store.read(index, labels), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("samples", "classes"), [(1, 1), (2, 3), (7, 5)])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_equals_a_plain_loop(samples, classes, corrected, dtype):
    rng = np.random.default_rng(0)
    labels = random_labels(rng, samples, classes)
    store = ScoreStore(samples, classes, momentum=0.7, dtype=dtype, corrected=corrected)
    kept = (labels == P).double().numpy()
    visits = np.zeros(samples)
    for _ in range(12):
        index = rng.permutation(samples)[: rng.integers(1, samples + 1)]
        prob = rng.random((len(index), classes), np.float32)
        store.update(torch.from_numpy(index), torch.from_numpy(prob), labels[index])
        for row, n in enumerate(index):
            mu = min(0.7, visits[n] / (visits[n] + 1)) if corrected else 0.7
            for c in range(classes):
                kept[n, c] = mu * kept[n, c] + (1 - mu) * prob[row, c]
                if dtype == torch.float16:
                    kept[n, c] = np.float16(kept[n, c])
            visits[n] += 1
    index = torch.arange(samples)
    # float16: a last-bit difference before rounding may move one stored value by one step (2^-11 below 1).
    atol = 1e-6 if dtype == torch.float32 else 2**-11
    torch.testing.assert_close(store.read(index, labels).double().numpy(), kept, rtol=0, atol=atol)
    assert store.seen(index).tolist() == (visits > 0).tolist()
    assert store.read(index, labels).dtype == torch.float32


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=5))
def test_corrected_average_is_the_mean_of_what_was_seen(values):
    """n / (n + 1) <= .8 up to n = 4, so after one to five updates a row is their plain mean."""
    store, labels, index = ScoreStore(1, 1, momentum=0.8, corrected=True), int8([[P]]), torch.tensor([0])
    for value in values:
        store.update(index, torch.tensor([[value]]), labels)
    assert store.read(index, labels).item() == pytest.approx(np.mean(values), abs=1e-6)


@given(st.integers(0, 2**32 - 1))
def test_updates_touch_no_other_row_and_split_freely(seed):
    rng = np.random.default_rng(seed)
    labels = random_labels(rng, 6, 3)
    index, prob = torch.from_numpy(rng.permutation(6)[:4]), torch.from_numpy(rng.random((4, 3), np.float32))
    whole, parted = ScoreStore(6, 3), ScoreStore(6, 3)
    whole.update(index, prob, labels[index])
    for piece in (slice(0, 1), slice(1, 4)):
        parted.update(index[piece], prob[piece], labels[index[piece]])
    assert torch.equal(whole.values, parted.values)
    others = torch.tensor(sorted(set(range(6)) - set(index.tolist())))
    assert torch.equal(whole.read(others, labels[others]), (labels[others] == P).float())


def test_classes_permute():
    rng = np.random.default_rng(1)
    labels, prob = random_labels(rng, 5, 4), torch.from_numpy(rng.random((5, 4), np.float32))
    order, index = torch.tensor([2, 0, 3, 1]), torch.arange(5)
    plain, permuted = ScoreStore(5, 4), ScoreStore(5, 4)
    plain.update(index, prob, labels)
    permuted.update(index, prob[:, order], labels[:, order])
    assert torch.equal(plain.read(index, labels)[:, order], permuted.read(index, labels[:, order]))


def test_labels_no_longer_matter_once_a_row_was_updated():
    store, index = ScoreStore(1, 2), torch.tensor([0])
    store.update(index, torch.rand(1, 2, generator=torch.Generator().manual_seed(0)), int8([[P, U]]))
    assert torch.equal(store.read(index, int8([[P, U]])), store.read(index, int8([[N, P]])))


def test_columns_hold_start_values_of_rows_never_updated():
    rng = np.random.default_rng(2)
    labels, index = random_labels(rng, 6, 5), torch.tensor([1, 4])
    store = ScoreStore(6, 5)
    store.update(index, torch.from_numpy(rng.random((2, 5), np.float32)), labels[index])
    everything, matrix = store.read(torch.arange(6), labels), LabelMatrix.from_dense(labels.numpy())
    assert torch.equal(store.columns(0, 5, matrix), everything)
    assert torch.equal(store.columns(2, 4, matrix), everything[:, 2:4])
    rest = torch.tensor([0, 2, 3, 5])
    store.update(rest, torch.from_numpy(rng.random((4, 5), np.float32)), labels[rest])
    assert torch.equal(store.columns(2, 4, matrix), store.values[:, 2:4])


@pytest.mark.parametrize("samples", [5, 6])
def test_shards_hold_every_row_once(samples):
    rng = np.random.default_rng(3)
    labels, prob = random_labels(rng, samples, 3), torch.from_numpy(rng.random((samples, 3), np.float32))
    whole = ScoreStore(samples, 3)
    whole.update(torch.arange(samples), prob, labels)
    for rank in range(2):
        shard = Shard(rank, 2)
        part, own = ScoreStore(samples, 3, shard=shard), shard.owned(samples)
        part.update(own, prob[own], labels[own])
        assert torch.equal(part.values, whole.values[own])
        assert torch.equal(part.read(own.flip(0), labels[own.flip(0)]), whole.values[own.flip(0)])


def test_state_survives_a_file_and_is_not_copied_on_the_way_out():
    labels, index = int8([[P, U], [U, N]]), torch.arange(2)
    store, other = ScoreStore(2, 2), ScoreStore(2, 2)
    store.update(index, torch.full((2, 2), 0.25), labels)
    assert store.state_dict()["values"] is store.values
    file = io.BytesIO()
    torch.save(dict(store.state_dict()), file)
    file.seek(0)
    before = other.values.data_ptr()
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other.read(index, labels), store.read(index, labels))
    assert torch.equal(other.visits, store.visits)
    assert other.values.data_ptr() == before


def test_a_state_of_another_kind_is_refused_and_nothing_is_copied():
    store = ScoreStore(2, 3)
    message = (
        "scores.values is float16 [2, 3] in the checkpoint and float32 [2, 3] in this run. "
        "Resume with the settings, data and number of processes the checkpoint was written with."
    )
    foreign = ScoreStore(2, 3, dtype=torch.float16)
    foreign.update(torch.arange(2), torch.ones(2, 3), int8([[U] * 3] * 2))
    with pytest.raises(CheckpointError, match=re.escape(message)):
        store.load_state_dict(foreign.state_dict())
    message = (
        "the checkpoint contains ['values'] for scores, this run keeps ['values', 'visits']. "
        "Resume with the settings the checkpoint was written with."
    )
    with pytest.raises(CheckpointError, match=re.escape(message)):
        store.load_state_dict({"values": torch.ones(2, 3)})
    assert not store.values.any()
    assert not store.visits.any()
