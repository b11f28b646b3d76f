"""Cross-entropy of one class per photo."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fewtags.errors import ConfigError
from fewtags.labels import Batch, Label, LabelMatrix
from fewtags.nets.spatial import SpatialHead
from fewtags.objectives.base import Problem, Progress
from fewtags.transfer.softmax import Softmax

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


def head_of(logits):
    """A head whose logits are `logits` times the single feature."""
    head = SpatialHead(1, len(logits))
    with torch.no_grad():
        head.weight.copy_(torch.tensor(logits)[:, None])
    return head


def batch_of(*labels):
    labels = torch.tensor(labels, dtype=torch.int8)
    n = len(labels)
    return Batch(images=torch.ones(n, 1, 1, 1), labels=labels, index=torch.arange(n), views=torch.zeros(n, 2, 3))


def test_loss_by_hand():
    """Logits log 1, log 2, log 5: probabilities 1/8, 2/8, 5/8. Classes 1 and 2: -(log 1/4 + log 5/8) / 2; one right."""
    net = head_of([0.0, math.log(2), math.log(5)])
    out = Softmax().step(net, batch_of([N, P, N], [U, U, P]), Progress(0, 0, 1))
    assert out.loss.item() == pytest.approx(-(math.log(1 / 4) + math.log(5 / 8)) / 2)
    assert float(out.logs["accuracy"]) == 0.5
    assert out.logs["cross_entropy"] == out.loss.detach()


def test_what_is_said_of_other_classes_does_not_matter():
    losses = [Softmax().step(head_of([1.0, 2.0]), batch_of(row), Progress(0, 0, 1)).loss for row in ([P, N], [P, U])]
    assert losses[0] == losses[1]


def test_photos_without_one_class_are_refused():
    labels = LabelMatrix.from_dense(np.array([[P, N], [P, P], [U, U]], np.int8))
    with pytest.raises(ConfigError) as error:
        Softmax().setup(nn.Identity(), Problem(labels=labels, grid=(1, 1)))
    assert str(error.value) == "a softmax needs one class per photo; 2 of 3 have none or several."
