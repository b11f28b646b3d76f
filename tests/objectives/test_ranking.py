"""The ranking by rows gives the cuts and counts of the ranking by blocks of classes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fewtags.labels import Batch, ClassNames, Label, LabelMatrix
from fewtags.objectives import ranking
from fewtags.objectives.base import Problem, Step
from fewtags.objectives.expected_negative import ExpectedNegative, Predictions
from fewtags.objectives.ranking import Ranking
from fewtags.stores import best_cells
from fewtags.stores.rows import ScoreStore
from fewtags.stores.topk import ExpectedPositives
from fewtags.table.table import LabelTable

SAMPLES, CLASSES = 700, 12


def table_of(rng, negatives=0.1, complete=True):
    """Sparse labels; some photos are complete for four classes. The last class has no label."""
    state = rng.choice([1, 0, -1], size=(SAMPLES, CLASSES), p=[0.02, 0.98 - negatives, negatives])
    state[:, -1] = 0
    image, class_ = np.nonzero(state)
    keys, names = [f"{n:04}" for n in range(SAMPLES)], ClassNames.of(f"c{c:02}" for c in range(CLASSES))
    table = LabelTable.build(keys, names, image=image, class_=class_, state=state[image, class_])
    if not complete:
        return table.matrix
    sets = np.where(rng.random(SAMPLES) < 0.3, 0, -1).astype(np.int16)
    closed = np.zeros((1, CLASSES), np.bool_)
    closed[0, 2:6] = True
    return replace(table.matrix, complete_set=sets, complete_classes=closed)


def started(rng, labels, scores, seen=None, **settings):
    """The state and what is logged after the start of the second epoch."""
    truth = table_of(np.random.default_rng(99), negatives=0.7, complete=False)
    problem = Problem(labels=labels, grid=(1, 1), epochs=3, truth=truth)
    method = ExpectedNegative(scl_weight=0.0, **settings)
    parts = method.setup(torch.nn.Identity(), problem)
    index = torch.arange(SAMPLES) if seen is None else torch.from_numpy(np.flatnonzero(seen))
    given = torch.from_numpy(labels.rows(index.numpy()))
    batch = Batch(
        images=torch.zeros(len(index), 3, 1, 1), labels=given, index=index, views=torch.zeros(len(index), 2, 3)
    )
    method.commit(torch.nn.Identity(), batch, Step(torch.zeros(()), {}, Predictions(scores[index], None)))
    logged = method.on_epoch_start(1)
    cuts = {name: dict(part.state_dict()) for name, part in parts.items() if name != "scores"}
    return {name: {key: value.tolist() for key, value in part.items()} for name, part in cuts.items()}, logged


@pytest.mark.parametrize("reading", ["all_then_or", "fill", "unannotated_only"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("levels", [None, 40, 3])
@pytest.mark.parametrize("unseen", [0.0, 0.4])
def test_rows_and_blocks_give_the_same_cuts(monkeypatch, reading, dtype, levels, unseen):
    """Also with equal scores, with rows that were never updated, and with closed photos."""
    rng = np.random.default_rng(5)
    labels = table_of(rng)
    scores = torch.from_numpy(1 / (1 + np.exp(4 - 2 * rng.standard_normal((SAMPLES, CLASSES), np.float32))))
    scores = scores if levels is None else (scores * levels).round() / levels
    settings = {"positives_per_image": 0.4, "reading": reading, "score_dtype": dtype}
    settings["positives_interval"] = (0.3, 0.6)
    seen = None if unseen == 0 else rng.random(SAMPLES) >= unseen
    blocks = started(rng, labels, scores, seen, **settings)
    monkeypatch.setattr(ranking, "FEW_CELLS", 0)
    rows, refresh = [], ExpectedPositives.refresh_from

    def noted(*given):
        rows.append(refresh(*given))
        return rows[-1]

    monkeypatch.setattr(ExpectedPositives, "refresh_from", noted)
    assert started(rng, labels, scores, seen, **settings)[0] == blocks[0]
    assert started(rng, labels, scores, seen, **settings)[1] == pytest.approx(blocks[1])
    assert any(done.sum() > 1 for done in rows) or levels == 3  # three levels tie too many cells


def test_expected_positives_are_judged_alike_by_rows_and_by_blocks(monkeypatch):
    """Both counts are those of the dense labels: of the best 40 cells without a label, those with a known truth."""
    rng = np.random.default_rng(8)
    labels, truth = table_of(rng), table_of(np.random.default_rng(9), negatives=0.7, complete=False)
    store = ScoreStore(SAMPLES, CLASSES)
    scores = rng.permutation(SAMPLES * CLASSES).reshape(SAMPLES, CLASSES).astype(np.float32) / (SAMPLES * CLASSES)
    store.start_with(torch.from_numpy(scores))
    store.visits += 1
    cuts = [(ExpectedPositives(CLASSES, "unannotated_only"), torch.full((CLASSES,), 40))]
    ranked = Ranking(Problem(labels=labels, grid=(1, 1), epochs=3, truth=truth), store, cuts)
    blocks = ranked.refresh(True)
    monkeypatch.setattr(ranking, "FEW_CELLS", 0)
    assert ranked._rank_rows()[1].sum() > CLASSES // 2  # the others are ranked in blocks
    rows = ranked.refresh(True)
    assert rows[1:] == blocks[1:]
    given, true = labels.dense(), truth.dense()
    candidates = np.where(given == Label.UNKNOWN, scores, -1)
    best = candidates >= np.sort(candidates, axis=0)[-40]
    hidden = (given == Label.UNKNOWN) & (true == Label.POSITIVE)
    assert rows[2:] == ((best & (true != Label.UNKNOWN)).sum(), (best & hidden).sum(), hidden.sum())
    assert 0 < rows.correct < min(rows.judged, rows.positive)


def test_classes_whose_best_cells_are_not_all_found_are_ranked_in_blocks(monkeypatch):
    """The best scores of one class are those of its known negatives: what the sample promises is not there."""
    rng = np.random.default_rng(6)
    scores = torch.from_numpy(rng.random((SAMPLES, CLASSES), np.float32))
    dense = np.zeros((SAMPLES, CLASSES), np.int8)
    dense[np.arange(96), np.arange(96) % CLASSES] = Label.POSITIVE
    top = scores[:, 0].topk(200).indices.numpy()
    dense[top[top >= 96], 0] = Label.NEGATIVE
    labels = LabelMatrix.from_dense(dense)
    blocks = started(rng, labels, scores, positives_per_image=0.6)
    monkeypatch.setattr(ranking, "FEW_CELLS", 0)
    ranked, refresh = [], ExpectedPositives.refresh
    monkeypatch.setattr(
        ExpectedPositives, "refresh", lambda self, first, *rest: ranked.append(first) or refresh(self, first, *rest)
    )
    found = started(rng, labels, scores, positives_per_image=0.6)
    assert found[0] == blocks[0]
    assert found[1] == pytest.approx(blocks[1])
    assert ranked == [0]


def test_few_cells_are_found(monkeypatch):
    """Of 20 of 5,000 photos, a sample of 1,000 rows shows where to look: not all cells, and not fewer than wanted."""
    monkeypatch.setattr(best_cells, "SAMPLE", 1000)
    rng = np.random.default_rng(7)
    labels = LabelMatrix.from_dense(np.zeros((5000, 3), np.int8))
    store = ScoreStore(5000, 3)
    store.start_with(torch.from_numpy(rng.random((5000, 3), np.float32)))
    store.visits += 1
    found = best_cells.best_cells(store, labels, np.array([20, 0, 4000]))
    assert found.searched.tolist() == [True, False, False]
    assert 20 <= len(found.image) <= 200
    assert np.all(found.class_ == 0)
    assert np.all(found.label == Label.UNKNOWN)
    best = np.sort(store.values[:, 0].numpy())[-20:]
    assert set(best.tolist()) <= set(found.score.tolist())
