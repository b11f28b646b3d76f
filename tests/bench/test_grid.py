"""Which runs, which are done, who does them; and protocol files of your own."""

import json
import multiprocessing
import pickle
import subprocess
import sys
import warnings

import pytest

from fewtags.bench import grid
from fewtags.bench.grid import Choice, Message, all_results, choose_jobs, read_results, result_file, run_grid, work
from fewtags.bench.protocol import Job, read_protocol, trials
from fewtags.errors import ConfigError, DataError, TrainingError

OWN = """
name = "own"
title = "Mine"
source = "a page"
seeds = 2

[sets.coco]
title = "COCO"
get = "a link"
draw = "none"
val_images = 4
train = { labels = "annotations/instances_train2014.json", images = "train2014" }
test = { labels = "annotations/instances_val2014.json", images = "val2014" }

[settings.model]
backbone = "test_resnet"
weights = "none"

[settings.augment]
size = 32

[settings.train]
workers = 0
batch_size = 8
stages = [{ name = "main", epochs = 2, lr = 1e-3 }]

[rows.an]
label = "AN"
objective = { name = "assume_negative" }
grid = { smoothing = [0.0, 0.1], negative_weight = [1.0, 2.0] }

[rows.bce]
label = "BCE"
labels = "complete"
objective = { name = "bce" }

[rows.theirs]
label = "theirs"
source = "another page"

[published.mAP]
bce = 50.0
theirs = 60.0
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return path


@pytest.fixture
def protocol(file):
    return read_protocol(str(file), [])


def test_jobs_are_seed_by_seed(protocol):
    """Four combinations of the grid and one more row, for each of two seeds."""
    jobs = choose_jobs(protocol, Choice())
    assert [job.seed for job in jobs] == [0] * 5 + [1] * 5
    assert [str(job) for job in jobs[:5]] == [
        *(f"coco an smoothing={s} negative_weight={w} seed 0" for s in (0.0, 0.1) for w in (1.0, 2.0)),
        "coco bce seed 0",
    ]
    assert choose_jobs(protocol, Choice(methods=["b*"], seeds="1,3-4")) == [
        Job("coco", "", "bce", "", seed) for seed in (1, 3, 4)
    ]
    assert trials({}) == {"": {}}


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice(methods=["bc"]), "--methods 'bc' fits nothing (did you mean 'bce'?); there are: an, bce."),
        (Choice(methods=["theirs"]), "--methods 'theirs' fits nothing; there are: an, bce."),
        (Choice(sets=["voc"]), "--sets 'voc' fits nothing; there are: coco."),
        (Choice(seeds="a"), "--seeds a: give numbers like 0-9 or 0,3,5."),
        (Choice(seeds="3-1"), "--seeds 3-1: give numbers like 0-9 or 0,3,5."),
    ],
)
def test_choices_that_fit_nothing(protocol, choice, message):
    with pytest.raises(ConfigError) as error:
        choose_jobs(protocol, choice)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("rows.an.objective.smoothin=1", "rows.an: smoothin: Extra inputs are not permitted."),
        ("rows.an.objective.name=anne", "'anne' is not a method"),
        (
            "settings.data.complete=true",
            "[settings] has 'data', but only train, model, augment are settings of all runs",
        ),
        ("sets.coco.val_images=0", "sets.coco needs val_images, the number of test images that validate."),
        ('rows.an.sets=["cocoa"]', "rows.an.sets has 'cocoa' (did you mean 'coco'?)."),
        ('sets.coco.draw="purchase"', 'sets.coco.draw = "purchase" and the section [purchase] need each other.'),
        ("seed=1", "seed: Extra inputs are not permitted"),
    ],
)
def test_wrong_keys(file, assignment, message):
    with pytest.raises(ConfigError) as error:
        read_protocol(str(file), [assignment])
    assert message in str(error.value)


def test_protocols_that_do_not_exist(tmp_path):
    with pytest.raises(ConfigError, match=r"'scl_tabel1' is not a protocol \(did you mean 'scl_table1'\?\)"):
        read_protocol("scl_tabel1", [])
    with pytest.raises(ConfigError, match=r"mine\.toml does not exist"):
        read_protocol(str(tmp_path / "mine.toml"), [])


# ------------------------------------------------------------------------------------------ runs


@pytest.fixture
def trained(monkeypatch):
    """The runs that are done, instead of training them; what is set in `fail` fails."""
    done, fail = [], {}

    def run(protocol, job, data, folder, *, cpu, on_event):
        if job in fail:
            raise fail[job]
        done.append(job)
        return {
            "protocol": protocol.name,
            "set": job.set_name,
            **{k: getattr(job, k) for k in ("known", "row", "trial", "seed")},
            "digest": protocol.digest(job),
            "last": {"val": 50.0, "mAP": 40.0, "epoch": 1},
            "machine": "this",
        }

    monkeypatch.setattr(grid, "run", run)
    return done, fail


def test_finished_runs_are_not_done_again(protocol, root, tmp_path, trained):
    done, fail = trained
    jobs, told = choose_jobs(protocol, Choice(seeds="0")), []
    fail[jobs[1]] = TrainingError("the loss is not finite")
    work(protocol, jobs, root, tmp_path, told.append, cpu=True)
    assert done == [jobs[0], *jobs[2:]]
    assert [(m.what, m.text) for m in told if m.job == jobs[1]] == [("failed", "the loss is not finite")]
    assert not result_file(tmp_path, jobs[1]).exists()
    fail.clear()
    run_grid(protocol, jobs, root, tmp_path, told.append)
    assert done[4:] == [jobs[1]]
    assert set(all_results(tmp_path, protocol)) == set(jobs)
    assert not [*tmp_path.rglob(".lock")]


def test_a_run_of_another_driver_is_left_to_it(protocol, root, tmp_path, trained):
    """The folder of its run is locked; the others are done. The lock of another process is needed to see it."""
    jobs, told = choose_jobs(protocol, Choice(seeds="0")), []
    folder = result_file(tmp_path, jobs[2]).parent
    folder.mkdir(parents=True)
    code = (
        "import sys; from pathlib import Path; from fewtags.engine.run_lock import locked\n"
        f"with locked(Path({str(folder)!r})):\n    print('locked', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"locked\n"
    try:
        work(protocol, jobs, root, tmp_path, told.append, cpu=True)
    finally:
        other.communicate()
    assert trained[0] == [*jobs[:2], *jobs[3:]]
    assert [m.job for m in told if m.what == "busy"] == [jobs[2]]


def test_other_settings_do_not_share_a_folder(file, protocol, root, tmp_path, trained):
    """What decides a run is compared: not its label, nor the published numbers, nor where the photos are."""
    job = Job("coco", "", "bce", "", 0)
    work(protocol, [job], root, tmp_path, lambda _: None, cpu=True)
    for same in ("rows.bce.label=mine", "published.mAP.bce=1.0", "seeds=9", "sets.coco.get=there"):
        assert set(read_results(tmp_path, read_protocol(str(file), [same]), [job])) == {job}
    for other in ("train.batch_size=4", "sets.coco.val_images=5", "rows.bce.objective.name=assume_negative"):
        changed = read_protocol(str(file), [other])
        with pytest.raises(DataError, match=r"coco-bce-seed-0 was made with other settings"):
            read_results(tmp_path, changed, [job])
        assert all_results(tmp_path, changed) == {}


def test_an_interrupted_run_continues(protocol, root, tmp_path):
    """The second of two epochs is interrupted; the same call continues, and gives what an uninterrupted run gives."""
    job = Job("coco", "", "bce", "", 0)

    def stop(message: Message):
        if message.what == "epoch" and message.share == 1.0:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        work(protocol, [job], root, tmp_path / "a", stop, cpu=True)
    assert not result_file(tmp_path / "a", job).exists()
    told = []
    for folder in ("a", "b"):
        work(protocol, [job], root, tmp_path / folder, told.append, cpu=True)
    assert [m.share for m in told if m.what == "epoch"] == [1.0, 0.5, 1.0]
    one, other = (json.loads(result_file(tmp_path / f, job).read_text()) for f in "ab")
    for key in ("last", "best", "train_loss_by_epoch", "val_by_epoch", "labels"):
        assert one.get(key) == other.get(key), key


def test_two_processes_share_the_runs(root, tmp_path, monkeypatch):
    """Forked, and with runs that only count labels: an interpreter needs ten seconds to start.

    What is passed to a process that is started must be picklable.
    """
    told, protocol, context = [], read_protocol("scl_statistics", []), multiprocessing.get_context("fork")
    monkeypatch.setattr(grid.multiprocessing, "get_context", {"spawn": context}.get)
    jobs = choose_jobs(protocol, Choice(sets=["voc12", "coco14", "cub"]))
    assert pickle.loads(pickle.dumps((protocol, jobs, grid._beside))) == (protocol, jobs, grid._beside)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
        run_grid(protocol, jobs, root, tmp_path, told.append, processes=2, cpu=True)
    assert sorted(m.job.set_name for m in told if m.what == "done") == ["coco14", "cub", "voc12"]
    assert set(all_results(tmp_path, protocol)) == set(jobs)
