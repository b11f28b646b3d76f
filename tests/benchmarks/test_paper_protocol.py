"""The papers' protocols: their files, and that they run from the published layout to the printed table."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewtags.errors import ConfigError, DataError
from fewtags.labels import ClassNames, Label
from fewtags.metrics.locate import Region
from fewtags.table.table import LabelTable

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROTOCOLS = BENCHMARKS / "protocols"

# Benchmarks are scripts that import each other from their folder.
sys.path.insert(0, str(BENCHMARKS))
files, data, script = (importlib.import_module(name) for name in ("paper_files", "paper_data", "paper_protocol"))
sys.path.remove(str(BENCHMARKS))

Job = files.PaperJob
SIZE = (60, 40)
COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255))
CATEGORIES = [{"id": i + 1 + i // 7, "name": f"class {i:02}"} for i in range(80)]  # 80 ids with gaps, as COCO's
TINY = (
    *("run.model.backbone=test_vit", "run.model.weights=none", "run.augment.size=64", "run.train.workers=0"),
    *('run.train.stages=[{name="main", epochs=1, lr=1e-3}]', "run.train.batch_size=8", "val_images=4"),
)


# ------------------------------------------------------------------------------------------ stand-ins


def photo(path, boxes):
    pixels = np.zeros((SIZE[1], SIZE[0], 3), np.uint8)
    for c, (x, y, w, h) in boxes:
        pixels[y : y + h, x : x + w] = COLOURS[c]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=90)


def part(root, names, file, *, seed, masks):
    """A COCO JSON and its photos: one or two coloured rectangles each. Of masks, the polygon is the lower left half."""
    rng = np.random.default_rng(seed)
    images, annotations = [], []
    for i, (stored, name) in enumerate(names):
        boxes = [(c, (6 + 30 * n, 5, 20, 30)) for n, c in enumerate(rng.permutation(3)[: 1 + i % 2].tolist())]
        photo(root / stored, boxes)
        images.append({"id": 9 + 3 * i, "file_name": name, "width": SIZE[0], "height": SIZE[1]})
        for c, (x, y, w, h) in boxes:
            record = {"id": len(annotations) + 1, "image_id": 9 + 3 * i, "category_id": CATEGORIES[c]["id"]}
            record |= {"bbox": [x, y, w, h], "iscrowd": 0}
            if masks:
                record["segmentation"] = [[x, y, x + w, y + h, x, y + h]]
            annotations.append(record)
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(json.dumps({"images": images, "annotations": annotations, "categories": CATEGORIES}))


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    """annotations/instances_train2014.json, train2014/COCO_train2014_000000000009.jpg, and val2014 likewise."""
    root = tmp_path_factory.mktemp("coco")
    for seed, (split, count) in enumerate((("train2014", 24), ("val2014", 12))):
        names = [f"COCO_{split}_{9 + 3 * i:012}.jpg" for i in range(count)]
        stored = [(f"{split}/{name}", name) for name in names]
        part(root, stored, f"annotations/instances_{split}.json", seed=seed, masks=True)
    return root


@pytest.fixture(scope="module")
def objects365(tmp_path_factory):
    """annotations/zhiyuan_objv2_train.json with names images/v1/patch0/objects365_v1_00000000.jpg, v2 likewise."""
    root = tmp_path_factory.mktemp("objects365")
    for seed, (split, count) in enumerate((("train", 24), ("val", 12))):
        names = [f"images/v{1 + i % 2}/patch{i % 3}/objects365_v{1 + i % 2}_{seed}{i:07}.jpg" for i in range(count)]
        part(root, [*zip(names, names, strict=True)], f"annotations/zhiyuan_objv2_{split}.json", seed=seed, masks=False)
    return root


def start(protocol, root, out, *more, only):
    assignments = [word for pair in (*TINY, *more) for word in ("--set", pair)]
    where = [str(PROTOCOLS / protocol), "--data", str(root), "--out", str(out)]
    script.main([*where, "--cpu", "--seeds", "0", "--only", only, *assignments])


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# ------------------------------------------------------------------------------------------ the whole protocol


def test_mscoco_from_its_files_to_the_table(coco, tmp_path, capsys):
    """24 x 80 seconds; half of them buy 960 tags, and of points (84.9 s for 80) 960 / 1.06125 = 904.6.

    Tags and points, one epoch; then the same call trains nothing, and prints the same.
    """
    out, half = tmp_path / "results" / "mscoco.jsonl", 'budgets=["50%"]'
    paper = ('paper={ignore={I={"50%"=39.37},SP={"50%"=43.19}}}', 'paper_located={ignore={SP={"50%"=28.54}}}')
    start("mscoco.toml", coco, out, half, *paper, only="50%:I:ignore,50%:SP:ignore")
    tags, points = lines(out)
    assert [(r["annotation"], r["method"], r["seed"], r["epochs"]) for r in (tags, points)] == [
        *(("I", "ignore", 0, 1), ("SP", "ignore", 0, 1)),
    ]
    bought = [r["bought"] for r in (tags, points)]
    assert [b["positives"] + b["negatives"] for b in bought] == [960, 905]
    assert (bought[0]["points"], bought[0]["boxes"], bought[0]["on_object"]) == (0, 0, None)
    assert bought[1]["points"] == bought[1]["positives"] > 0
    assert (tags["images"], tags["classes"], tags["scored"]) == (24, 80, 3)
    assert [r["seconds_per_pair"] for r in (tags, points)] == [1.0, 1.0613]
    for record in (tags, points):
        assert 0 <= record["last"]["mAP"] <= 100
        assert record["localisation"]["mAP-loc"] <= record["localisation"]["mAP-cl_same_cells"]
        assert record["localisation"]["pairs"] > 0
    printed = capsys.readouterr().out
    assert "## mscoco" in printed
    assert "`python benchmarks/paper_protocol.py benchmarks/protocols/mscoco.toml`, on " in printed
    table = printed[printed.index("### Beside the paper") :].splitlines()
    assert table[2] == (
        "| budget | type | method | mAP-cl, last | mAP-cl, best | the paper's | mAP-loc | the paper's |"
    )
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in table[4:6]]
    assert [row[:3] for row in cells] == [["50%", "I", "ignore"], ["50%", "SP", "ignore"]]
    assert [(row[5], row[7]) for row in cells] == [("39.4", ""), ("43.2", "28.5")]
    assert [row[3] for row in cells] == [f"{r['last']['mAP']:.1f}" for r in (tags, points)]
    runs = tmp_path / "results" / "runs" / "mscoco"
    assert sorted(folder.name for folder in runs.iterdir()) == ["50-I-ignore-seed-0", "50-SP-ignore-seed-0"]
    assert not [*runs.glob("*/checkpoints")]
    start("mscoco.toml", coco, out, half, *paper, only="50%:I:ignore,50%:SP:ignore")
    assert lines(out) == [tags, points]
    assert capsys.readouterr().out == printed


def test_objects365_from_its_files_to_the_table(objects365, tmp_path, capsys):
    """No masks: points are normal around the centres of boxes, (.27, .5) and (.77, .5) here.

    Heatmaps are measured with boxes, and nothing is said of patches on objects.
    """
    out = tmp_path / "objects365.jsonl"
    own = ("cost=null", 'budgets=["60%"]')
    start("objects365.toml", objects365, out, *own, only=":SP")
    (record,) = lines(out)
    assert record["bought"]["points"] == record["bought"]["positives"] > 0
    assert record["bought"]["on_object"] is None
    assert record["paper"] == {"mAP-cl": None, "mAP-loc": None}
    assert record["localisation"]["pairs"] > 0
    assert "## objects365" in capsys.readouterr().out
    protocol = files.read_paper(PROTOCOLS / "objects365.toml", [*own, *TINY])
    source = data.PaperData(protocol, objects365)
    truth = source.train("SP", 0)
    bought = script.buy(protocol, Job("60%", "SP", "ignore", 0), truth, script.find_cost(None, truth))
    x = bought.locations.boxes[:, 0]
    assert np.minimum(abs(x - 16 / 60), abs(x - 46 / 60)).max() < 0.1


def test_heatmaps_need_not_be_measured(coco, tmp_path, capsys):
    """Cells about places stay empty then."""
    out = tmp_path / "out.jsonl"
    start("mscoco.toml", coco, out, 'budgets=["30%"]', "located_images=0", only="30%:I:ignore")
    (record,) = lines(out)
    assert record["localisation"] is None
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| 30% | I | ignore |"))
    assert [cell.strip() for cell in row.split("|")[-4:]] == ["", "", "", ""]


# ------------------------------------------------------------------------------------------ parts


def test_validation_and_test_images_are_apart(coco):
    protocol = files.read_paper(PROTOCOLS / "mscoco.toml", [*TINY, "located_images=5"])
    source = data.PaperData(protocol, coco)
    val, test = ({*table.images.to_pylist()} for table in (source.val, source.test))
    assert (len(val), len(test), len(val | test)) == (4, 8, 12)
    assert len(source.located) == len(source.places) == 5
    with pytest.raises(ConfigError) as error:
        _ = data.PaperData(files.read_paper(PROTOCOLS / "mscoco.toml", ["val_images=12"]), coco).val
    assert str(error.value) == "val_images is 12, but the test part has 12 images; choose at least 1, and fewer."


def test_only_methods_that_use_them_get_photos_without_labels(coco):
    """2 % of 24 x 80 pairs are 38, spread over the photos: 24 (23/24)^38 = 4.8 of these have none on average."""
    protocol = files.read_paper(PROTOCOLS / "mscoco.toml", [*TINY])
    truth = data.PaperData(protocol, coco).train("I", 0)
    bought = {
        m: script.buy(protocol, Job("2%", "I", m, 0), truth, script.find_cost("coco", truth)) for m in ("ignore", "pc")
    }
    touched = bought["pc"].matrix.image_counts(Label.UNKNOWN) < 80
    assert len(bought["pc"]) == 24
    assert len(bought["ignore"]) == touched.sum() < 24
    assert bought["ignore"].images.to_pylist() == bought["pc"].subset(touched).images.to_pylist()


def test_points_lie_in_masks_and_another_snapshot_has_others(coco):
    """Masks are the lower left halves of the boxes, from (x, 5) to (x + 20, 35): below the line from corner to corner.

    In the box itself half of the points would be above it.
    """
    source = data.PaperData(files.read_paper(PROTOCOLS / "mscoco.toml", [*TINY]), coco)
    boxes, points, others = (source.train(kind, seed).locations for kind, seed in (("SB", 0), ("SP", 0), ("SP", 1)))
    across, down = ((points.boxes[:, :2] - boxes.boxes[:, :2]) / (boxes.boxes[:, 2:] - boxes.boxes[:, :2])).T
    slack = 1 / 20  # a pixel counts by its centre
    assert (across <= down + slack).all()
    assert not np.isin(points.boxes[:, 0], others.boxes[:, 0]).any()
    assert source.train("AP", 0) is source.train("SP", 0)


def test_places_of_the_test_part_are_masks(coco):
    """Half of a 20 x 30 box in 60 x 40 pixels is an eighth of the photo."""
    source = data.PaperData(files.read_paper(PROTOCOLS / "mscoco.toml", [*TINY]), coco)
    labels = source.test.subset(source.located).matrix.dense()
    for row, own in zip(labels, source.places, strict=True):
        assert sorted(own) == np.flatnonzero(row == Label.POSITIVE).tolist()
        for place in own.values():
            assert place.mask.shape == data.RESOLUTION
            assert place.mask.mean() == pytest.approx(1 / 8, abs=0.005)


def test_masks_of_a_class_are_joined_and_crowds_count(tmp_path):
    """4 x 4 pixels: column 0 as a crowd's run lengths, column 3 a polygon; a mask without a pixel becomes its box."""
    records = [
        {"image_id": 5, "category_id": 7, "iscrowd": 1, "segmentation": {"size": [4, 4], "counts": [0, 4, 12]}},
        {"image_id": 5, "category_id": 7, "segmentation": [[3, 0, 4, 0, 4, 4, 3, 4]], "bbox": [3, 0, 1, 4]},
        {"image_id": 5, "category_id": 8, "segmentation": [], "bbox": [1.2, 0, 0.5, 2]},
        {"image_id": 6, "category_id": 7, "segmentation": [], "bbox": [0, 0, 4, 4]},
    ]
    images = [{"id": i, "file_name": f"{i}.jpg", "height": 4, "width": 4} for i in (5, 6)]
    categories = [{"id": 7, "name": "cat"}, {"id": 8, "name": "dog"}]
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"images": images, "annotations": records, "categories": categories}))
    nothing = np.zeros(0, np.int64)
    table = LabelTable.build(["x/5.jpg"], ClassNames.of(["dog", "cat"]), image=nothing, class_=nothing, state=nothing)
    (own,) = data.masked_places(file, table)
    blown_up = {c: place.mask.reshape(4, 56, 4, 56).mean((1, 3)).tolist() for c, place in own.items()}
    assert blown_up == {1: [[1, 0, 0, 1]] * 4, 0: [[0, 1, 0, 0]] * 2 + [[0] * 4] * 2}


