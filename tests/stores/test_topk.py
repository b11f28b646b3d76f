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
from fewtags.stores import topk
from fewtags.stores.rows import ScoreStore
from fewtags.stores.shard import SINGLE_PROCESS
from fewtags.stores.topk import ExpectedPositives, class_blocks, expected_counts

SCL = json.loads((Path(__file__).parents[1] / "golden" / "scl.json").read_text())
STATE = {1: Label.POSITIVE, 0: Label.NEGATIVE, -1: Label.UNKNOWN}  # the encoding of the golden files
P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN
READINGS = ["all_then_or", "fill", "unannotated_only"]


def matrix(rows):
    return LabelMatrix.from_dense(np.array(rows, np.int8))


def golden_labels(which):
    return np.array([[STATE[v] for v in row] for row in SCL[f"labels_{which}"]], np.int8)


def scramble(word):
    """Three rounds of xorshift and multiply on 32 bits, in Python's integers."""
    word = ((word ^ (word >> 16)) * 0x21F0AAAD) % 2**32
    word = ((word ^ (word >> 15)) * 0x735A2D97) % 2**32
    return word ^ (word >> 15)


def key_of(image, class_):
    """What orders equal scores."""
    return scramble(scramble(int(class_) + 1) ^ int(image))


def mask_of(scores, labels, counts, reading, *, blocks=None):
    """z-hat of all images, from scores [N, C] and labels [N, C]."""
    scores, labels = torch.as_tensor(scores, dtype=torch.float32), torch.as_tensor(labels)
    expected = ExpectedPositives(labels.shape[1], reading)
    for first, last in blocks or [(0, labels.shape[1])]:
        expected.refresh(first, scores[:, first:last], labels[:, first:last], torch.as_tensor(counts)[first:last])
    return expected.mask(scores, labels, torch.arange(len(scores)))


def reference(scores, labels, counts, reading):
    """Double argsort per class, slow and plain."""
    mask = np.zeros(labels.shape, bool)
    for c in range(labels.shape[1]):
        take, candidates = counts[c], labels[:, c] != N
        if reading != "all_then_or":
            candidates = labels[:, c] == U
        if reading == "fill":
            take = take - (labels[:, c] == P).sum()
        order = sorted(np.flatnonzero(candidates), key=lambda n, c=c: (-scores[n, c], key_of(n, c)))
        mask[order[: max(take, 0)], c] = True
    return mask | (labels == P)


def sorted_cuts(scores, labels, counts, reading):
    """Score and tie key of the last one taken of each class, by sorting all images."""
    cuts = []
    for c in range(labels.shape[1]):
        candidates = np.flatnonzero(labels[:, c] != N if reading == "all_then_or" else labels[:, c] == U)
        keys = np.array([key_of(n, c) for n in candidates], np.int64)
        order = candidates[np.lexsort((keys, -scores[candidates, c]))]
        take = min(counts[c] - ((labels[:, c] == P).sum() if reading == "fill" else 0), len(order))
        cuts.append((scores[order[take - 1], c], key_of(order[take - 1], c)) if take > 0 else (np.inf, -1))
    return cuts


@pytest.fixture(params=["numpy", "torch"])
def selection(request, monkeypatch):
    """What selects: numpy on the CPU, torch on other devices."""
    if request.param == "torch":
        monkeypatch.setattr(topk, "_on_cpu", lambda tensor: False)


# --- expected counts


def test_counts_round_half_up_by_hand():
    """Eq. (3), K = 2.5: counts 1, 3 of N = 9 give 2.5 -> 3 and 7.5 -> 8 (half to even would give 2 and 8)."""
    labels = matrix([[P, U], [U, P], [U, P], [U, P]] + [[U, U]] * 5)
    assert expected_counts(labels, 2.5, normalised=False).tolist() == [3, 8]


def test_counts_do_not_depend_on_how_many_images_are_annotated():
    """Half the images carry no label: eq. (3) halves, the normalised form keeps K N = 1.5 * 8 = 12 in all."""
    labels = matrix([[P, U], [U, P]] * 2 + [[U, U]] * 4)
    assert expected_counts(labels, 1.5).tolist() == [6, 6]
    assert expected_counts(labels, 1.5, normalised=False).tolist() == [3, 3]


