"""Scores of a teacher in a run: matched to photos and classes, used by methods, kept for a resume."""

import numpy as np
import pytest

from fewtags.engine.events import Ended, StepEnded
from fewtags.engine.planning import make_plan
from fewtags.engine.tables import Tables
from fewtags.engine.teacher import TEACHER_FILE, load_teacher, match_scores, refuse_teacher, teacher_record
from fewtags.engine.train_run import TrainRun, open_run
from fewtags.errors import CheckpointError, ConfigError, DataError
from fewtags.formats.scores import read_scores, scores_of
from fewtags.labels import ClassNames
from fewtags.objectives.table import METHODS
from fewtags.table.table import LabelTable
from fewtags.text import command_line

TAUGHT = ("bce", "assume_negative", "expected_negative", "em", "gr")


@pytest.fixture
def labels(tmp_path):
    """Two training photos and one for validation, in the folder `photos`; traffic_light and cat, one positive each."""

    def table(*keys):
        number = np.arange(len(keys))
        classes = ClassNames.of(["traffic_light", "cat"])
        state = np.ones(len(keys), int)
        return LabelTable.build(
            list(keys), classes, image=number, class_=number % 2, state=state, root=tmp_path / "photos"
        )

    return {"train": table("one/a.jpg", "one/b.jpg"), "val": table("one/c.jpg")}


def matched(labels, tmp_path, text, name="scores.csv"):
    (tmp_path / name).write_text(text)
    return match_scores(read_scores(tmp_path / name), labels)


def test_photos_and_classes_are_matched_as_those_of_label_files(labels, tmp_path, monkeypatch):
    """By key, by a path from the working directory, by the end of a path; a class by its folded name."""
    monkeypatch.chdir(tmp_path)
    found = np.array([[0.25, 0.5], [0.75, np.nan]], np.float16)
    rows = ("{a},0.25,0.5\n", "{b},0.75,\n")
    for a, b in (
        ("one/a.jpg", "one/b.jpg"),
        ("photos/one/a.jpg", "photos/one/b.jpg"),
        ("/old/disk/one/a.jpg", "/old/disk/one/b.jpg"),
        (str(tmp_path / "photos/one/a.jpg"), "one/B.JPG"),
        ("https://host/one/a.jpg?x=1", r"C:\set\one\b.jpg"),
    ):
        text = "image,Traffic Light,cat\n" + "".join(rows).format(a=a, b=b)
        np.testing.assert_array_equal(matched(labels, tmp_path, text).values, found)


def test_every_mismatch_is_reported(labels, tmp_path):
    text = "image,trafficlight,tree\none/a.jpg,.5,.1\none/c.jpg,.5,.1\nelse/z.jpg,.5,.1\n"
    notes = "\n".join(matched(labels, tmp_path, text).notes)
    assert "scores for 1 of 2 training photos and 1 of 2 classes" in notes
    assert "'trafficlight' = 'traffic_light'" in notes
    assert "1 class of it is not a class of the labels: 'tree'" in notes
    assert "warning: 1 class has no score: 'cat'" in notes
    assert "warning: 1 training photo has no score: 'one/b.jpg'" in notes
    assert "1 photo of it to validate or test on: not used" in notes
    assert "1 photo of it is not among the photos of the labels: 'else/z.jpg'" in notes


def test_a_photo_of_validation_is_not_taken_for_one_of_training(labels, tmp_path):
    """one/a.jpg has a score of its own, so that x/one/c.jpg of validation does not become a training photo."""
    found = matched(labels, tmp_path, "image,cat\n/x/one/c.jpg,.25\n/x/one/a.jpg,.5\n")
    assert found.values[:, 1].tolist() == [0.5, pytest.approx(np.nan, nan_ok=True)]


def test_teachers_without_a_match_are_refused(labels, tmp_path):
    with pytest.raises(DataError, match=r"none of its classes \('tree'\)"):
        matched(labels, tmp_path, "image,tree\none/a.jpg,.5\n")
    with pytest.raises(DataError, match=r"none of its photos \('x\.jpg'\)"):
        matched(labels, tmp_path, "image,cat\nx.jpg,.5\n")
    with pytest.raises(DataError, match=r"'one/a\.jpg', '\./one/a\.jpg' are the same"):
        matched(labels, tmp_path, "image,cat\none/a.jpg,.5\n./one/a.jpg,.25\n")


