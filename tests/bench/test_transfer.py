"""The protocols of MLS on stand-ins in the published layout: one encoder is pretrained, and all tasks use it."""

import bench_sets
import numpy as np
import pytest
from annotated import write_text
from PIL import Image

from fewtags.bench.data import refuse_missing_files
from fewtags.bench.grid import Choice, all_results, choose_jobs, work
from fewtags.bench.protocol import Job, read_protocol
from fewtags.bench.run import check_settings
from fewtags.bench.tables import make_tables
from fewtags.errors import ConfigError, DataError

ENCODER = (
    *("model.backbone=test_resnet", "augment.size=32", "train.workers=0", "train.batch_size=4", "train.epochs=1"),
    'train.preset="small"',
)
DETECT = "{iterations=1, batch_size=2, min_sizes=[64], max_size=64, heads='v1', anchor=16, rois=4, proposals=4}"
SEGMENT = "{iterations=1, batch_size=2, crop=[32, 32], head='fcn'}"
FINETUNE = "{epochs=1, batch_size=4, size=32}"


def devkit(root):
    """VOC2007 with trainval and test, VOC2012 with trainval."""
    for year, split in (("2007", "trainval"), ("2007", "test"), ("2012", "trainval")):
        base = root / f"VOCdevkit/VOC{year}"
        for n in range(2):
            bench_sets.photo(base / f"JPEGImages/{split}{n}.jpg", [(n, (6, 5, 20, 30))])
            write_text(
                base / f"Annotations/{split}{n}.xml",
                "<annotation><size><width>60</width><height>40</height></size><object><name>bird</name><difficult>0"
                "</difficult><bndbox><xmin>6</xmin><ymin>5</ymin><xmax>26</xmax><ymax>35</ymax></bndbox></object>"
                "</annotation>",
            )
        write_text(base / f"ImageSets/Main/{split}.txt", f"{split}0\n{split}1\n")


def cityscapes(root):
    """Two training photos and one to validate, half road (7) and half building (11)."""
    for split, count in (("train", 2), ("val", 1)):
        for n in range(count):
            place = root / "cityscapes/leftImg8bit" / split / "ulm" / f"ulm_{n}_leftImg8bit.png"
            bench_sets.photo(place, [(n, (6, 5, 20, 30))])
            mask = np.full((40, 60), 7, np.uint8)
            mask[:, 30:] = 11
            file = root / "cityscapes/gtFine" / split / "ulm" / f"ulm_{n}_gtFine_labelIds.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(mask).save(file)


def indoor(root):
    """Four training and four test photos of two rooms."""
    lists = {"TrainImages": [], "TestImages": []}
    for n in range(8):
        name = f"{('bar', 'cave')[n % 2]}/{n}.jpg"
        bench_sets.photo(root / "indoor67/Images" / name, [(n % 2, (6, 5, 40, 30))])
        lists["TrainImages" if n < 4 else "TestImages"].append(f"{name}\n")
    for name, lines in lists.items():
        write_text(root / f"indoor67/{name}.txt", "".join(lines))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    root = tmp_path_factory.mktemp("scenes")
    for seed, (part, count) in enumerate((("train2017", 8), ("val2017", 3))):
        names = [f"{9 + 3 * i:012}.jpg" for i in range(count)]
        bench_sets.coco_part(root, [(f"{part}/{n}", n) for n in names], f"annotations/instances_{part}.json", seed=seed)
    devkit(root)
    cityscapes(root)
    indoor(root)
    return root


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.mark.parametrize(
    ("name", "set_name", "settings", "measures", "sizes", "published"),
    [
        ("mls_table1", "coco", DETECT, ("box AP50", "mask AP"), (8, 3), "58.1"),
        ("mls_table3", "cityscapes", SEGMENT, ("mIoU",), (2, 1), "85.4"),
        ("mls_table4", "voc", DETECT[:-1] + ", masks=false}", ("box AP",), (4, 2), "80.0"),
        ("mls_table5", "indoor67", FINETUNE, ("top-1 accuracy",), (4, 4), "64.1"),
    ],
)
def test_each_table_from_its_published_layout(scenes, out, name, set_name, settings, measures, sizes, published):
    """MoCo is pretrained once, by the first table; the numbers stand beside the published ones."""
    own = [f"tasks.{set_name}.settings={settings}"]
    own += ["conditions.800.settings.train.epochs=1"] if name == "mls_table1" else []
    own += ["tasks.indoor67.any_size=true"] if set_name == "indoor67" else []
    protocol, failed = read_protocol(name, [*ENCODER, *own]), []
    check_settings(protocol)
    jobs = choose_jobs(protocol, Choice(methods=["moco"], sets=[set_name], seeds="0"))
    work(protocol, jobs, scenes, out, lambda m: failed.append(m.text) if m.what == "failed" else None, cpu=True)
    assert failed == []
    ((job, record),) = all_results(out, protocol).items()
    assert (job.set_name, job.row) == (set_name, "moco")
    assert tuple(record["sizes"].values()) == sizes
    for measure in measures:
        assert 0 <= record["last"][measure] <= 100
    assert len([*(out / "encoders").iterdir()]) == 1
    table = make_tables(protocol, {job: record})[0]
    assert published in {cell for row in table.rows for cell in row}
    assert [note for note in table.notes if note.startswith("OTHER DATA")] or set_name == "indoor67"