def test_counts_stay_between_known_positives_and_possible_ones():
    """Class 0: .3 * 2 -> 1, but 2 are known. Class 1: 2.4 * 2 -> 5, but 2 of 4 images are known not to hold it."""
    assert expected_counts(matrix([[P, U], [P, U], [U, U], [U, U]]), 0.3, normalised=False).tolist() == [2, 0]
    assert expected_counts(matrix([[U, P], [U, P], [U, N], [U, N]]), 2.4, normalised=False).tolist() == [0, 2]


def test_a_class_without_positives_is_expected_nowhere():
    assert expected_counts(matrix([[P, U], [P, U]]), 2.0).tolist() == [2, 0]
    assert expected_counts(matrix([[U, N], [U, U]]), 2.0).tolist() == [0, 0]


def test_a_class_prior_replaces_eq_3():
    """Shares .5, .125, 0 of 4 images: 2; .5 -> 1 (half up); 0, clamped to the one known positive."""
    labels = matrix([[U, U, P], [U, U, U], [U, U, U], [U, U, U]])
    assert expected_counts(labels, None, (0.5, 0.125, 0.0)).tolist() == [2, 1, 1]
    assert expected_counts(labels, 3.0, (0.5, 0.125, 0.0)).tolist() == [2, 1, 1]


@pytest.mark.parametrize("which", ["single_positive", "partial"])
def test_golden_counts(which):
    labels = LabelMatrix.from_dense(golden_labels(which))
    golden = SCL["expected_counts"]
    assert expected_counts(labels, SCL["K"]).tolist() == golden[f"{which}_normalised"]
    assert expected_counts(labels, SCL["K"], normalised=False).tolist() == golden[f"{which}_literal"]


