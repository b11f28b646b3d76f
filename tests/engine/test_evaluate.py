"""Evaluation: values derived by hand, unknown cells, JSON and text."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from fewtags.engine import evaluate as evaluation
from fewtags.engine.evaluate import epoch_metrics, evaluate_logits, predict_logits, sigmoid
from fewtags.errors import DataError
from fewtags.labels import ClassNames
from fewtags.metrics.metric import Metric
from fewtags.nets.backbones import create_net
from fewtags.photos.augment import WholeImage
from fewtags.photos.dataset import EvalSet, PhotoFolder
from fewtags.photos.loader import Collate, EvalLoader

CLASSES = ClassNames(("1", "2", "3"), ("cat", "crane", "crane"))
HALF = np.full(3, 0.5)
# Four images, three classes. Cats: ranked +, -, +, unknown: AP = (1/1 + 2/3) / 2. First cranes: -, +: AP = 1/2. Of the
# second ones only a positive is known.
LOGITS = np.array([[3, -1, 0], [2, 1, 1], [1, 0, 0], [0, 0, 0]], np.float32)
LABELS = np.array([[1, 1, 0], [-1, -1, 1], [1, 0, 0], [0, 0, 0]], np.int8)


def evaluate(logits=LOGITS, labels=LABELS, thresholds=HALF):
    return evaluate_logits(logits, labels, CLASSES, thresholds)


def test_average_precision_by_hand():
    found = evaluate()
    assert found.ranking.average_precision[:2].tolist() == pytest.approx([5 / 6, 1 / 2])
    assert math.isnan(found.ranking.average_precision[2])
    assert found.mean_average_precision == pytest.approx((5 / 6 + 1 / 2) / 2)
    assert not any(metric.key.startswith("positive_only.") for metric in found.metrics)


def test_equal_to_scikit_learn_where_everything_is_known():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(40, 3)).astype(np.float32), rng.choice([-1, 1], size=(40, 3)).astype(np.int8)
    expected = [average_precision_score(labels[:, c] == 1, logits[:, c]) for c in range(3)]
    assert evaluate(logits, labels).ranking.average_precision == pytest.approx(expected, abs=1e-12)


def test_json():
    """At 0.5 (logit 0): cats taken in all four images, two of three known ones rightly: F1 = 2 * 2 / (4 - 1 + 2)."""
    found = evaluate().to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["images"], found["classes_counted"], found["known_cells"]) == (4, 2, 6)
    cat, crane, other = found["per_class"]
    assert (cat["id"], cat["name"], crane["name"], other["name"]) == ("1", "cat", "crane [2]", "crane [3]")
    assert (cat["positives"], cat["negatives"], cat["unknown"], cat["threshold"]) == (2, 1, 1, 0.5)
    assert (cat["precision"], cat["recall"], cat["f1"]) == pytest.approx((2 / 3, 1.0, 0.8))
    assert cat["excluded"] is None
    assert (other["average_precision"], other["excluded"], other["f1"]) == (None, "no known negative", None)
    assert 0 <= found["mAP_interval"][0] <= found["mAP"] <= found["mAP_interval"][1] <= 1
    assert found["positive_only"] is None


def test_unreadable_photos_are_reported():
    """They are not among the images; text and JSON report them."""
    found = replace(evaluate(), unreadable=1)
    assert (found.to_dict()["images"], found.to_dict()["unreadable"]) == (4, 1)
    assert str(found).splitlines()[1] == "Left out: 1 photo that cannot be read."
    assert evaluate().to_dict()["unreadable"] == 0


def test_intervals_do_not_change_from_call_to_call():
    assert evaluate().to_dict() == evaluate().to_dict()


def test_text():
    text = str(evaluate())
    assert text.splitlines()[0].startswith("mAP 66.7 (95 % interval 2.0 .. 100.0), CF1 40.0, OF1 66.7, known labels ")
    assert text.splitlines()[0].endswith("; 2 of 3 classes counted, 4 images, 6 known cells.")
    rows = [line.split()[0] for line in text.splitlines()[2:5]]
    assert rows == ["cat", "crane", "crane"]
    assert text.splitlines()[4].endswith("no known negative")
    assert text.splitlines()[5] == "Completely labelled images: hit@1 0.0 (1 image)."
    assert text.splitlines()[6].startswith("Probabilities: expected calibration error ")


def test_without_known_negatives_the_ranks_are_reported():
    """Two labelled images: class 0 is first of three, class 1 last. One more has no label.

    With unknown as absent: class 0 is tied at the top with an image without it, class 1 is second; AP 1/2 both.
    """
    logits = np.array([[3, 2, 1], [3, 1, 2], [0, 0, 0]], np.float32)
    labels = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0]], np.int8)
    found = evaluate(logits, labels)
    assert found.intervals is None
    assert math.isnan(found.mean_average_precision)
    only = found.to_dict()["positive_only"]
    assert (only["images"], only["hit@1"], only["recall@3"], only["mean_rank"]) == (2, 0.5, 1.0, 2.0)
    assert found.headline() == [
        "images with a known positive 2, hit@1 50.0, recall@1 50.0, recall@3 100.0, recall@5 100.0, mean rank of the "
        "known label 2.00, mAP, unknown counted as absent (pessimistic) 50.0, known labels per image 0.67, predicted "
        "labels per image 3.00, expected labels per image 2.21; 0 of 3 classes counted, 3 images, 2 known cells.",
        "Not measured: mAP, CF1, OF1: no class has both known positives and known negatives, so AP has no meaning.",
    ]
    assert str(found).startswith(found.headline()[0])


@pytest.mark.parametrize("state", [-1, 0])
def test_without_known_positives_there_is_nothing_to_find(state):
    found = evaluate(LOGITS, np.full((4, 3), state, np.int8))
    assert found.headline()[1:] == [
        "Not measured: mAP, CF1, OF1, hit@1, recall@1, recall@3, recall@5, mean rank of the known label, mAP, unknown "
        "counted as absent (pessimistic): no known positive, so there is nothing to rank."
    ]
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["positive_only"]["hit@1"] is None
    assert "nan" not in str(found)


def test_metrics_and_the_keys_of_older_json_agree():
    """The list of metrics is an addition; the keys that earlier versions wrote are still there, with equal values."""
    for labels in (LABELS, np.maximum(LABELS, 0)):
        found = evaluate(labels=labels).to_dict()
        assert found.keys() == {
            "images", "unreadable", "mAP", "mAP_interval", "classes_counted", "known_cells", "CF1", "OF1",
            "cardinality", "positive_only", "per_class", "metrics",
            *({"hit@1", "mAP_by_labels"} if (labels != 0).all(1).any() else set()),
            *({"calibration"} if found["mAP"] is not None else set()),
        }  # fmt: skip
        assert found["cardinality"].keys() == {"known", "predicted", "expected"}
        for metric in found["metrics"]:
            level = found
            for step in metric["key"].split("."):
                level = level[step]
            assert level == metric["value"]


def test_a_metric_that_is_added_in_one_place_reaches_json_text_and_the_command_line(monkeypatch):
    yield_metrics = evaluation.decision_metrics

    def extended(ranking, decisions):
        yield from yield_metrics(ranking, decisions)
        yield Metric(key="CP", label="class precision", value=decisions.class_precision, count=2, items="classes")

    monkeypatch.setattr(evaluation, "decision_metrics", extended)
    found = evaluate()
    result, shown = found.to_dict(), f"class precision {100 * found.decisions.class_precision:.1f}"
    assert result["CP"] == found.decisions.class_precision
    assert [m["key"] for m in result["metrics"]].count("CP") == 1
    assert shown in str(found)
    assert shown in evaluation.headline(json.loads(json.dumps(result)))[0]


def test_completely_labelled_images_by_hand():
    """Five complete images, one with an unknown cell (left out) and one without labels (left out).

    The highest class is a label in images 0, 1 and 4 of five. One label: images 0, 1, 2; class 0 is positive in 0 and
    second there (AP 1/2), class 1 in 1 and first (1), class 2 in 2 and first (1). Two labels: images 3, 4; class 0 is
    positive in both, class 1 in 3, which is second (1/2), class 2 in 4, first (1).
    """
    logits = np.array([[2, 1, 0], [0, 3, 1], [3, 0, 2], [1, 0, 2], [2, 1, 3], [9, 9, 9], [8, 8, 8]], np.float32)
    labels = np.array([[1, -1, -1], [-1, 1, -1], [-1, -1, 1], [1, 1, -1], [1, -1, 1], [1, 0, 1], [-1, -1, -1]], np.int8)
    found = evaluate(logits, labels)
    shown = found.to_dict()
    assert shown["hit@1"] == 3 / 5
    assert shown["mAP_by_labels"] == {"1": (1 / 2 + 1 + 1) / 3, "2": (1 / 2 + 1) / 2}
    assert (
        "Completely labelled images: hit@1 60.0 (5 images), mAP of images with 1 label 83.3 (3 images), mAP of images "
        "with 2 labels 75.0 (2 images)."
    ) in str(found).splitlines()
    assert "hit@1" not in found.headline()[0]


def test_many_labels_are_one_group_and_groups_without_ap_are_left_out():
    rng = np.random.default_rng(0)
    labels = np.full((4, 9), -1, np.int8)
    for image, number in enumerate((5, 6, 8, 1)):
        labels[image, :number] = 1
    found = evaluate_logits(rng.random((4, 9), np.float32), labels, ClassNames.of("abcdefghi"), np.full(9, 0.5))
    groups = {m.key: m for m in found.metrics if m.key.startswith("mAP_by_labels")}
    assert {key: m.count for key, m in groups.items()} == {"mAP_by_labels.1": 1, "mAP_by_labels.5 or more": 3}
    assert not groups["mAP_by_labels.1"].is_defined  # one image has no other to be ranked with
    assert groups["mAP_by_labels.5 or more"].is_defined
    assert "1 label " not in str(found)


def test_no_image_is_refused():
    with pytest.raises(DataError, match=r"there is no image to evaluate on\."):
        evaluate(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.int8))


def test_metrics_of_an_epoch():
    metrics = epoch_metrics(LOGITS, LABELS)
    assert metrics.keys() == {"mAP", "predicted_positives"}
    assert metrics["mAP"] == pytest.approx(2 / 3)
    assert metrics["predicted_positives"] == pytest.approx((1 / (1 + np.exp(-LOGITS.astype(float)))).sum(1).mean())
    blind = epoch_metrics(LOGITS, np.maximum(LABELS, 0))
    assert blind.keys() == {"hit@1", "mean_rank", "pessimistic_mAP", "predicted_positives"}


def test_probabilities_of_large_logits_do_not_tie():
    prob = sigmoid(np.array([[20, 30, -800, 800]], np.float32))
    assert prob.dtype == np.float64
    assert prob[0, 0] < prob[0, 1] < 1
    assert prob[0, 2:].tolist() == [0, 1]


def test_logits_are_those_of_the_forward_pass(scenes):
    """Pool first, then the head: to float32 rounding the same; in order, whatever the batches are."""
    net, table = create_net("test_resnet", 10, weights="none", size=64), scenes.val
    data = EvalSet(PhotoFolder(table.root, table.images), table.matrix, WholeImage(64))
    collate = Collate(net.preprocessing.mean, net.preprocessing.std)
    with torch.no_grad():
        expected = torch.cat([net.eval()(batch.images).logits for batch in EvalLoader(data, 11, collate)]).numpy()
    for size in (1, 4, 64):
        found = predict_logits(net.train(), EvalLoader(data, size, collate), 11, torch.device("cpu"))
        assert not net.training
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
