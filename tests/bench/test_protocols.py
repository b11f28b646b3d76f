"""Every shipped protocol runs from its published layout of files to the table, on stand-ins with a tiny net."""

import json
import re
from pathlib import Path

import bench_sets
import numpy as np
import pytest
import safetensors.torch
import timm

from fewtags.bench.data import SetData, refuse_missing_files
from fewtags.bench.figures import make_figures
from fewtags.bench.grid import Choice, all_results, choose_jobs, work
from fewtags.bench.protocol import Job, read_protocol, shipped
from fewtags.bench.run import check_settings
from fewtags.bench.tables import make_tables, markdown
from fewtags.engine.model import load_model
from fewtags.errors import DataError
from fewtags.labels import Label
from fewtags.nets.pool import Pool
from fewtags.nets.spatial import HeadPlan

DOCS = Path(__file__).parents[2] / "docs"
TINY = [
    *("model.backbone=test_resnet", "model.weights=none", "augment.size=32", "train.workers=0", "train.batch_size=8"),
    'train.stages=[{name="main",epochs=1,lr=1e-3}]',
]


@pytest.fixture
def start(root, tmp_path):
    """Runs part of a protocol; returns its results by "set known row trial" and the first table, as rows of cells."""

    def start(name, *assignments, **choice):
        protocol, failed = read_protocol(name, [*TINY, *assignments]), []
        told = lambda message: failed.append(message) if message.what == "failed" else None  # noqa: E731
        work(protocol, choose_jobs(protocol, Choice(**choice)), root, tmp_path, told, cpu=True)
        assert failed == []
        found = all_results(tmp_path, protocol)
        table = make_tables(protocol, found)[0]
        results = {" ".join(filter(None, (j.set_name, j.known, j.row, j.trial))): r for j, r in found.items()}
        return results, [dict(zip(table.head, row, strict=True)) | {"cells": row} for row in table.rows]

    return start


def row(rows, label):
    (found,) = [r["cells"] for r in rows if r["cells"][0] == label]
    return found


# ------------------------------------------------------------------------------------------ each protocol


def test_every_protocol_has_its_command_in_the_docs():
    """And the docs name no protocol that does not exist."""
    pages = [(DOCS / name).read_text("utf-8") for name in ("paper_protocols.md", "figures.md")]
    commands = set(re.findall(r"fewtags bench ([a-z0-9_]+)", "".join(pages)))
    assert commands == set(shipped())


@pytest.mark.parametrize("name", shipped())
def test_protocol_files(name):
    """Each run has a folder of its own, and settings that exist; each row has a published number or a run."""
    protocol = read_protocol(name, [])
    check_settings(protocol)
    jobs = choose_jobs(protocol, Choice())
    assert protocol.name == name
    assert len({job.folder for job in jobs}) == len(jobs)
    columns = {protocol.column(*column) for column in protocol.columns()}
    for metric, by_row in protocol.published.items():
        for key, values in by_row.items():
            if protocol.measure == "statistics":
                assert key in protocol.sets
            else:
                assert key in protocol.rows, metric
                assert columns >= set(values) if isinstance(values, dict) else len(columns) == 1
    named = {key for by_row in protocol.published.values() for key in by_row}
    without_runs = {key for key, row in protocol.rows.items() if not row.runs}
    unpublished = {"pc_patch"} if name == "patchml_table3" else set()  # the paper only says that 0 is best
    every = without_runs if protocol.figures else set(protocol.rows) - unpublished  # pictures have no numbers to read
    assert protocol.measure == "statistics" or every <= named <= set(protocol.rows)


