import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from fewtags.errors import ConfigError, DataError
from fewtags.transfer.dense.measure import Detections, detect_objects, measure_detections
from fewtags.transfer.dense.measure import _encoded as encoded
from fewtags.transfer.dense.scenes import Scene, Scenes


def scene(boxes, classes, ignored=None, size=(200, 100), outlines=None, image=Path("none.png")):
    boxes = np.array(boxes, np.float64).reshape(-1, 4)
    ignored = np.zeros(len(boxes), np.bool_) if ignored is None else np.array(ignored)
    outlines = outlines or tuple(
        [[x0, y0, x1, y0, x1, y1, x0, y1]] for x0, y0, x1, y1 in boxes.tolist()
    )  # fmt: skip
    return Scene(
        image=image, width=size[0], height=size[1], boxes=boxes, classes=np.array(classes, np.int64), ignored=ignored,
        outlines=tuple(outlines), areas=(boxes[:, 2:] - boxes[:, :2]).prod(1),
    )  # fmt: skip


def detections(boxes, classes, scores, size=(200, 100), masks=False):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    drawn = None
    if masks:
        drawn = []
        for x0, y0, x1, y1 in boxes.astype(int).tolist():
            mask = np.zeros((size[1], size[0]), np.bool_)
            mask[y0:y1, x0:x1] = True
            drawn.append(encoded(mask))
        drawn = tuple(drawn)
    return Detections(
        height=size[1], width=size[0], boxes=boxes, classes=np.array(classes, np.int64),
        scores=np.array(scores, np.float32), masks=drawn,
    )  # fmt: skip


def test_coco_by_hand():
    """One class, two objects, and the first is found exactly: precision 1 up to recall 1/2.

    51 of the 101 recall points 0, .01, .. 1 are at most 1/2: AP 51/101 at every overlap, for boxes and masks.
    """
    data = Scenes("coco", (scene([[10, 10, 50, 60], [100, 20, 180, 90]], [0, 0]),), ("cat",))
    values = measure_detections(data, [detections([[10, 10, 50, 60]], [0], [0.9], masks=True)])
    assert list(values) == ["box_AP", "box_AP50", "box_AP75", "mask_AP", "mask_AP50", "mask_AP75"]
    assert list(values.values()) == pytest.approx([51 / 101] * 6)


def test_coco_overlaps_by_hand():
    """A box of 40 x 50 found as its left 40 x 32: IoU .64, right at .50, .55 and .60 of ten overlaps."""
    data = Scenes("coco", (scene([[10, 10, 60, 50]], [0]),), ("cat",))
    values = measure_detections(data, [detections([[10, 10, 42, 50]], [0], [0.9])])
    assert values == pytest.approx({"box_AP": 0.3, "box_AP50": 1, "box_AP75": 0})


def test_a_detection_in_a_crowd_is_not_an_error():
    """It has a higher score than the right one, and is wrong without the crowd: then precision at recall 1 is 1/2."""
    boxes = [[10, 10, 50, 60], [100, 0, 200, 100]]
    found = [detections([[120, 20, 160, 70], [10, 10, 50, 60]], [0, 0], [0.9, 0.8])]
    crowd = Scenes("coco", (scene(boxes, [0, 0], [False, True]),), ("cat",))
    assert measure_detections(crowd, found)["box_AP"] == pytest.approx(1)
    alone = Scenes("coco", (scene(boxes[:1], [0]),), ("cat",))
    assert measure_detections(alone, found)["box_AP"] == pytest.approx(0.5)


def test_the_truth_follows_photos_of_another_size():
    """Stated 200 x 100, the photo is 100 x 50: polygons and run lengths are halved with it."""
    half = np.zeros((100, 200), np.bool_)
    half[20:60, 100:180] = True
    runs = encoded(half)
    outlines = ([[10, 10, 50, 10, 50, 60, 10, 60]], {"size": [100, 200], "counts": runs["counts"]})
    if isinstance(runs["counts"], bytes):
        outlines[1]["counts"] = runs["counts"].decode()
    data = Scenes("coco", (scene([[10, 10, 50, 60], [100, 20, 180, 60]], [0, 0], outlines=outlines),), ("cat",))
    found = [detections([[5, 5, 25, 30], [50, 10, 90, 30]], [0, 0], [0.9, 0.8], size=(100, 50), masks=True)]
    assert list(measure_detections(data, found).values()) == pytest.approx([1] * 6)


