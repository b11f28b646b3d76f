"""The figures of protocols: numbers by hand, files, and what is measured on validation images."""

import csv
import tomllib

import numpy as np
import pytest
from PIL import Image

from fewtags.bench.data import SetData
from fewtags.bench.details import detail_measures
from fewtags.bench.figures import make_figures, write_figures
from fewtags.bench.grid import all_results, work
from fewtags.bench.protocol import Job, Protocol, read_protocol
from fewtags.errors import ConfigError
from fewtags.labels import Label
from fewtags.metrics.ranking import ranking_report

PART = {"labels": "a.json"}
SET = {"title": "COCO", "get": "there", "train": PART, "test": PART, "val_images": 2}
FIGURES = {
    "momentum": {"title": "Momentum", "kind": "curves", "measure": "val", "axis": "momentum", "scale": "linear"},
    "sizes": {"title": "Sizes", "kind": "groups", "measure": "sizes", "rows": ["scl"], "relative_to": "an"},
    "scores": {"title": "Scores", "kind": "scores", "ranks": [1, 2]},
}
TREE = {
    **{"name": "p", "title": "A title", "source": "the paper", "seeds": 2, "sets": {"coco": SET}, "figures": FIGURES},
    "conditions": {key: {"title": f"mu {key}", "objective": {"smoothing": float(key)}} for key in ("0.8", "0.5")},
    "rows": {
        "an": {"label": "AN", "objective": {"name": "assume_negative"}},
        "scl": {"label": "SCL", "objective": {"name": "assume_negative"}},
    },
    "published": {"val": {"scl": {"0.8": 73.7}}},
}
PROTOCOL = Protocol.model_validate(TREE)


def record(val, sizes, scores):
    measured = {"sizes, 0 to 1 %": sizes[0], "sizes, 1 to 9 %": sizes[1], "scores, 1": scores, "scores, 2": scores}
    return {"best": {"val": val, **measured}, "last": {"val": 0.0}, "machine": "a GPU", "sizes": {}}


RUNS = {
    Job("coco", "0.8", "an", "", 0): record(50.0, (10.0, 40.0), [1, 3]),
    Job("coco", "0.8", "scl", "", 0): record(60.0, (12.0, 44.0), [4, 0]),
    Job("coco", "0.8", "scl", "", 1): record(64.0, (14.0, None), [2, 2]),
    Job("coco", "0.5", "scl", "", 0): record(55.0, (5.0, 20.0), [0, 4]),
}


def points(name):
    return [(p.curve, p.place, p.x, p.mean, p.sd, p.runs) for p in make_figures(PROTOCOL, RUNS)[name]]


def test_curves_are_means_over_seeds_with_the_published_numbers():
    made = make_figures(PROTOCOL, RUNS)["momentum"]
    assert points("momentum") == [
        ("AN", "0.8", 0.8, 50.0, None, 1),
        ("SCL", "0.8", 0.8, 62.0, pytest.approx(8**0.5), 2),
        ("SCL", "0.5", 0.5, 55.0, None, 1),
    ]
    assert [p.published for p in made] == [None, 73.7, None]


def test_gains_over_a_row_belong_to_its_condition():
    """12 and 14 over 10: 20 % and 40 %; 44 over 40: 10 %. AN did not run with the other momentum."""
    assert points("sizes") == [
        ("mu 0.8", "0 to 1 %", 0.0, pytest.approx(30.0), pytest.approx(200**0.5), 2),
        ("mu 0.8", "1 to 9 %", 1.0, pytest.approx(10.0), None, 1),
    ]


def test_scores_are_shares_of_images():
    """Of SCL's second seed 50 % are in each half, of its first one 100 % and 0 %."""
    found = [(curve, place, mean) for curve, place, _, mean, *_ in points("scores")]
    assert found[:4] == [
        ("AN, mu 0.8", "highest probability 0 to 0.5", 25.0),
        ("AN, mu 0.8", "highest probability 0.5 to 1", 75.0),
        ("SCL, mu 0.8", "highest probability 0 to 0.5", 75.0),
        ("SCL, mu 0.8", "highest probability 0.5 to 1", 25.0),
    ]
    assert found[6] == ("AN, mu 0.8", "second probability 0 to 0.5", 25.0)


