import numpy as np
import pytest

from fewtags.errors import DataError
from fewtags.metrics.detection_voc import OVERLAPS, PredictedBoxes, TrueBoxes, voc_average_precision


def truth(*objects):
    """(x0, y0, x1, y1, class, difficult) each."""
    rows = np.array(objects, float).reshape(-1, 6)
    return TrueBoxes(rows[:, :4], rows[:, 4].astype(int), rows[:, 5].astype(bool))


def found(*detections):
    """(x0, y0, x1, y1, class, score) each."""
    rows = np.array(detections, float).reshape(-1, 6)
    return PredictedBoxes(rows[:, :4], rows[:, 4].astype(int), rows[:, 5])


def ap(truths, founds, **options):
    return voc_average_precision(truths, founds, 1, **{"overlaps": (0.5,), "border": 0.0} | options).at(0.5)


SQUARE, OTHER = (0, 0, 10, 10), (50, 50, 60, 60)


def test_by_hand():
    """Two objects; right, wrong, right by score. Precision 1, 1/2, 2/3 at recall 1/2, 1/2, 1.

    11 points: 1 at recall 0 to .5 (six), 2/3 at .6 to 1 (five): (6 + 10/3) / 11. All points: 1/2 + 1/3.
    """
    truths = [truth((*SQUARE, 0, 0), (*OTHER, 0, 0))]
    founds = [found((*SQUARE, 0, 0.9), (80, 80, 90, 90, 0, 0.8), (*OTHER, 0, 0.7))]
    assert ap(truths, founds) == pytest.approx((6 + 10 / 3) / 11)
    assert ap(truths, founds, points="all") == pytest.approx(1 / 2 + 1 / 3)


def test_a_second_detection_of_an_object_is_wrong():
    """Right, wrong (the double), right: precision 1, 1/2, 2/3 at recall 1/2, 1/2, 1."""
    truths = [truth((*SQUARE, 0, 0)), truth((*SQUARE, 0, 0))]
    double = [found((*SQUARE, 0, 0.9), (*SQUARE, 0, 0.8)), found((*SQUARE, 0, 0.7))]
    assert ap(truths, double, points="all") == pytest.approx(1 / 2 + 1 / 2 * 2 / 3)


def test_difficult_objects_count_for_nothing():
    truths = [truth((*SQUARE, 0, 0), (*OTHER, 0, 1))]
    both = [found((*OTHER, 0, 0.9), (*OTHER, 0, 0.85), (*SQUARE, 0, 0.8))]
    assert ap(truths, both) == 1.0
    with pytest.raises(DataError, match="no object that counts"):
        ap([truth((*SQUARE, 0, 1))], [found()])


def test_the_overlap_has_to_exceed_the_limit():
    """A box of half the width inside the object overlaps by exactly 1/2; with VOC's pixel borders by 66/121."""
    truths, founds = [truth((*SQUARE, 0, 0))], [found((0, 0, 5, 10, 0, 0.9))]
    assert ap(truths, founds) == 0.0
    assert ap(truths, founds, border=1.0) == 1.0


def test_classes_and_images_are_apart_and_means_leave_absent_classes_out():
    truths = [truth((*SQUARE, 0, 0)), truth((*SQUARE, 1, 0))]
    founds = [found((*SQUARE, 1, 0.9)), found((*SQUARE, 1, 0.8), (*SQUARE, 0, 0.7))]
    report = voc_average_precision(truths, founds, 3, overlaps=(0.5,), points="all")
    np.testing.assert_allclose(report.by_class, [[0.0, 0.5, np.nan]])
    assert report.mean == 0.25
    with pytest.raises(DataError, match=r"^AP at overlap 0\.75 was not measured, only at 0\.5\.$"):
        report.at(0.75)


def slow(truths, founds, c, limit):
    """The development kit's loop, in plain Python; AP at eleven points."""
    total = sum(int((~t.difficult[t.classes == c]).sum()) for t in truths)
    listed = sorted(
        ((s, n, i) for n, f in enumerate(founds) for i, s in enumerate(f.scores) if f.classes[i] == c),
        key=lambda entry: -entry[0],
    )
    seen, hits, misses, curve = set(), 0, 0, []
    for _, n, i in listed:
        box, best, place = founds[n].boxes[i], -1.0, None
        for j in np.flatnonzero(truths[n].classes == c):
            other = truths[n].boxes[j]
            w = min(box[2], other[2]) - max(box[0], other[0]) + 1
            h = min(box[3], other[3]) - max(box[1], other[1]) + 1
            if w > 0 and h > 0:
                area = [(b[2] - b[0] + 1) * (b[3] - b[1] + 1) for b in (box, other)]
                overlap = w * h / (sum(area) - w * h)
                if overlap > best:
                    best, place = overlap, j
        if best > limit:
            if not truths[n].difficult[place]:
                if (n, place) in seen:
                    misses += 1
                else:
                    hits += 1
                    seen.add((n, place))
        else:
            misses += 1
        if hits + misses:
            curve.append((hits / total, hits / (hits + misses)))
    return sum(max((p for r, p in curve if r >= t / 10 - 1e-12), default=0.0) for t in range(11)) / 11


def test_a_slow_reference_on_random_boxes():
    rng = np.random.default_rng(0)

    def boxes(count):
        corner = rng.uniform(0, 60, (count, 2))
        return np.concatenate([corner, corner + rng.uniform(5, 40, (count, 2))], 1)

    truths = [TrueBoxes(boxes(n), rng.integers(0, 2, n), rng.random(n) < 0.2) for n in rng.integers(0, 6, 12)]
    founds = []
    for t in truths:
        extra = rng.integers(0, 4)
        near = t.boxes + rng.normal(0, 3, t.boxes.shape)
        kinds = np.concatenate([t.classes, rng.integers(0, 2, extra)])
        founds.append(PredictedBoxes(np.concatenate([near, boxes(extra)]), kinds, rng.random(len(kinds))))
    report = voc_average_precision(truths, founds, 2)
    assert report.overlaps == OVERLAPS
    for n, limit in enumerate(OVERLAPS):
        for c in range(2):
            assert report.by_class[n, c] == pytest.approx(slow(truths, founds, c, limit), abs=1e-12), (limit, c)


def test_other_images_are_refused():
    with pytest.raises(DataError, match=r"^there are detections of 0 images and objects of 1; give the same images\.$"):
        voc_average_precision([truth()], [], 1)
