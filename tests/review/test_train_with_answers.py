"""`train --answers` and `fit(answers=...)`: what training gets, and that later answers do not change a run."""

import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from fewtags import Classifier
from fewtags.cli.main import app
from fewtags.config.parse import load_toml, parse
from fewtags.engine.methods import settings_models
from fewtags.engine.tables import read_tables, with_last_steps
from fewtags.review.store import AnswerStore, CellKey, Given
from fewtags.table.storage import load


def call(*arguments):
    return CliRunner().invoke(app, [str(word) for word in arguments])


@pytest.fixture
def answered(trained, tmp_path):
    """A run with two answers: one on a training photo, one on a validation photo."""
    run = tmp_path / "first"
    run.mkdir()
    folder = str(trained / "scenes" / "images")
    train, val = (load(trained / "first" / "tables" / f"{split}.parquet") for split in ("train", "val"))
    known = train.matrix.dense()[0]
    free = int((known == 0).argmax())
    store = AnswerStore(run / "answers.sqlite")
    first = CellKey(folder, train.images[0].as_py(), train.classes.ids[free])
    store.answer("ann", [Given(first, "no")])
    store.answer("ann", [Given(CellKey(folder, val.images[0].as_py(), "zebra"), "yes")], regions=[(0.1, 0.1, 0.5, 0.5)])
    store.close()
    return run, first


def test_train_says_how_many_answers_count(train_arguments, answered, tmp_path):
    result = call(*train_arguments, "--answers", answered[0], "--out", tmp_path / "second", "--dry-run")
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "answers of first: 1 in train and 1 in val" in result.stderr


def test_answers_of_both_splits_count_and_later_ones_change_nothing(trained, answered):
    run, first = answered
    tree = load_toml(trained / "first" / "run.toml")
    tree["data"]["answers"] = str(run)
    config = with_last_steps(parse(tree, settings_models(), "the test"))
    assert config.data.answers_step == (2,)
    tables = read_tables(config.data, config.train.seed)
    row = tables.train.images.to_pylist().index(first.image)
    assert tables.train.matrix.rows([row])[0, tables.train.classes.index(first.class_)] == -1
    zebra = tables.val.locations.classes == tables.val.classes.index("zebra")
    np.testing.assert_allclose(tables.val.locations.boxes[zebra], [[0.1, 0.1, 0.5, 0.5]], rtol=1e-6)

    store = AnswerStore(run / "answers.sqlite")
    store.undo("ann")
    store.undo("ann")
    store.close()
    again = read_tables(config.data, config.train.seed)
    assert again.train.fingerprint == tables.train.fingerprint
    assert again.val.fingerprint == tables.val.fingerprint
    now = read_tables(
        with_last_steps(config.model_copy(update={"data": config.data.model_copy(update={"answers_step": ()})})).data,
        config.train.seed,
    )
    assert now.train.fingerprint != tables.train.fingerprint


def test_without_answers_the_error_names_the_command(train_arguments, tmp_path):
    (tmp_path / "empty").mkdir()
    result = call(*train_arguments, "--answers", tmp_path / "empty", "--out", tmp_path / "second")
    assert result.exit_code == 1
    assert "empty has no answers (answers.sqlite); give a run whose photos were reviewed" in result.stderr


def test_steps_and_files_must_agree(train_arguments, answered, tmp_path):
    run, _ = answered
    result = call(*train_arguments, "--answers", run, "--set", "data.answers_step=[1,2]", "--out", tmp_path / "second")
    assert result.exit_code == 1
    assert "data.answers_step has 2 steps for 1 file of data.answers" in result.stderr


def test_fit_with_answers(trained, answered, monkeypatch):
    run, first = answered
    seen = {}

    def stop(config, tables, out, **_):
        seen.update(tables.splits())
        raise InterruptedError

    monkeypatch.setattr(sys.modules["fewtags.api"], "fit_tables", stop)
    with pytest.raises(InterruptedError):
        Classifier().fit(
            trained / "train.csv",
            val=trained / "val.csv",
            images=trained / "scenes" / "images",
            answers=run,
            out=run.parent / "third",
        )
    train = seen["train"]
    row = train.images.to_pylist().index(first.image)
    assert train.matrix.rows([row])[0, train.classes.index(first.class_)] == -1
