"""The README's picture: one photo with its predicted tags, and heatmaps of three of them.

    fewtags demo
    python benchmarks/readme_picture.py demo/en_scl docs/picture.png

Only for runs on the built-in digit scenes: other photos are not ours to show.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fewtags.engine.evaluate import sigmoid
from fewtags.engine.model import load_model, make_policy
from fewtags.engine.predict import decide, heatmaps
from fewtags.labels import Label
from fewtags.photos.decode import read_image
from fewtags.report.overlay import overlay
from fewtags.table.storage import load
from fewtags.table.table import LabelTable

HEATMAPS = 3
SIDE = 512


def choose(table: LabelTable, prob: NDArray[np.float64], thresholds: NDArray[np.float64]) -> int:
    """The test photo with three or more classes whose tags are all right and whose least sure tag is the surest."""
    best, found = -1.0, -1
    for i, labels in enumerate(table.matrix.dense()):
        positive = np.flatnonzero(labels == Label.POSITIVE)
        if len(positive) < HEATMAPS or set(decide(prob[i], thresholds).tolist()) != set(positive.tolist()):
            continue
        if prob[i, positive].min() > best:
            best, found = float(prob[i, positive].min()), i
    if found < 0:
        raise SystemExit("no test photo has three classes and all of its tags right; train for longer")
    return found


def draw(run: Path, out: Path) -> str:
    """Write the picture and return the key of the photo."""
    net, info = load_model(run)
    table = load(run / "tables" / "test.parquet")
    prob = sigmoid(np.load(run / "evaluation" / "test.npy"))
    thresholds = np.array(info.thresholds)
    i = choose(table, prob, thresholds)
    key: str = table.images[i].as_py()
    assert table.root is not None
    path = table.root / key
    scores, maps = heatmaps(net, info, path, torch.device("cpu"))
    photo = read_image(path)
    enlarged = enlarge(photo)
    tags = decide(scores.astype(np.float64), thresholds)
    names = info.classes.display
    figure = Figure(figsize=(3 * (1 + HEATMAPS), 3.4), layout="constrained")
    panels = figure.subplots(1, 1 + HEATMAPS)
    show(panels[0], enlarged, "tags: " + ", ".join(names[c] for c in tags))
    view = make_policy(info.policy, info.size).test_view(photo.shape[1] / photo.shape[0])
    for axes, c in zip(panels[1:], tags[:HEATMAPS], strict=True):
        show(axes, overlay(enlarged, maps[c], view=view), f"{names[c]}  {scores[c]:.2f}")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)
    return key


def enlarge(photo: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The photo enlarged by whole pixels, so that maps over a small scene are smooth and the scene stays crisp."""
    times = max(1, SIDE // max(photo.shape[:2]))
    return photo.repeat(times, 0).repeat(times, 1)


def show(axes: Axes, pixels: NDArray[np.uint8], title: str) -> None:
    """One panel without axes."""
    axes.imshow(pixels)
    axes.set_title(title, fontsize=13)
    axes.set_axis_off()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder of the demo")
    parser.add_argument("out", type=Path, help="PNG file")
    arguments = parser.parse_args()
    print(f"{arguments.out}: {draw(arguments.run, arguments.out)}")


if __name__ == "__main__":
    main()
