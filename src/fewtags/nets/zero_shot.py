"""Image-text models such as CLIP and SigLIP as classifiers: logits of photos for classes that texts describe.

CLIP is Radford et al., "Learning Transferable Visual Models From Natural Language Supervision" (ICML 2021), SigLIP Zhai
et al., "Sigmoid Loss for Language Image Pre-Training" (ICCV 2023).
"""

from __future__ import annotations

from typing import Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Scores = Literal["softmax", "sigmoid"]


@final
class ZeroShotNet(nn.Module):
    """Compares images with the texts of C classes; x = scale * cosine + bias.

    The probability of a class is the sigmoid of `predict_logits`. For "sigmoid" that is sigmoid(x), as SigLIP was
    trained: each class for itself. For "softmax" it is softmax(x) over the classes, as CLIP was trained: the classes of
    an image add up to 1, so that the score of a class depends on the others.

    Args:
        encoder: maps images [b, 3, h, w] to embeddings [b, d].
        texts: embeddings of the classes [C, d], of any length.
        scale: exp of CLIP's logit scale; the inverse of the temperature.
        bias: of SigLIP; 0 for CLIP.
        scores: see above.
    """

    def __init__(
        self,
        encoder: nn.Module,
        texts: Float[Tensor, "c d"],
        scale: float,
        bias: float = 0.0,
        scores: Scores = "softmax",
    ) -> None:
        super().__init__()
        self.encoder, self.scale, self.bias, self.scores = encoder, scale, bias, scores
        self.register_buffer("texts", F.normalize(texts.detach().float(), dim=1))

    def predict_logits(self, images: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c"]:
        """Return logits, float32, whose sigmoids are the probabilities."""
        embeddings = F.normalize(self.encoder(images).float(), dim=1)
        x = self.scale * embeddings @ self.get_buffer("texts").T + self.bias
        return x if self.scores == "sigmoid" else log_odds(x)


def log_odds(x: Float[Tensor, "b c"]) -> Float[Tensor, "b c"]:
    """Return log(p / (1 - p)) with p = softmax(x), also where p rounds to 0 or 1; C must be at least 2.

    >>> log_odds(torch.tensor([[100.0, 0.0, 0.0]])).round(decimals=2)  # 100 - log 2, and -100
    tensor([[  99.3100, -100.0000, -100.0000]])
    """
    log_p = x.log_softmax(1)
    odds = log_p - torch.log1p(-log_p.exp().clamp(max=0.75))  # exact up to p = .75
    best = x.argmax(1, keepdim=True)
    rest = x.scatter(1, best, -torch.inf).logsumexp(1, keepdim=True)
    return odds.scatter(1, best, x.gather(1, best) - rest)
