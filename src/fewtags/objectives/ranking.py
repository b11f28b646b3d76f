"""The ranking at the start of an epoch: cuts between expected positives and other images, and what there is to log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewtags.labels import Label
from fewtags.objectives.base import Problem
from fewtags.objectives.tally import Tally, columns_of, hidden_positives, judge
from fewtags.stores.best_cells import best_cells
from fewtags.stores.rows import ScoreStore
from fewtags.stores.second_score import PrototypeScores
from fewtags.stores.topk import BLOCK_CELLS, ExpectedPositives, class_blocks

FEW_CELLS = 2**23
"""Up to so many averages are ranked in blocks of classes."""


@final
@dataclass(frozen=True, eq=False)
class Ranking:
    """Ranks the images of every class by their running averages.

    Few averages are ranked in blocks of classes: each process gets the averages of all images for some classes. For
    many, each process looks through its own rows once for cells that may be among the best, and these are ranked. The
    cuts are the same.

    Attributes:
        problem: the labels, and the rows of this process.
        scores: the running averages.
        cuts: the cuts to set, each with p_i of the classes, int64 [C].
        second: second scores of the ranking, if any; then all is ranked in blocks.
    """

    problem: Problem
    scores: ScoreStore
    cuts: Sequence[tuple[ExpectedPositives, Tensor]]
    second: PrototypeScores | None = None

    def refresh(self, ranked: bool) -> Tally:
        """Set the cuts if the epoch has a ranking; return the sums of all processes. Collective."""
        samples, classes = self.problem.labels.shape
        if samples * classes <= FEW_CELLS or self.second is not None:
            return self._rank_blocks([(0, classes)], ranked)
        predicted = self.scores.total(self.problem.labels)
        if self.problem.shard.world > 1:
            own = torch.tensor(predicted, dtype=torch.float64, device=self.problem.device)
            predicted = float(self.problem.shard.sum(own))
        if not ranked:
            return Tally(predicted)
        tally, done = self._rank_rows()
        turns = np.flatnonzero(np.diff(~done, prepend=False, append=False))  # starts and ends of the others
        rest = self._rank_blocks([(int(first), int(last)) for first, last in turns.reshape(-1, 2)], ranked)
        return Tally(predicted, *(a + b for a, b in zip(tally[1:], rest[1:], strict=True)))

    @cached_property
    def _hidden_positives(self) -> NDArray[np.int64]:
        """`hidden_positives` of all classes, if the truth is known."""
        assert self.problem.truth is not None
        return hidden_positives(self.problem.labels, self.problem.truth)

    def _rank_rows(self) -> tuple[Tally, NDArray[np.bool_]]:
        """Set the cuts of most classes from the best cells of all rows; return their sums, and which they are."""
        labels, truth = self.problem.labels, self.problem.truth
        counts = [wanted.cpu().numpy() for _, wanted in self.cuts]
        found, annotated = best_cells(self.scores, labels, np.maximum.reduce(counts)), labels.counts(Label.POSITIVE)
        done = np.ones(labels.shape[1], np.bool_)
        for (cuts, _), wanted in zip(self.cuts, counts, strict=True):
            done &= cuts.refresh_from(found, wanted, annotated)
        expected = done[found.class_] & (found.label == Label.UNKNOWN) & self.cuts[0][0].above(found)
        tally = Tally(0.0, float(np.count_nonzero(expected) + annotated[done].sum()))
        if truth is None:
            return tally, done
        true = truth.at(found.image[expected], found.class_[expected])
        return Tally(*tally[:2], *judge(true, self._hidden_positives[done])), done

    def _rank_blocks(self, classes: Sequence[tuple[int, int]], ranked: bool) -> Tally:
        """Take stock of ranges of classes, block by block; the cuts of other classes stay as they are. Collective."""
        problem, (samples, count) = self.problem, self.problem.labels.shape
        shard = problem.shard
        cells = min(BLOCK_CELLS, -(-samples * count // shard.world))  # a block for every rank, at least
        blocks = [
            (begin + first, begin + last)
            for begin, end in classes
            for first, last in class_blocks(samples, end - begin, cells)
        ]
        if not blocks:
            return Tally(0.0)
        tallies = torch.zeros(len(blocks), len(Tally._fields), dtype=torch.float64)
        own = torch.full((count,), shard.rank == 0, device=problem.device)
        for first, last in blocks:
            own[first:last] = False
        for number, scores, second in self._own_blocks(blocks):
            own[slice(*blocks[number])] = True
            tallies[number] = torch.tensor(
                self._take_stock(*blocks[number], scores, second, ranked), dtype=torch.float64
            )
        if ranked:
            for shared in (*(cuts for cuts, _ in self.cuts), self.second):
                if shared is not None:
                    shared.share(shard, own)
        if shard.world > 1:
            tallies = shard.sum(tallies.to(problem.device)).cpu()
        return Tally(*tallies.sum(0).tolist())

    def _own_blocks(self, blocks: Sequence[tuple[int, int]]) -> Iterator[tuple[int, Tensor, Tensor | None]]:
        """Yield the number, and the scores and second scores of all images, of this rank's blocks.

        Collective. Ranks take turns, so that all work at the same time on different classes.
        """
        shard, labels = self.problem.shard, self.problem.labels
        for turn in range(0, len(blocks), shard.world):
            found: list[list[Tensor | None]] = []
            for store in (self.scores, self.second):
                these = enumerate(blocks[turn : turn + shard.world])
                found.append([] if store is None else [store.columns(*b, labels, to=rank) for rank, b in these])
            scores, second = (columns[shard.rank] if shard.rank < len(columns) else None for columns in found)
            if scores is not None:
                yield turn + shard.rank, scores, second

    def _take_stock(self, first: int, last: int, scores: Tensor, second: Tensor | None, ranked: bool) -> Tally:
        """Rank the images of a block of classes if the epoch has a ranking."""
        problem, predicted = self.problem, float(scores.sum(0).cpu().double().sum())  # not every GPU has float64
        if not ranked:
            return Tally(predicted)
        labels = columns_of(problem.labels, first, last, problem.device)
        if self.second is not None and second is not None:
            scores = self.second.balance(first, scores, second, labels)
        expected, *_ = (cuts.refresh(first, scores, labels, wanted[first:last]) for cuts, wanted in self.cuts)
        if problem.truth is None:
            return Tally(predicted, expected)
        truth = columns_of(problem.truth, first, last, problem.device)
        index = torch.arange(len(scores), device=scores.device)
        found = self.cuts[0][0].mask(scores, labels, index, first) & (labels == Label.UNKNOWN)
        return Tally(predicted, expected, *judge(truth[found].cpu().numpy(), self._hidden_positives[first:last]))
