"""Figures."""

import base64
import io
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fewtags.report.figures import curves, jpeg, plain, png, score_distributions
from fewtags.report.load import RunData


def picture(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))


def test_curves_draw_what_was_logged(make_run: Callable[..., RunData]) -> None:
    figure = curves([make_run()])
    drawn = {axes.get_title(): axes for axes in figure.axes}
    assert list(drawn) == ["training loss", "validation", "positives per image"]
    line = drawn["validation"].lines[0]
    assert line.get_xydata().tolist() == [[1, 0.4], [2, 0.5]]
    labels = [t.get_text() for t in drawn["positives per image"].get_legend().get_texts()]
    assert labels[-1] == "expected (K = 2.00)"
    assert drawn["positives per image"].get_ylim()[1] > 2.0


def test_curves_of_two_runs_name_them(make_run: Callable[..., RunData]) -> None:
    figure = curves([make_run("an"), make_run("en")])
    labels = [t.get_text() for t in figure.axes[0].get_legend().get_texts()]
    assert labels == ["an: loss", "en: loss"]


def test_stages_are_parted_by_a_line(make_run: Callable[..., RunData]) -> None:
    run = make_run()
    history = [{**run.history[0], "stage": "warmup"}, run.history[1]]
    axes = curves([replace(run, history=history)]).axes[0]
    assert [line.get_xdata()[0] for line in axes.lines if len(set(line.get_xdata())) == 1] == [1.5]


def test_names_are_shown_as_they_are(make_run: Callable[..., RunData]) -> None:
    """No mathematics from dollars, no hiding by an underscore, no warning about letters the font lacks."""
    assert plain("a$b$") == r"a\$b\$"
    assert plain("_a") == " _a"
    runs = [make_run("$x_"), make_run("_猫")]
    assert picture(png(curves(runs))).format == "PNG"


def test_scores_are_ranked_per_image(make_run: Callable[..., RunData]) -> None:
    """Three classes give three histograms; every image is counted once in each."""
    run = make_run(images=12)
    figure = score_distributions([run], "val")
    assert [axes.get_title() for axes in figure.axes] == ["highest probability", "2nd probability", "3rd probability"]
    prob = np.sort(1 / (1 + np.exp(-run.logits["val"].astype(np.float64))), axis=1)
    for axes, column in zip(figure.axes, prob.T[::-1], strict=True):
        outline = axes.patches[-1].get_path().vertices
        tallest = outline[np.argmax(outline[:, 1]), 0]
        counts, edges = np.histogram(column, np.linspace(0, 1, 26))
        best = edges[:-1][counts == counts.max()]
        assert min(abs(best - tallest).min(), abs(best + 0.04 - tallest).min()) < 1e-9


@pytest.mark.parametrize("shape", [(1, 1), (3, 200)])
def test_jpeg_is_a_data_uri(shape: tuple[int, int]) -> None:
    uri = jpeg(np.zeros((*shape, 3), np.uint8))
    assert uri.startswith("data:image/jpeg;base64,")
    assert picture(uri).size == shape[::-1]
