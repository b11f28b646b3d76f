"""Zero-shot classifiers: probabilities by hand."""

import math

import pytest
import torch
from torch import nn

from fewtags.nets.zero_shot import ZeroShotNet, log_odds


class Sums(nn.Module):
    """The embedding of an image: the sums of its first two channels."""

    def forward(self, images):
        return images[:, :2].sum((2, 3))


def images(*pairs):
    return torch.tensor([[*pair, 0.0] for pair in pairs], dtype=torch.float32)[:, :, None, None]


TEXTS = torch.tensor([[2.0, 0.0], [0.0, 5.0], [-1.0, 0.0]])


def test_softmax_of_cosines_by_hand():
    """The image (3, 4) has the cosines .6, .8 and -.6 with the three texts, of whatever length."""
    net = ZeroShotNet(Sums(), TEXTS, scale=10.0)
    prob = net.predict_logits(images((3, 4))).sigmoid()[0].tolist()
    total = math.exp(6) + math.exp(8) + math.exp(-6)
    assert prob == pytest.approx([math.exp(v) / total for v in (6, 8, -6)], rel=1e-4)


def test_sigmoid_of_cosines_by_hand():
    net = ZeroShotNet(Sums(), TEXTS, scale=10.0, bias=-7.0, scores="sigmoid")
    assert net.predict_logits(images((3, 4)))[0].tolist() == pytest.approx([-1.0, 1.0, -13.0], abs=1e-5)


@pytest.mark.parametrize("spread", [1.0, 30.0, 300.0])
def test_log_odds_against_float64(spread):
    """Where float32 rounds p to 0 or 1, and where two classes share it."""
    x = spread * torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    x[0] = torch.tensor([spread, spread, 0.0, 0.0])
    wide = x.double()
    expected = [[row[c] - torch.cat([row[:c], row[c + 1 :]]).logsumexp(0) for c in range(4)] for row in wide]
    torch.testing.assert_close(log_odds(x).double(), torch.tensor(expected).double(), rtol=1e-5, atol=1e-4)