def test_table_1(start, root, tmp_path):
    """20 VOC photos: 16 train, 4 validate; 10 are tested. The paper's number is beside ours.

    One positive of each image is known with AN, everything with BCE.
    """
    results, rows = start("scl_table1", sets=["voc12"], methods=["bce", "an_ls"])
    assert set(results) == {"voc12 bce", "voc12 an_ls smoothing=0.1", "voc12 an_ls smoothing=0.2"}
    assert results["voc12 bce"]["labels"]["negative"] + results["voc12 bce"]["labels"]["positive"] == 16 * 3
    assert results["voc12 an_ls smoothing=0.1"]["labels"] == {"positive": 16, "negative": 0}
    assert {tuple(r["sizes"].values()) for r in results.values()} == {(16, 4, 10)}
    best = max((r["best"] for k, r in results.items() if "an_ls" in k), key=lambda r: r["val"])
    assert row(rows, "fully annotated (BCE)")[1:3] == [f"{results['voc12 bce']['best']['mAP']:.1f}", "90.0"]
    assert [r["cells"][1:3] for r in rows if r["cells"][2] == "87.6"] == [[f"{best['mAP']:.1f}", "87.6"]]
    text = markdown(make_tables(*_again(tmp_path)))
    assert "OTHER DATA than published: VOC12, images of train 16 (published 4,574), val 4" in text
    assert "smoothing=0.2" in text


def _again(out):
    protocol = read_protocol("scl_table1", TINY)
    return protocol, all_results(out, protocol)


@pytest.mark.parametrize(("name", "images", "classes"), [("nus", (12, 3, 8), 81), ("cub", (13, 3, 8), 312)])
def test_other_sets_of_table_1(root, name, images, classes):
    """15 photos of NUS, a fifth of them without a label: 12 known ones and 3 that validate. CUB: 16 and 8."""
    protocol = read_protocol("scl_table1", TINY)
    data = SetData(protocol, name, root)
    observed = data.observed(Job(name, "", "an", "", 0)).labels
    complete = data.observed(Job(name, "", "bce", "", 0)).labels
    assert (len(observed), len(data.val), len(data.test)) == images
    assert len(observed.classes) == classes
    assert not complete.matrix.counts(Label.UNKNOWN).any()
    known, truth = observed.matrix.dense() == Label.POSITIVE, complete.matrix.dense() == Label.POSITIVE
    assert (known <= truth).all()
    assert known.sum(1).tolist() == truth.any(1).tolist()


def test_methods_get_the_k_of_their_data(root):
    protocol = read_protocol("scl_table1", [])
    for set_name, k in (("voc12", 1.5), ("coco14", 2.9), ("nus", 1.9), ("cub", 31.5)):
        assert protocol.method(Job(set_name, "", "en_scl", "scl_weight=1.0", 0)) == {
            **{"name": "expected_negative", "positives_per_image": k, "scl_weight": 1.0},
        }
        assert "positives_per_image" not in protocol.method(Job(set_name, "", "an", "", 0))
    shares = [protocol.method(Job(s, "", "ll_r", "", 0))["share"] for s in ("voc12", "coco14")]
    assert shares == [0.002, 0.004]


def test_table_1_from_scratch_and_table_2(start):
    """Table 2 shows the mAP on validation; ImageNet weights are not asked for without pretraining."""
    _, rows = start("scl_table2", "rows.ep_cl.grid.cl_weight=[1.0]", methods=["ep_cl"])
    cells = row(rows, "expected positives and neg. + CL")
    assert cells[2] == "65.8"
    assert cells[1]
    protocol = read_protocol("scl_table1_scratch", [])
    assert protocol.settings == {"train": {"preset": "paper_scratch"}}
    assert {job.set_name for job in choose_jobs(protocol, Choice())} == {"voc12", "coco14"}


