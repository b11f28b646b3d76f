"""A tiny trained run and its questions, for the tests of the review."""

from pathlib import Path

from typer.testing import CliRunner

from fewtags.cli.main import app
from fewtags.demo_set import make_scenes
from fewtags.review.review import WORK_FOLDER
from fewtags.review.scoring import improved, make_questions, questions_file, write_questions
from fewtags.table.storage import load, write_csv

TINY = (
    *("--weights", "none", "--preset", "views", "--cpu", "--seed", "1", "--epochs", "2"),
    *("--set", "model.backbone=test_resnet", "--set", "augment.size=64", "--set", "train.cached_views=1"),
    *("--set", "train.workers=0", "--set", "train.baseline=false"),
)


def train_command(folder: Path) -> tuple[str, ...]:
    """`train` on the data in a folder, without --out."""
    photos = folder / "scenes" / "images"
    return ("train", str(folder / "train.csv"), "--images", str(photos), "--val", str(folder / "val.csv"), *TINY)


def make_run(folder: Path) -> Path:
    """Make `train.csv`, `val.csv`, `scenes/` and the run `first` in a folder; its questions are made already."""
    scenes = make_scenes(folder / "scenes", train=24, val=12, test=1, size=64, seed=0)
    write_csv(scenes.train, folder / "train.csv")
    write_csv(scenes.val, folder / "val.csv")
    out = folder / "first"
    result = CliRunner().invoke(app, [*train_command(folder), "--out", str(out)])
    assert result.exit_code == 0, (result.stderr, result.exception)
    table = load(out / "tables" / "train.parquet")
    made = make_questions(out, table, order=None, cpu=True, tell=lambda _: None)
    (out / WORK_FOLDER).mkdir()
    place = questions_file(out / WORK_FOLDER, out, table, None)
    write_questions(place, improved(*made))
    return out