def test_nothing_found_scores_zero():
    data = Scenes("coco", (scene([[10, 10, 50, 60]], [0]), scene([], [])), ("cat",))
    nothing = [detections([], [], []), detections([], [], [])]
    assert measure_detections(data, nothing) == {"box_AP": 0, "box_AP50": 0, "box_AP75": 0}


def test_voc_by_hand():
    """Two objects, the first found exactly: precision 1 at recall 0 to .5, 6 of 11 points, at every overlap."""
    data = Scenes("voc", (scene([[10, 10, 50, 60], [100, 20, 180, 90]], [0, 0]),), ("cat", "dog"))
    values = measure_detections(data, [detections([[10, 10, 50, 60]], [0], [0.9])])
    assert values == pytest.approx({"box_AP": 6 / 11, "box_AP50": 6 / 11, "box_AP75": 6 / 11})


def test_voc_counts_whole_pixels_and_ignores_difficult_objects():
    """Continuous 10 x 10 found as 10 x 5: pixels 1..10 by 1..5 of 1..10 by 1..10, IoU 1/2, which does not exceed .5.

    Found as 10 x 6 it does, .6 > .5 and .55. The difficult object is neither missed nor wrong to find.
    """
    data = Scenes("voc", (scene([[0, 0, 10, 10], [100, 20, 180, 90]], [0, 0], [False, True]),), ("cat",))
    hard = [100, 20, 180, 90]
    assert measure_detections(data, [detections([[0, 0, 10, 5], hard], [0, 0], [0.8, 0.9])])["box_AP50"] == 0
    values = measure_detections(data, [detections([[0, 0, 10, 6], hard], [0, 0], [0.8, 0.9])])
    assert values["box_AP50"] == pytest.approx(1)
    assert values["box_AP75"] == 0


def test_photos_without_objects_are_refused():
    data = Scenes("coco", (scene([[1, 1, 5, 5]], [0], [True]),), ("cat",))
    with pytest.raises(DataError, match=r"^no test photo has an object that counts; give photos with annotated"):
        measure_detections(data, [detections([], [], [])])


def test_a_missing_library_is_named(monkeypatch):
    from fewtags.transfer.dense.measure import require_measure

    require_measure()
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    importlib.invalidate_caches()
    with pytest.raises(ConfigError, match=r"^COCO's AP needs faster-coco-eval, which is not installed; run pip in"):
        require_measure()


class Fixed(nn.Module):
    """Finds one object of torchvision's label 2 in every photo; remembers how bright it was."""

    def __init__(self):
        super().__init__()
        self.means = []

    def forward(self, images):
        self.means.append(images[0].mean().item())
        mask = torch.zeros(1, 1, *images[0].shape[1:])
        mask[0, 0, :10, :20] = 0.6
        mask[0, 0, 10:] = 0.5
        box = torch.tensor([[0.0, 0.0, 20.0, 10.0]])
        return [{"boxes": box, "labels": torch.tensor([2]), "scores": torch.tensor([0.7]), "masks": mask}]


def test_detections_are_in_pixels_of_the_photo_and_classes_from_zero(tmp_path, cpu):
    for n, grey in enumerate((0, 255)):
        Image.new("RGB", (40, 30), (grey,) * 3).save(tmp_path / f"{n}.png")
    photos = tuple(scene([[0, 0, 20, 10]], [1], size=(40, 30), image=tmp_path / f"{n}.png") for n in range(2))
    data, net, ticks = Scenes("coco", photos, ("dog", "cat")), Fixed(), []
    found = detect_objects(net, data, cpu, tick=lambda done, total: ticks.append((done, total)))
    assert net.means == [0, 1]
    assert ticks == [(1, 2), (2, 2)]
    assert [(one.height, one.width, one.classes.tolist()) for one in found] == [(30, 40, [1])] * 2
    assert list(measure_detections(data, found).values()) == pytest.approx([1] * 6)