def test_table_3(start, root, tmp_path):
    """11 of 12 photos have a label in real.json: 6 have one and 5 two. All 12 have a folder.

    The untouched net is one whose classifier says class 1 for every photo, so that its top-1 is the share of class 1.
    """
    net = timm.create_model("test_resnet").state_dict()
    net["fc.weight"], net["fc.bias"] = net["fc.weight"] * 0, net["fc.bias"] * 0
    net["fc.bias"][1] = 1.0
    safetensors.torch.save_file(net, tmp_path / "net.safetensors")
    weights, val = f"model.weights={tmp_path / 'net.safetensors'}", "sets.imagenet.val_images=4"
    results, rows = start("scl_table3", weights, val, methods=["untouched", "en_scl_1"])
    real = json.loads((root / "real.json").read_text())
    first = [path.parent.name for path in sorted((root / "val").rglob("*.JPEG"), key=lambda path: path.name)]
    untouched = results["imagenet untouched"]["last"]
    assert untouched["top-1 ReaL"] == pytest.approx(100 * np.mean([1 in own for own in real if own]), abs=1e-3)
    assert untouched["top-1 IN-val"] == pytest.approx(100 * first.count(bench_sets.WORDNET[1]) / 12, abs=1e-3)
    counts = [untouched[f"images, k {k}"] for k in ("= all", "= 1", "= 2", "= 3", ">= 4")]
    assert counts == [11, sum(len(own) == 1 for own in real), sum(len(own) == 2 for own in real), 0, 0]
    assert results["imagenet en_scl_1"]["labels"]["negative"] == 0
    cells = row(rows, "ResNet-50")
    assert cells[1::2][:2] == [f"{untouched['top-1 IN-val']:.1f}", f"{untouched['top-1 ReaL']:.1f}"]
    assert cells[2::2] == ["76.1", "83.0", "66.3", "70.6", "53.0", "36.1", "22.5"]


def test_table_b1(start):
    """The lists name classes by number; the test photos name them by COCO's categories: they are the same classes."""
    results, rows = start(
        "scl_tableb1", "sets.coco14.val_images=4", methods=["bce", "splc", "pseudo"], known=["full", "75"]
    )
    assert set(results) == {"coco14 full bce", "coco14 75 splc", "coco14 75 pseudo"}
    assert {r["best"]["scored"] for r in results.values()} == {3}
    assert results["coco14 full bce"]["labels"]["negative"] > 0 == results["coco14 75 splc"]["labels"]["negative"]
    assert row(rows, "BCE (fully annotated)")[2] == "80.2"
    assert [r["75 % labels"] for r in rows if r["method"].startswith("Focal margin")] != [""]


def test_statistics(start):
    """Counted by hand from the stand-in: 20 VOC photos of 1 or 2 objects, of which two are difficult: absent."""
    results, rows = start("scl_statistics", sets=["voc12", "imagenet"])
    counts = results["voc12"]
    assert [counts[f"images, {part}"] for part in ("train", "val", "test")] == [16, 4, 10]
    assert counts["labels, train"] + counts["labels, val"] == 20 * 3 // 2 - 2
    of_class = counts["by class"].values()
    assert sum(c["labels, train"] for c in of_class) == counts["labels, train"]
    assert sum(c["drawn, train"] for c in of_class) == 16
    assert results["imagenet"]["images, test"] == 11
    cells = {tuple(r["cells"][:2]): r["cells"][2:] for r in rows}
    assert cells["VOC12", "images, train"] == ["16", "4,574", "DIFFERENT"]
    assert cells["ImageNet-1K", "classes"] == ["1,000", "1,000", "equal"]


@pytest.mark.parametrize(
    ("name", "choice", "measure"),
    [
        ("scl_table1_scratch", {"sets": ["voc12"], "methods": ["an"]}, "mAP"),
        ("scl_table2", {"methods": ["epr_scl"]}, "mAP"),
        ("scl_figure5a", {"methods": ["an"]}, "scores, 1"),
        ("scl_figure5cd", {"known": ["2"], "methods": ["en_scl"]}, "labels, 1"),
        ("scl_figured1", {"methods": ["an", "en_cl"]}, "val"),
        ("scl_figuree1", {"known": ["CL 1"], "methods": ["l2_norm"]}, "val"),
    ],
)
def test_the_other_protocols_of_scl(start, tmp_path, name, choice, measure):
    """What a figure shows is measured, and drawn from the runs."""
    searched = {"en_scl": "scl_weight", "en_cl": "cl_weight", "epr_scl": "scl_weight"}
    grid = [f"rows.{r}.grid.{searched[r]}=[1.0]" for r in choice["methods"] if r in searched]
    results, rows = start(name, *grid, **choice)
    assert len(results) == len(choice["methods"])
    assert all(measure in record["best"] for record in results.values())
    assert rows or name.startswith("scl_figure")
    protocol = read_protocol(name, [*TINY, *grid])
    figures = make_figures(protocol, all_results(tmp_path, protocol))
    assert all(figures.values())
    assert bool(figures) == name.startswith("scl_figure")