@pytest.mark.parametrize(("name", "known", "row"), [("mls_table678", "", "knn"), ("mls_figure5", "D 1024", "mls")])
def test_parts_of_mls(scenes, tmp_path, name, known, row):
    protocol, failed = read_protocol(name, [*ENCODER, f"tasks.coco.settings={DETECT}"]), []
    (job,) = choose_jobs(protocol, Choice(methods=[row], known=[known] if known else None, seeds="0"))
    work(protocol, [job], scenes, tmp_path, lambda m: failed.append(m.text) if m.what == "failed" else None, cpu=True)
    assert failed == []
    assert all_results(tmp_path, protocol)[job]["last"]["box AP"] >= 0


def test_rows_with_given_weights_need_no_pretraining(scenes, tmp_path):
    protocol = read_protocol("mls_table4", [*ENCODER, f"tasks.voc.settings={DETECT[:-1]}, masks=false}}"])
    job = Job("voc", "", "random", "", 0)
    failed = []
    work(protocol, [job], scenes, tmp_path, lambda m: failed.append(m.text) if m.what == "failed" else None, cpu=True)
    assert failed == []
    assert all_results(tmp_path, protocol)[job]["last"]["box AP"] >= 0
    assert not (tmp_path / "encoders").exists()


def test_an_encoder_belongs_to_its_settings_and_not_to_a_task():
    five, four = read_protocol("mls_table5", []), read_protocol("mls_table4", [])
    jobs = [Job(name, "", "mls", "", 0) for name in ("dtd", "pets")]
    assert len({five.encoder_digest(job) for job in jobs}) == 1
    assert five.encoder_digest(jobs[0]) == four.encoder_digest(Job("voc", "", "mls", "", 0))
    assert five.encoder_digest(jobs[0]) != five.encoder_digest(Job("dtd", "", "moco", "", 0))
    assert five.digest(jobs[0]) != five.digest(jobs[1])
    one = read_protocol("mls_table1", [])
    assert one.training(Job("coco", "400", "mls", "", 0))["train.epochs"] == 400


@pytest.mark.parametrize(
    ("name", "assignment", "message"),
    [
        ("mls_table4", "tasks.voc.settings={steps=1}", "tasks.voc.settings: there is no setting 'steps'; there are:"),
        ("mls_table4", "rows.mls.objective.name=bce", "rows.mls: bce does not pretrain; there are: moco,"),
        ("mls_table4", 'rows.mls={label="x", weights="none", objective={name="moco"}}', "either objective or weights"),
        ("mls_table4", "measure=mAP", 'measure = "transfer" and [tasks] need each other.'),
        ("scl_table2", "rows.an.weights=none", "rows.an.weights is for protocols with [tasks]."),
        ("mls_table5", "train.epocs=2", "train.epocs"),
    ],
)
def test_wrong_settings(name, assignment, message):
    with pytest.raises(ConfigError) as error:
        check_settings(read_protocol(name, [assignment]))
    assert message in str(error.value)


def test_missing_folders_are_named_at_once(tmp_path):
    with pytest.raises(DataError) as error:
        refuse_missing_files(read_protocol("mls_table3", []), ["cityscapes"], tmp_path)
    assert "Cityscapes: cityscapes. Get them: leftImg8bit and gtFine" in str(error.value)
    assert "photos to pretrain on: train2017. Get them: train2017 of https" in str(error.value)
