"""One of two processes: fills its shard of the stores, ranks over both, and saves what it holds."""

from unittest.mock import patch

import numpy as np
import torch
from two_processes import main

from fewtags.batched_views import stack_views
from fewtags.geometry import View
from fewtags.labels import Batch, LabelMatrix
from fewtags.objectives import ranking
from fewtags.objectives.base import Problem, Step
from fewtags.objectives.expected_negative import ExpectedNegative, Predictions
from fewtags.stores import best_cells
from fewtags.stores.topk import ExpectedPositives

SAMPLES, CLASSES, GRID = 13, 5, (2, 3)


def labels():
    rng = np.random.default_rng(0)
    return LabelMatrix.from_dense(rng.choice(np.array([1, 0, 0, 0, -1], np.int8), size=(SAMPLES, CLASSES)))


def truth():
    return LabelMatrix.from_dense(np.random.default_rng(1).choice(np.array([1, -1], np.int8), size=(SAMPLES, CLASSES)))


def run(shard, cells=SAMPLES):
    """Two epochs of random predictions for the rows of `shard`; the state of every part, and the diagnostics.

    Each class is a block of its own, so that one process ranks three of them and the other two.
    """
    with patch.object(ranking, "BLOCK_CELLS", cells):
        return epochs(shard)


def run_rows(shard, few):
    """The same with fewer expected positives; `few`: ranked in blocks, otherwise by rows where that is possible."""
    with patch.object(ranking, "FEW_CELLS", few), patch.object(best_cells, "LARGEST_SHARE", 1.0):
        state, found = epochs(shard, 1.3)
    return {name: value.clone() for name, value in state["expected_positives"].items()}, found


def epochs(shard, positives=1.8):
    problem = Problem(labels=labels(), grid=GRID, warmup_epochs=1, epochs=3, shard=shard, truth=truth())
    method = ExpectedNegative(
        positives_per_image=positives,
        scl_weight=1.0,
        heatmap_top_k=4,
        heatmap_rounding="stochastic",
        corrected_averages=True,
    )
    net = torch.nn.Identity()
    parts, found = method.setup(net, problem), []
    for epoch in range(3):
        found.append(dict(method.on_epoch_start(epoch)))
        rng = np.random.default_rng(2 + epoch)
        # Scores of four levels only: ties at every cut, across the processes.
        scores = torch.from_numpy(rng.integers(4, size=(SAMPLES, CLASSES)) / 3).float()
        maps = torch.from_numpy(rng.random((SAMPLES, CLASSES, *GRID), np.float32))
        lefts, everything = rng.uniform(0, 0.5, SAMPLES), torch.from_numpy(problem.labels.dense())
        for index in shard.owned(SAMPLES).split(3):
            if epoch == 0:
                index = index[index < 6]  # the others are ranked by their start values
            views = stack_views([View.crop(lefts[n], 0.0, lefts[n] + 0.5, 1.0) for n in index.tolist()])
            batch = Batch(images=torch.zeros(len(index), 3, 1, 1), labels=everything[index], index=index, views=views)
            payload = Predictions(scores[index], maps[index] if epoch >= problem.warmup_epochs else None)
            method.commit(net, batch, Step(torch.zeros(()), {}, payload))
    return {name: dict(part.state_dict()) for name, part in parts.items()}, found


def counts(rank):
    """Rows that a process brings to three collections: more, fewer and none."""
    return ((3, 1, 0), (2, 4, 2))[rank]


def held(folder, shard):
    """The same, by name, with the classes that were ranked here."""
    ranked, refresh = [], ExpectedPositives.refresh

    def noted(self, first, *rest):
        ranked.append(first)
        return refresh(self, first, *rest)

    with patch.object(ExpectedPositives, "refresh", noted):
        state, found = run(shard)
        of_one_class = [*ranked]
        ranked.clear()
        run(shard, ranking.BLOCK_CELLS)
        by_default = [*ranked]
        ranked.clear()
        by_rows = run_rows(shard, 0)
        left = [*ranked]
        by_blocks = run_rows(shard, ranking.FEW_CELLS)
    together = [shard.concatenate(torch.arange(n).view(n, 1) + 100 * shard.rank) for n in counts(shard.rank)]
    return {
        "state": state,
        "found": found,
        "ranked": of_one_class,
        "ranked_by_default": by_default,
        "by_rows": by_rows,
        "left": left,
        "by_blocks": by_blocks,
        "together": together,
    }


if __name__ == "__main__":
    main(held)