def test_a_teacher_that_contradicts_the_labels_is_a_warning(labels, tmp_path):
    notes = matched(labels, tmp_path, "image,traffic_light,cat\none/a.jpg,.1,.9\none/b.jpg,.9,.1\n").notes
    assert any("annotated positives do not have higher scores" in note for note in notes)
    notes = matched(labels, tmp_path, "image,traffic_light,cat\none/a.jpg,.9,.1\none/b.jpg,.1,.9\n").notes
    assert "teacher: mean score of annotated positives 0.900, of unknown labels 0.100" in notes


def test_methods_that_cannot_use_a_teacher_refuse_it():
    for name in METHODS.keys() - {*TAUGHT}:
        with command_line(), pytest.raises(ConfigError, match=f"--teacher: the method {name} cannot") as error:
            refuse_teacher(name)
        assert ", ".join(TAUGHT) in str(error.value)
    for name in TAUGHT:
        refuse_teacher(name)


# --- runs


def teach(tables):
    """Scores of the training photos of the scenes: .75 for what is present, .125 for what is not."""
    values = np.where(tables.truth.matrix.dense() > 0, 0.75, 0.125)
    return scores_of(values, tables.train)


@pytest.fixture
def taught(scenes):
    return Tables(scenes.train, scenes.val, None, scenes.train_truth)


def start(config, tables, out, scores):
    return TrainRun(make_plan(config, tables=tables, scores=scores, cpu=True), out, cpu=True).start()


def test_the_plan_says_how_the_teacher_is_used(taught, make_config):
    plan = make_plan(make_config({"name": "em"}, data__teacher="x"), tables=taught, scores=teach(taught), cpu=True)
    assert plan.objective.teacher_weight == 0.7
    assert plan.teacher.values.dtype == np.float16
    assert "teacher: 100% of the unknown labels have a score" in plan.notes
    start_only = make_config({"name": "expected_negative", "scores_start": "teacher"}, data__teacher="x")
    assert make_plan(start_only, tables=taught, scores=teach(taught), cpu=True).objective.teacher_weight == 0.0
    without = make_plan(make_config({"name": "em"}), tables=taught, cpu=True)
    assert (without.objective.teacher_weight, without.teacher) == (0.0, None)


def test_settings_that_need_a_teacher_say_so(taught, make_config):
    for settings in ({"name": "em", "teacher_weight": 0.5}, {"name": "expected_negative", "scores_start": "teacher"}):
        with pytest.raises(ConfigError, match="needs the scores of a teacher; give teacher='SCORES'"):
            make_plan(make_config(settings), tables=taught, cpu=True)


@pytest.mark.parametrize("name", ["gr", "expected_negative"])
def test_a_resumed_run_has_the_same_bits_and_needs_no_scores(name, taught, make_config, tmp_path):
    config, scores = make_config({"name": name}, data__teacher="gone.csv"), teach(taught)
    *_, ended = start(config, taught, tmp_path / "whole", scores)
    assert isinstance(ended, Ended)
    for event in start(config, taught, tmp_path / "left", scores):
        if isinstance(event, StepEnded) and event.global_step == 8:  # in the last epoch
            break
    list(open_run(tmp_path / "left", cpu=True).resume())
    whole, left = ((tmp_path / run / "model.safetensors").read_bytes() for run in ("whole", "left"))
    assert left == whole


def test_a_changed_teacher_is_refused(taught, tmp_path):
    teacher = match_scores(teach(taught), taught.splits())
    environment = {"teacher": teacher_record(teacher)}
    np.save(tmp_path / TEACHER_FILE, teacher.values)
    np.testing.assert_array_equal(load_teacher(tmp_path, environment).values, teacher.values)
    assert load_teacher(tmp_path, {}) is None
    np.save(tmp_path / TEACHER_FILE, teacher.values[::-1])
    with pytest.raises(CheckpointError, match="has changed since the run began"):
        load_teacher(tmp_path, environment)
    (tmp_path / TEACHER_FILE).write_bytes(b"no")
    with pytest.raises(CheckpointError, match="is damaged"):
        load_teacher(tmp_path, environment)