def test_patches_on_the_object_by_hand():
    """Of 2 x 2 patches a box over the left half labels two, a mask over the upper half fills one of them: 1 of 2.

    The point (.9, .1) of another class, whose mask is everything, labels one patch, which is right: 2 of 3.
    """
    masks = np.zeros((2, 4, 4), np.bool_)
    masks[0, :2], masks[1] = True, True
    places = [{c: Region.from_mask(mask) for c, mask in enumerate(masks)}]
    boxes = np.array([[0, 0, 0.5, 1], [0.9, 0.1, 0.9, 0.1]])
    table = LabelTable.build(
        ["a"], ClassNames.of("ab"), image=np.zeros(2, int), class_=np.arange(2), state=np.ones(2, int), locations=boxes
    )
    assert data.share_on_object(table, places, (2, 2)) == 2 / 3
    assert data.share_on_object(table, [{}], (2, 2)) is None


# ------------------------------------------------------------------------------------------ protocol files


@pytest.mark.parametrize(
    ("name", "runs"), [("mscoco", 5 * (5 + 2 + 1 + 2 + 2)), ("mscoco_384", 10), ("objects365", 10)]
)
def test_protocol_files(name, runs):
    """Every budget on every type of every method, once; each has its number in the paper."""
    protocol = files.read_paper(PROTOCOLS / f"{name}.toml", [])
    jobs = files.choose_runs(protocol, None, "0")
    assert protocol.name == name
    assert len(jobs) == len(set(jobs)) == runs
    assert len({protocol.protocol(job) for job in jobs}) == runs
    assert all(protocol.published(job)["mAP-cl"] is not None for job in jobs)
    assert len(files.choose_runs(protocol, None, None)) == protocol.seeds * runs