def test_each_figure_is_two_drawings_and_a_table(tmp_path):
    written = write_figures(tmp_path, PROTOCOL, make_figures(PROTOCOL, RUNS))
    assert [file.name for file in written] == ["momentum.png", "sizes.png", "scores.png"]
    for file in written:
        assert np.asarray(Image.open(file).convert("L")).std() > 5  # not blank
        assert "<svg" in file.with_suffix(".svg").read_text()
    with (tmp_path / "momentum.csv").open() as file:
        rows = [*csv.reader(file)]
    assert rows[0] == ["curve", "place", "mean", "sd", "runs", "published"]
    assert rows[2] == ["SCL", "0.8", "62.0000", "2.8284", "2", "73.7"]


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ('figures.5b.rows=["scl"]', "figures.5b has the row 'scl' (did you mean 'en_scl'?)."),
        ('conditions.high={title="high"}', "needs conditions whose names end in a number, but one ends in 'high'."),
        ("conditions.high={title='1', settings.data.val='x'}", "conditions.high.settings has 'data', but only train"),
    ],
)
def test_wrong_figures(assignment, message):
    with pytest.raises(ConfigError) as error:
        read_protocol("scl_figure5b", [assignment])
    assert message in str(error.value)


def test_conditions_vary_settings_of_the_run_and_of_the_method():
    crops = read_protocol("scl_figureb1", ["train.epochs=2"])
    jobs = [Job("coco14", known, "an", "", 0) for known in ("0.25-0.5", "1-1")]
    assert crops.training(jobs[0]) == {
        **{"train.preset": "paper", "train.epochs": 2, "augment.min_area": 0.25, "augment.max_area": 0.5}
    }
    assert crops.digest(jobs[0]) != crops.digest(jobs[1])
    momenta = read_protocol("scl_figure5b", [])
    assert momenta.method(Job("coco14", "0.4", "en_scl", "scl_weight=1.0", 0)) == {
        **{"name": "expected_negative", "momentum": 0.4, "scl_weight": 1.0, "positives_per_image": 2.9}
    }


# ------------------------------------------------------------------------------------------ what is measured

TINY = [
    *("model.backbone=test_resnet", "model.weights=none", "augment.size=32", "train.workers=0", "train.batch_size=8"),
    'train.stages=[{name="main",epochs=1,lr=1e-3}]',
]


def test_details_of_given_scores(root):
    """Four validation photos; the objects of one or two classes have boxes of 20 x 30 of 60 x 40 pixels: a quarter."""
    data = SetData(read_protocol("scl_figured1", []), "coco14", root)
    logits = np.random.default_rng(0).normal(size=(4, 80)).astype(np.float32)
    found = detail_measures(("labels", "sizes", "scores"), logits, data)
    labels = data.val.matrix.dense()
    counts = (labels == Label.POSITIVE).sum(1)
    for k in (1, 2):
        assert found[f"labels count, {k}"] == (counts == k).sum() > 0
        group = ranking_report(logits[counts == k].astype(float), labels[counts == k]).mean_average_precision
        assert found[f"labels, {k}"] == (None if np.isnan(group) else pytest.approx(100 * group, abs=1e-3))
    assert found["labels, 1"] is not None or found["labels, 2"] is not None
    assert found["labels count, 3"] == 0
    assert found["labels, 3"] is None
    sized = {key: value for key, value in found.items() if key.startswith("sizes count, ")}
    assert sum(sized.values()) == counts.sum()
    assert all(key.endswith(": 25 to 25 %") for key in sized)
    assert max(found[key.replace(" count", "")] or 0.0 for key in sized) > 0
    top = 1 / (1 + np.exp(-np.sort(logits.astype(float), 1)[:, -1]))
    assert found["scores, 1"] == np.histogram(top, np.linspace(0, 1, 26))[0].tolist()


def test_a_figure_from_the_published_layout(root, tmp_path):
    """The crops of the condition are those of the run, and its validation mAP is the point of the figure."""
    protocol = read_protocol("scl_figureb1", [*TINY, 'details=["labels"]'])
    job, failed = Job("coco14", "0.25-0.5", "an", "", 0), []
    work(protocol, [job], root, tmp_path, lambda m: failed.append(m) if m.what == "failed" else None, cpu=True)
    assert failed == []
    found = all_results(tmp_path, protocol)
    (point,) = make_figures(protocol, found)["b1"]
    assert (point.curve, point.place, point.mean) == ("AN", "0.25 to 0.5", found[job]["best"]["val"])
    assert found[job]["best"]["labels count, 1"] > 0
    resolved = tomllib.loads((tmp_path / "runs" / job.folder / "run" / "resolved.toml").read_text())
    assert (resolved["min_area"], resolved["max_area"]) == (0.25, 0.5)