VIT = ("model.backbone=test_vit", "augment.size=64")


def test_patchml_on_coco(start):
    """20 x 80 seconds; half of them buy 800 tags, and of points (84.9 s for 80) 800 / 1.06125 = 753.8."""
    half = ('purchase.budgets=["50%"]', "sets.coco14.val_images=4", 'published.mAP.ignore={"SP 50%"=43.19}')
    results, rows = start("patchml_coco", *VIT, *half, methods=["ignore"], known=["I *", "SP *"], seeds="0")
    tags, points = results["coco14 I 50% ignore"], results["coco14 SP 50% ignore"]
    assert [sum(r["labels"].values()) for r in (tags, points)] == [800, 754]
    assert (tags["bought"]["points"], tags["bought"]["patches on the object"]) == (0, None)
    assert points["bought"]["points"] == points["labels"]["positive"] > 0
    assert [r["bought"]["seconds per pair"] for r in (tags, points)] == [1.0, 1.0613]
    for record in (tags, points):
        assert record["last"]["mAP-loc"] <= record["last"]["mAP-cl_same_cells"]
    assert [r["cells"][:2] for r in rows] == [["I 50%", "ignore"], ["SP 50%", "ignore"]]
    assert rows[1]["cells"][2:4] == [f"{points['last']['mAP']:.1f}", "43.2"]


def test_patchml_table_3(start):
    """CSL-I searches one setting, and validation chooses."""
    own = ('purchase.budgets=["50%"]', "sets.coco14.val_images=4", "published.mAP={}", "purchase.located_images=0")
    few = "rows.csl_i.grid.image_top_k=[5, 20]"
    results, rows = start("patchml_table3", *VIT, *own, few, methods=["csl_i"], known=["I *"], seeds="0")
    assert {*results} == {f"coco14 I 50% csl_i image_top_k={k}" for k in (5, 20)}
    best = max(results.values(), key=lambda r: r["best"]["val"])
    assert row(rows, "CSL-I")[1] == f"{best['last']['mAP']:.1f}"


def test_patchml_table_4(start, tmp_path):
    """Plain DeiT has an mAP and no heatmaps; what --set gives replaces the settings of rows."""
    half = ('purchase.budgets=["50%"]', "sets.coco14.val_images=4", 'published.mAP={plain_deit={"I 50%"=35.08}}')
    results, rows = start("patchml_coco_384", *VIT, *half, methods=["plain_deit", "tscam_224"])
    assert set(results) == {"coco14 I 50% plain_deit", "coco14 I 50% tscam_224", "coco14 SP 50% tscam_224"}
    plain, tscam = (results[f"coco14 I 50% {row}"] for row in ("plain_deit", "tscam_224"))
    assert plain["labels"] == tscam["labels"]
    assert "mAP-loc" not in plain["last"]
    assert "mAP-loc" in tscam["last"]
    assert row(rows, "DeiT (224)")[1:4] == [f"{plain['last']['mAP']:.1f}", "35.1", ""]
    _, info = load_model(tmp_path / "runs" / "coco14-I-50-plain_deit-seed-0" / "run")
    assert (info.backbone, info.size, info.head) == ("test_vit", 64, HeadPlan(pool=Pool("class_token")))


def test_patchml_table_4_as_published():
    protocol = read_protocol("patchml_coco_384", ["train.epochs=2"])
    plain, small, large = (
        protocol.training(Job("coco14", "I 1%", row, "", 0)) for row in ("plain_deit", "tscam_224", "ignore")
    )
    assert [(own["model.backbone"], own["augment.size"]) for own in (plain, small, large)] == [
        *(("deit_base_patch16_224", 224), ("deit_base_patch16_224", 224), ("deit_base_patch16_384", 384)),
    ]
    assert (plain["model.pool"], plain["model.head_kernel"], small["model.head_kernel"]) == ("class_token", 1, 3)
    assert {own["train.epochs"] for own in (plain, small, large)} == {2}


