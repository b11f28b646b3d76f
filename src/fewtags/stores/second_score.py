"""A second score beside a net's probability: how near an image is to the prototype of each class (not in a paper)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Bool, Float, Int8, Int64
from torch import Tensor

from fewtags.labels import Label, LabelMatrix
from fewtags.stores.prototypes import Prototypes, sum_patches
from fewtags.stores.rows import ScoreStore
from fewtags.stores.shard import SINGLE_PROCESS, Shard
from fewtags.stores.state import copy_state


@final
class PrototypeScores:
    """Scores that rank the images of a class by a net's score s and by the distance to the prototype of the class.

    The prototype is the mean of the unit features of the annotated positive images (the mean over their cells). The
    second score of an image is q = 1 - d / 2, where d is its cosine distance to the prototype, 0..2. Both are made
    comparable by their standard deviations over the unknown labels of the class: images are ranked by
    (1 - w) s / std(s) + w q / std(q), which has the order of the weighted mean of z-scores. It is computed as
    a s + b q, where a and b are numbers of the class.

    Training adds up the features that it sees, and `refresh` turns them into prototypes. So the first prototypes come
    from the first epoch, the first second scores from the second, and the ranking of the third epoch is the first that
    uses them. Where there is no prototype, or one of the scores is the same for all images, s alone decides.

    Args:
        samples: N, over all processes.
        classes: C.
        dim: d, channels of the features.
        weight: w, 0..1.
        shard: the rows that this process owns and stores.
        device: of rows and prototypes.
    """

    def __init__(
        self,
        samples: int,
        classes: int,
        dim: int,
        weight: float,
        *,
        shard: Shard = SINGLE_PROCESS,
        device: torch.device | None = None,
    ) -> None:
        self.weight = weight
        self.prototypes = Prototypes(classes, dim, shard=shard, device=device)
        self.scores = ScoreStore(samples, classes, momentum=0.0, shard=shard, device=device)
        self.own = torch.ones(classes, device=device)
        self.second = torch.zeros(classes, device=device)

    def refresh(self) -> None:
        """Make prototypes of what was seen since the last call. Collective: every rank must call it."""
        self.prototypes.refresh()

    def columns(self, first: int, last: int, labels: LabelMatrix, *, to: int = 0) -> Float[Tensor, "n k"] | None:
        """Second scores of all images, see `ScoreStore.columns`. Collective."""
        return self.scores.columns(first, last, labels, to=to)

    def balance(
        self, first: int, scores: Float[Tensor, "n k"], second: Float[Tensor, "n k"], labels: Int8[Tensor, "n k"]
    ) -> Float[Tensor, "n k"]:
        """Set a and b of the classes from `first` on, from all images; return what ranks these."""
        unknown = (labels == Label.UNKNOWN).T.contiguous()
        ours, theirs = _spread(scores, unknown), _spread(second, unknown)
        usable = (ours > 0) & (theirs > 0)
        block = slice(first, first + scores.shape[1])
        # s / std(s) + w / (1 - w) q / std(q), times std(s); with the weight 1 the second score alone.
        alone = self.weight == 1
        factor = ours / theirs * (1.0 if alone else self.weight / (1 - self.weight))
        self.second[block] = torch.where(usable, factor, 0.0)
        self.own[block] = torch.where(usable, float(not alone), 1.0)
        return self._sum(scores, second, block)

    def share(self, shard: Shard, own: Bool[Tensor, "c"]) -> None:
        """Combine a and b of all processes; one process balances each class (`own`). Collective."""
        for values in (self.own, self.second):
            values.copy_(shard.sum(torch.where(own, values, 0)))

    def ranked(
        self, scores: Float[Tensor, "b c"], labels: Int8[Tensor, "b c"], index: Int64[Tensor, "b"]
    ) -> Float[Tensor, "b c"]:
        """Return what ranks the images `index`, with the same bits as `balance`."""
        return self._sum(scores, self.scores.read(index, labels), slice(None))

    def update(
        self, index: Int64[Tensor, "b"], features: Float[Tensor, "b d h w"], labels: Int8[Tensor, "b c"]
    ) -> None:
        """Add the features of annotated positives to the prototypes, and store the second scores of the images."""
        whole = features.mean((2, 3), keepdim=True)
        self.prototypes.add(sum_patches(whole, (labels == Label.POSITIVE)[:, :, None, None]))
        self.scores.update(index, 1 - self.prototypes.distance(whole).to(self.scores.values.device) / 2, labels)

    def state_dict(self) -> Mapping[str, Tensor]:
        """The tensors themselves, not copies."""
        return {**self.prototypes.state_dict(), **self.scores.state_dict(), "own": self.own, "second": self.second}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], /) -> None:
        """Copy a state in place. Raises CheckpointError if its names, shapes or dtypes differ."""
        copy_state(self.state_dict(), state_dict, "prototypes")

    def _sum(self, scores: Tensor, second: Tensor, block: slice) -> Tensor:
        # Three operations, each rounded by itself, so that the place in a batch cannot change a bit.
        ours, theirs = self.own[block] * scores, self.second[block] * second
        return ours + theirs


def _spread(values: Tensor, unknown: Tensor) -> Tensor:
    """Return the standard deviation of each class over its unknown labels, float32 [k]; 0 without any."""
    columns, count = values.T.contiguous(), unknown.sum(1).clamp(min=1)
    mean = torch.where(unknown, columns, 0.0).sum(1) / count
    return (torch.where(unknown, columns - mean[:, None], 0.0).square().sum(1) / count).sqrt()