@given(st.floats(0.5, 40), st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_both_forms_agree_with_one_positive_per_image(positives_per_image, samples, seed):
    rng = np.random.default_rng(seed)
    dense = np.full((samples, 7), U, np.int8)
    dense[np.arange(samples), rng.integers(7, size=samples)] = P
    labels = LabelMatrix.from_dense(dense)
    literal = expected_counts(labels, positives_per_image, normalised=False)
    assert expected_counts(labels, positives_per_image).tolist() == literal.tolist()


# --- the mask


def test_mask_by_hand():
    """p = 2 of .9 (known negative), .7, .5, .5, .2 (annotated): ranked .7, then one .5; plus the annotated.

    `fill`: one more than the annotated, .7. `unannotated_only`: two unannotated ones, .7 and one .5. Of the images 2
    and 3, the hash prefers the one with the smaller key.
    """
    third = int(key_of(2, 0) < key_of(3, 0))
    scores, labels = [[0.9], [0.7], [0.5], [0.5], [0.2]], np.array([[N], [U], [U], [U], [P]], np.int8)
    expected = {
        "all_then_or": [0, 1, third, 1 - third, 1], "fill": [0, 1, 0, 0, 1],
        "unannotated_only": [0, 1, third, 1 - third, 1],
    }  # fmt: skip
    for reading, column in expected.items():
        assert mask_of(scores, labels, np.array([2]), reading)[:, 0].int().tolist() == column, reading


def test_nothing_but_the_annotated_is_expected_before_the_first_ranking():
    labels = torch.tensor([[P, U, N]], dtype=torch.int8)
    expected = ExpectedPositives(3)
    assert expected.mask(torch.ones(1, 3), labels, torch.tensor([0])).tolist() == [[True, False, False]]


def test_nothing_is_expected_of_a_class_without_positives():
    labels = np.array([[P, U], [U, U]], np.int8)
    counts = expected_counts(LabelMatrix.from_dense(labels), 2.0)
    for reading in READINGS:
        assert not mask_of(np.ones((2, 2)), labels, counts, reading)[:, 1].any(), reading


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("which", ["single_positive", "partial"])
def test_golden_masks(which, reading):
    labels = golden_labels(which)
    scores = ScoreStore(10, 4, momentum=SCL["mu"])
    index = torch.arange(10)
    scores.update(index, torch.tensor(SCL["logits"]).sigmoid(), torch.from_numpy(labels))
    counts = expected_counts(LabelMatrix.from_dense(labels), SCL["K"])
    mask = mask_of(scores.read(index, torch.from_numpy(labels)), labels, counts, reading)
    assert mask.int().tolist() == SCL["zhat"][f"{which}_{reading}"]


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize(("samples", "classes"), [(1, 1), (2, 1), (5, 3), (40, 6)])
@pytest.mark.parametrize("levels", [1, 3, 1000])
def test_equals_double_argsort(samples, classes, levels, reading):
    """With 1 and 3 levels nearly every score is tied."""
    rng = np.random.default_rng(samples + levels)
    for _ in range(20):
        scores = rng.integers(levels, size=(samples, classes)) / levels
        labels = rng.choice(np.array([P, U, U, U, N], np.int8), size=(samples, classes))
        known, room = (labels == P).sum(0), (labels != N).sum(0)
        counts = rng.integers(known, room + 1)
        expected = reference(scores, labels, counts, reading)
        assert np.array_equal(mask_of(scores, labels, counts, reading).numpy(), expected)


@pytest.mark.usefixtures("selection")
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("levels", [1, 2, 7, 10**6])
def test_cuts_are_those_of_a_full_sort_bit_for_bit(levels, reading):
    """Also where more is expected than there is; and the number of expected positives is that of the mask."""
    rng = np.random.default_rng(levels)
    for _ in range(60):
        samples, classes = int(rng.integers(1, 40)), int(rng.integers(1, 5))
        scores = (rng.integers(levels, size=(samples, classes)) / levels).astype(np.float32)
        labels = rng.choice(np.array([P, U, U, U, N], np.int8), size=(samples, classes))
        counts = rng.integers(0, samples + 3, size=classes)
        expected, index = ExpectedPositives(classes, reading), torch.arange(samples)
        given = torch.from_numpy(scores), torch.from_numpy(labels)
        number = expected.refresh(0, *given, torch.from_numpy(counts))
        found = zip(expected.cut_score.numpy(), expected.cut_key.numpy(), strict=True)
        assert [*found] == sorted_cuts(scores, labels, counts, reading)
        assert number == expected.mask(*given, index).sum()


def test_sharing_with_nobody_changes_nothing():
    expected, labels = ExpectedPositives(3), torch.zeros(2, 3, dtype=torch.int8)
    expected.refresh(0, torch.tensor([[0.5, 0.25, 0.0]] * 2), labels, torch.tensor([1, 0, 2]))
    before = {key: value.clone() for key, value in expected.state_dict().items()}
    expected.share(SINGLE_PROCESS, torch.ones(3, dtype=torch.bool))
    assert all(torch.equal(value, before[key]) for key, value in expected.state_dict().items())


@given(st.integers(0, 2**32 - 1), st.sampled_from(READINGS))
def test_blocks_of_classes_change_nothing_and_classes_permute(seed, reading):
    rng = np.random.default_rng(seed)
    scores, labels = rng.integers(4, size=(12, 5)) / 4, rng.choice(np.array([P, U, U, N], np.int8), size=(12, 5))
    counts = expected_counts(LabelMatrix.from_dense(labels), 2.0)
    whole = mask_of(scores, labels, counts, reading)
    assert torch.equal(whole, mask_of(scores, labels, counts, reading, blocks=class_blocks(12, 5, cells=24)))
    order, scores = rng.permutation(5), scores + rng.permutation(60).reshape(12, 5) / 1000  # ties depend on the class
    whole = mask_of(scores, labels, counts, reading)
    assert torch.equal(whole[:, order], mask_of(scores[:, order], labels[:, order], counts[order], reading))


def test_mask_of_a_block_is_that_part_of_the_whole():
    rng = np.random.default_rng(0)
    scores, labels = torch.from_numpy(rng.random((9, 4), np.float32)), torch.zeros(9, 4, dtype=torch.int8)
    expected, index = ExpectedPositives(4), torch.arange(9)
    expected.refresh(0, scores, labels, torch.tensor([1, 2, 3, 4]))
    whole = expected.mask(scores, labels, index)
    assert whole.sum(0).tolist() == [1, 2, 3, 4]
    assert torch.equal(expected.mask(scores[:, 1:3], labels[:, 1:3], index, 1), whole[:, 1:3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@given(st.integers(0, 2**32 - 1), st.sampled_from(READINGS))
def test_mask_during_an_epoch_is_the_mask_at_its_start(dtype, seed, reading):
    """Each image is asked once, before its own update; images asked earlier have been updated by then."""
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.choice(np.array([P, U, U, U, N], np.int8), size=(11, 3)))
    scores, everyone = ScoreStore(11, 3, dtype=dtype), torch.arange(11)
    coarse = torch.from_numpy(rng.integers(5, size=(2, 11, 3)) / 4).float()  # ties on purpose
    scores.update(everyone, coarse[0], labels)
    expected = ExpectedPositives(3, reading)
    counts = torch.from_numpy(expected_counts(LabelMatrix.from_dense(labels.numpy()), 1.7))
    expected.refresh(0, scores.columns(0, 3, LabelMatrix.from_dense(labels.numpy())), labels, counts)
    at_start = expected.mask(scores.read(everyone, labels), labels, everyone)
    for index in torch.from_numpy(rng.permutation(11)).split(4):
        asked = expected.mask(scores.read(index, labels[index]), labels[index], index)
        assert torch.equal(asked, at_start[index])
        scores.update(index, coarse[1, index], labels[index])


@pytest.mark.parametrize("score", [0.0, 0.25])
def test_ties_do_not_follow_the_order_of_the_file(score):
    """With momentum 1 all unannotated scores stay 0. 200 images, 20 classes, half of the images expected for each.

    By file order, the first half would have all 20 classes and the last half none. By hash, the classes of an image
    are a draw of 20 with probability 1/2: mean 10, and 3 to 17 with probability .9996; the halves share them equally.
    """
    labels = np.full((200, 20), U, np.int8)
    mask = mask_of(np.full((200, 20), score), labels, np.full(20, 100), "all_then_or").numpy()
    assert mask.sum(0).tolist() == [100] * 20
    assert 1 <= mask.sum(1).min() <= mask.sum(1).max() <= 19
    assert 900 < mask[:100].sum() < 1100
    overlap = mask.T.astype(int) @ mask
    assert overlap[~np.eye(20, dtype=bool)].max() < 75  # other classes have other images: mean 50, deviation 3.5


def test_tied_half_precision_scores_are_ordered_alike():
    labels = np.full((50, 2), U, np.int8)
    scores = ScoreStore(50, 2, dtype=torch.float16)
    close = 0.6 + torch.arange(100).reshape(50, 2) * 1e-6  # one number in float16
    scores.update(torch.arange(50), close, torch.from_numpy(labels))
    read = scores.read(torch.arange(50), torch.from_numpy(labels))
    assert len(read.unique()) == 1
    for c in (0, 1):
        mask = mask_of(read, labels, np.array([7, 7]), "all_then_or")[:, c]
        assert sorted(range(50), key=lambda n, c=c: key_of(n, c))[:7] == sorted(
            mask.nonzero()[:, 0].tolist(), key=lambda n, c=c: key_of(n, c)
        )


def test_state_round_trip_and_refusal():
    expected, other = ExpectedPositives(2), ExpectedPositives(2)
    scores, labels = torch.tensor([[0.1, 0.4], [0.3, 0.2]]), torch.zeros(2, 2, dtype=torch.int8)
    expected.refresh(0, scores, labels, torch.tensor([1, 0]))
    assert expected.cut_score.tolist() == [scores[1, 0].item(), float("inf")]
    assert expected.cut_key.tolist() == [key_of(1, 0), -1]
    other.load_state_dict(expected.state_dict())
    assert torch.equal(other.mask(scores, labels, torch.arange(2)), expected.mask(scores, labels, torch.arange(2)))
    message = (
        "expected positives.cut_score is float32 [2] in the checkpoint and float32 [3] in this run. "
        "Resume with the settings, data and number of processes the checkpoint was written with."
    )
    with pytest.raises(CheckpointError, match=re.escape(message)):
        ExpectedPositives(3).load_state_dict(expected.state_dict())


def test_answers_do_not_change_what_is_frequent():
    """Drawn positives: 2 of class 0 and 1 of class 1, K = 1.5, 4 images: 1.5 x 4 x (2/3, 1/3) = 4 and 2.

    Two answers found class 1, which has 3 positives then: counted like the others, it would get 3.6; now it gets 3,
    because so many are known. Class 0 has an answered negative, so at most 3 images can show it.
    """
    labels = LabelMatrix.from_dense(np.array([[1, 1], [1, 0], [-1, 1], [0, 1]], np.int8))
    answered = LabelMatrix.from_dense(np.array([[0, 1], [0, 0], [-1, 1], [0, 0]], np.int8))
    assert expected_counts(labels, 1.5, answered=answered).tolist() == [3, 3]
    assert expected_counts(labels, 1.5).tolist() == [2, 4]