def test_chosen_runs_and_those_that_are_none():
    protocol = files.read_paper(PROTOCOLS / "mscoco.toml", [])
    assert files.choose_runs(protocol, "1%:SP:pc,2%:I:ignore", "1") == [
        Job("1%", "SP", "pc", 1),
        Job("2%", "I", "ignore", 1),
    ]
    assert {job.annotation for job in files.choose_runs(protocol, "::csl_p", "0")} == {"SP"}
    assert Job("0.25%", "SP", "pc", 1).folder == "0.25-SP-pc-seed-1"
    with pytest.raises(ConfigError) as error:
        files.choose_runs(protocol, "3%", None)
    assert str(error.value) == "--only 3%: '3%' is not in mscoco."
    with pytest.raises(ConfigError) as error:
        files.choose_runs(protocol, "mscoco:1%:SP:pc", None)
    assert str(error.value) == (
        "--only mscoco:1%:SP:pc: write BUDGET:TYPE:METHOD; parts may be empty, or left out at the end."
    )


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("objective.patch_wait=1", "(?s)mscoco.toml: .*patch_wait"),
        ("points=middle", "(?s)mscoco.toml: .*points"),
        ('types=["BS"]', "annotation type 'BS' is not known"),
        ("run.objective.name=patchml", r"\[run\] holds 'objective', which the protocol itself decides; take it out\."),
    ],
)
def test_settings_errors(assignment, message):
    with pytest.raises(ConfigError, match=message):
        files.read_paper(PROTOCOLS / "mscoco.toml", [assignment])


def test_other_settings_do_not_share_a_file(tmp_path):
    """The digest holds whatever decides a run, and neither where the data lie nor what else is run."""
    path, job = tmp_path / "mscoco.jsonl", Job("1%", "SP", "ignore", 0)
    protocol = files.read_paper(PROTOCOLS / "mscoco.toml", [])
    record = {"benchmark": "mscoco", "budget": "1%", "annotation": "SP", "method": "ignore", "seed": 0}
    path.write_text(json.dumps(record | {"protocol": protocol.protocol(job)}) + "\n")
    for same in ("train.images=train", 'budgets=["1%"]', "methods.ignore.label=mine", "seeds=9"):
        assert files.read_finished(path, files.read_paper(PROTOCOLS / "mscoco.toml", [same])) == {job}
    for other in ("name=mine", "points=uniform", "run.augment.size=384", "methods.ignore.unlabelled=true"):
        with pytest.raises(DataError) as error:
            files.read_finished(path, files.read_paper(PROTOCOLS / "mscoco.toml", [other]))
        assert str(error.value) == f"{path} line 1 ({job}) was made with other settings; use another --out."