def test_patchml_on_objects365(start, root):
    """No masks: points are normal around the centres of boxes, (.27, .5) and (.77, .5) here."""
    own = ("purchase.cost=null", 'purchase.budgets=["60%"]', "sets.objects365.val_images=4")
    results, _ = start("patchml_objects365", *VIT, *own, known=["SP *"])
    assert results["objects365 SP 60% ignore"]["bought"]["patches on the object"] is None
    protocol = read_protocol("patchml_objects365", [*TINY, *own])
    bought = SetData(protocol, "objects365", root).observed(Job("objects365", "SP 60%", "ignore", "", 0)).labels
    x = bought.locations.boxes[:, 0]
    assert np.minimum(abs(x - 16 / 60), abs(x - 46 / 60)).max() < 0.1


def test_only_methods_that_use_them_get_photos_without_labels(root):
    """2 % of 20 x 80 pairs are 32, so that some of the 20 photos have none."""
    protocol = read_protocol("patchml_coco", ["sets.coco14.val_images=4"])
    data = SetData(protocol, "coco14", root)
    few, every = (data.observed(Job("coco14", "I 2%", row, "", 0)) for row in ("ignore", "pc"))
    touched = every.labels.matrix.image_counts(Label.UNKNOWN) < 80
    assert len(every.labels) == len(every.truth) == 20
    assert len(few.labels) == touched.sum() < 20
    assert few.truth is None


def test_points_lie_in_masks_and_another_seed_has_others(root):
    """Masks are the lower left halves of the boxes: below the line from corner to corner."""
    data = SetData(read_protocol("patchml_coco", ["sets.coco14.val_images=4"]), "coco14", root)
    boxes, points, others = (
        data.complete_train(Job("coco14", f"{kind} 1%", "ignore", "", seed)).locations
        for kind, seed in (("SB", 0), ("SP", 0), ("SP", 1))
    )
    across, down = ((points.boxes[:, :2] - boxes.boxes[:, :2]) / (boxes.boxes[:, 2:] - boxes.boxes[:, :2])).T
    assert (across <= down + 1 / 20).all()  # a pixel counts by its centre
    assert not np.isin(points.boxes[:, 0], others.boxes[:, 0]).any()


def test_validation_and_test_images_are_apart(root):
    data = SetData(read_protocol("patchml_coco", ["sets.coco14.val_images=4"]), "coco14", root)
    val, test = ({*table.images.to_pylist()} for table in (data.val, data.test))
    assert (len(val), len(test), len(val | test)) == (4, 8, 12)


# ------------------------------------------------------------------------------------------ files


def test_all_missing_files_are_named_at_once(tmp_path):
    protocol = read_protocol("scl_tableb1", [])
    bench_sets.coco(tmp_path, 2, 2)
    with pytest.raises(DataError) as error:
        refuse_missing_files(protocol, ["coco14"], tmp_path)
    lists = ", ".join(f"lists/coco_train_{name}.txt" for name in ("full", "0.75left", "0.4left", "singlelabel"))
    start = f"{tmp_path} lacks files of scl_tableb1:\n  MS-COCO: {lists}. Get them: train2014, val2014 and"
    assert str(error.value).startswith(start)
    with pytest.raises(DataError, match=r"nowhere is not a folder:\n  MS-COCO: lists/"):
        refuse_missing_files(protocol, ["coco14"], tmp_path / "nowhere")


def test_photos_of_imagenet_need_their_folders(root, tmp_path):
    """val/ with photos side by side says nothing about single labels."""
    bench_sets.imagenet(tmp_path)
    for path in [*(tmp_path / "val").rglob("*.JPEG")]:
        path.rename(tmp_path / "val" / path.name)
    data = SetData(read_protocol("scl_table3", ["sets.imagenet.val_images=4"]), "imagenet", tmp_path)
    with pytest.raises(
        DataError, match=r"val: 'ILSVRC2012_val_00000001.JPEG' is not in the folder of a class, such as"
    ):
        _ = data.single
