"""mAP by size of the objects."""

import numpy as np
import pytest

from fewtags.engine.evaluate import details, evaluate_logits
from fewtags.engine.object_sizes import FEWEST_SIZED, cell_sizes, size_metrics
from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable

CLASSES = ClassNames.of(["cat", "dog"])


def test_size_of_a_cell_is_its_largest_box_by_hand() -> None:
    """Image 0 has cats of 1 % and 25 %; image 1 a point; image 2 a tag and a dog of 4 %. Classes are found by id."""
    nan = np.nan
    corners = [(0, 0, 0.1, 0.1), (0.5, 0.5, 1, 1), (0.3, 0.3, 0.3, 0.3), (nan,) * 4, (0, 0, 0.2, 0.2)]
    table = LabelTable.build(
        ["a", "b", "c"],
        CLASSES,
        image=np.array([0, 0, 1, 2, 2]),
        class_=np.array([0, 0, 0, 0, 1]),
        state=np.ones(5, np.int8),
        source="made",
        locations=np.array(corners, np.float32),
    )
    np.testing.assert_allclose(cell_sizes(table, CLASSES), [[0.25, nan], [nan, nan], [nan, 0.04]], atol=1e-7)
    np.testing.assert_allclose(cell_sizes(table, ClassNames.of(["dog", "owl"]))[2], [0.04, nan], atol=1e-7)
    assert cell_sizes(table, ClassNames.of(["owl"])) is None


def made() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One class: 10 positives of 1 %, 10 of 10 %, 10 of 50 %, a tag, 20 negatives; scores rise with the size."""
    sizes = np.concatenate([np.repeat([0.01, 0.1, 0.5], 10), np.full(21, np.nan)])[:, None]
    labels = np.concatenate([np.ones(31, np.int8), -np.ones(20, np.int8)])[:, None]
    scores = np.concatenate([np.repeat([-1.0, 0.5, 2.0], 10), [9.0], np.full(20, 0.0)])[:, None]
    return scores, labels, sizes


def test_bins_of_equal_number_against_all_negatives_by_hand() -> None:
    """Large and medium objects are above all 20 negatives: AP 1. The 10 small ones are below: ranks 21 to 30.

    They tie, so precision is 10 / 30 at each of them. The tag on top counts nowhere.
    """
    scores, labels, sizes = made()
    small, medium, large = size_metrics(scores, labels, sizes)
    assert small.value == pytest.approx(10 / 30)
    assert (medium.value, large.value) == (1, 1)
    assert [m.count for m in (small, medium, large)] == [10, 10, 10]
    assert small.label == "mAP of small objects (1 to 7 % of the image)"
    assert large.key == "mAP_by_size.large"


def test_unknown_cells_count_nowhere() -> None:
    scores, labels, sizes = made()
    blank = np.full((5, 1), Label.UNKNOWN, np.int8)
    extra = (np.full((5, 1), 5.0), blank, np.full((5, 1), 0.01))
    more = [np.concatenate(pair) for pair in zip((scores, labels, sizes), extra, strict=True)]
    assert [m.value for m in size_metrics(*more)] == [m.value for m in size_metrics(scores, labels, sizes)]


def test_too_few_sizes_give_nothing() -> None:
    scores, labels, sizes = made()
    sizes[0] = np.nan
    assert FEWEST_SIZED == 30
    assert not [*size_metrics(scores, labels, sizes)]
    assert not [*size_metrics(scores, labels, None)]


def test_they_are_in_text_and_json() -> None:
    scores, labels, sizes = made()
    found = evaluate_logits(scores.astype(np.float32), labels, ClassNames.of(["cat"]), np.full(1, 0.5), sizes=sizes)
    assert str(found).splitlines()[-2].startswith("Positive labels with a box: mAP of small objects (1 to 7 % of")
    assert "mAP of large objects (23 to 50 % of the image) 100.0 (10 labels).\nProbabilities: " in str(found)
    assert found.to_dict()["mAP_by_size"]["large"] == 1
    assert "by_size" not in str(found.to_dict()["metrics"][0])
    assert [*details(found.metrics)] == str(found).splitlines()[-3:]
