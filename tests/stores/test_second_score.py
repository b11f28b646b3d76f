"""A second score from prototypes: values by hand, what ranks, the same bits everywhere, and checkpoints."""

import pytest
import torch

from fewtags.errors import CheckpointError
from fewtags.labels import Label, LabelMatrix
from fewtags.stores.second_score import PrototypeScores

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


def int8(rows):
    return torch.tensor(rows, dtype=torch.int8)


def cells(rows):
    """Features [b, d] as maps of one cell."""
    return torch.tensor(rows)[:, :, None, None]


LABELS = int8([[P], [U], [U], [N]])
FEATURES = cells([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
INDEX = torch.arange(4)


def filled(weight, labels=LABELS, features=FEATURES):
    """Prototypes of one epoch, and the second scores of the next."""
    made = PrototypeScores(len(labels), labels.shape[1], features.shape[1], weight)
    for _ in range(2):
        made.update(torch.arange(len(labels)), features, labels)
        made.refresh()
    return made


def test_second_scores_by_hand():
    """The prototype is (1, 0). Cosines 1, 1, 0, -1 are distances 0, 0, 1, 2, and so scores 1, 1, .5, 0."""
    made = filled(0.5)
    assert made.prototypes.vectors.tolist() == [[1.0, 0.0]]
    second = made.columns(0, 1, LabelMatrix.from_dense(LABELS.numpy()))
    assert second.flatten().tolist() == [1.0, 1.0, 0.5, 0.0]


@pytest.mark.parametrize(("weight", "factor"), [(0.5, 0.4), (0.75, 1.2), (0.2, 0.1)])
def test_both_scores_are_balanced_over_the_unknown_labels(weight, factor):
    """Of the two unknown images s is .1 and .3, std .1; q is 1 and .5, std .25. b = .1 / .25 w / (1 - w), a = 1."""
    made = filled(weight)
    scores = torch.tensor([[0.9], [0.1], [0.3], [0.0]])
    second = torch.tensor([[1.0], [1.0], [0.5], [0.0]])
    found = made.balance(0, scores, second, LABELS)
    assert made.own.tolist() == [1.0]
    assert made.second.tolist() == pytest.approx([factor], rel=1e-5)
    assert found.flatten().tolist() == pytest.approx((scores + factor * second).flatten().tolist(), rel=1e-5)
    # The image near the prototype is ranked first if the second score has the larger weight.
    assert (found[1] > found[2]).item() is (weight > 0.5) or weight == 0.5


def test_the_weight_1_ranks_by_the_distance_alone():
    made = filled(1.0)
    second = torch.tensor([[1.0], [1.0], [0.5], [0.0]])
    found = made.balance(0, torch.tensor([[0.9], [0.1], [0.3], [0.0]]), second, LABELS)
    assert found.flatten().argsort(descending=True, stable=True).tolist() == [0, 1, 2, 3]
    assert made.own.tolist() == [0.0]


@pytest.mark.parametrize("weight", [0.5, 1.0])
def test_the_score_of_the_net_decides_where_there_is_no_other(weight):
    """Without a positive there is no prototype: all second scores are equal. Without a spread, neither counts."""
    labels = int8([[U, U], [U, U], [U, N]])
    made = PrototypeScores(3, 2, 2, weight)
    for _ in range(2):
        made.update(torch.arange(3), FEATURES[:3], labels)
        made.refresh()
    scores = torch.tensor([[0.1, 0.4], [0.3, 0.4], [0.2, 0.1]])
    second = made.columns(0, 2, LabelMatrix.from_dense(labels.numpy()))
    assert torch.equal(made.balance(0, scores, second, labels), scores)
    assert torch.equal(made.ranked(scores, labels, torch.arange(3)), scores)


def test_any_batch_has_the_bits_of_the_ranking():
    """The cut of a class is a value of the ranking, so a step must find exactly that value again."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.where(torch.rand(37, 5, generator=generator) < 0.3, P, U).to(torch.int8)
    made = filled(0.3, labels, torch.randn(37, 6, 2, 2, generator=generator))
    scores = torch.rand(37, 5, generator=generator)
    second = made.columns(0, 5, LabelMatrix.from_dense(labels.numpy()))
    whole = torch.cat(
        [made.balance(c, scores[:, c : c + 1], second[:, c : c + 1], labels[:, c : c + 1]) for c in range(5)], 1
    )
    assert (made.second > 0).all()
    for index in (torch.arange(37), torch.tensor([36, 3, 11]), torch.tensor([5])):
        assert torch.equal(made.ranked(scores[index], labels[index], index), whole[index])


def test_a_checkpoint_restores_all_of_it():
    made, other = filled(0.5), PrototypeScores(4, 1, 2, 0.5)
    made.balance(0, torch.tensor([[0.9], [0.1], [0.3], [0.0]]), made.scores.values, LABELS)
    made.update(INDEX, FEATURES, LABELS)
    other.load_state_dict({name: value.clone() for name, value in made.state_dict().items()})
    for name, value in made.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    with pytest.raises(CheckpointError, match="prototypes"):
        PrototypeScores(5, 1, 2, 0.5).load_state_dict(made.state_dict())
