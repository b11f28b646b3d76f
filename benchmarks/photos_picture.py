"""The README's first picture: photos of scikit-image with their most likely class and its heatmap.

    cd ../shared/data/voc_mix
    fewtags simulate labels.csv --images images --protocol single --seed 0 --out /tmp/single.parquet
    fewtags train /tmp/single.parquet --images images --out /tmp/voc
    cd -
    python benchmarks/photos_picture.py /tmp/voc docs/images/photos.png

The photos are free: NASA, public domain, and Stefan van der Walt, CC0.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from skimage import data

from fewtags.engine.model import load_model, make_policy
from fewtags.engine.predict import heatmaps
from fewtags.report.overlay import overlay
from readme_picture import show

PHOTOS: Mapping[str, Callable[[], NDArray[np.uint8]]] = {"astronaut": data.astronaut, "chelsea": data.chelsea}


def draw(run: Path, out: Path) -> str:
    """Write the picture and return the title of each photo."""
    net, info = load_model(run)
    photos = {name: np.asarray(make()) for name, make in PHOTOS.items()}
    widths = [photo.shape[1] / photo.shape[0] for photo in photos.values() for _ in range(2)]
    figure = Figure(figsize=(2.6 * sum(widths), 2.9), layout="constrained")
    panels = figure.subplots(1, len(widths), width_ratios=widths)
    titles = []
    for n, (name, photo) in enumerate(photos.items()):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.png"
            Image.fromarray(photo).save(path)
            prob, maps = heatmaps(net, info, path, torch.device("cpu"))
        best = int(prob.argmax())
        titles.append(f"{info.classes.display[best]}  {prob[best]:.2f}")
        view = make_policy(info.policy, info.size).test_view(photo.shape[1] / photo.shape[0])
        show(panels[2 * n], photo, "")
        show(panels[2 * n + 1], overlay(photo, maps[best], view=view), titles[-1])
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)
    return ", ".join(titles)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder of a model trained on VOC classes")
    parser.add_argument("out", type=Path, help="PNG file")
    arguments = parser.parse_args()
    print(f"{arguments.out}: {draw(arguments.run, arguments.out)}")


if __name__ == "__main__":
    main()
