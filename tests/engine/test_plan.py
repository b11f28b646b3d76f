"""From settings to a plan: what it says, memory, and refusals before anything is trained."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from fewtags.config.sections import ObjectiveConfig
from fewtags.engine import planning
from fewtags.engine.plan import derive
from fewtags.engine.planning import make_plan
from fewtags.engine.tables import Tables
from fewtags.engine.train_record import method_record
from fewtags.errors import ConfigError, DataError
from fewtags.labels import Label
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.table.table import LabelTable

# --- the plan


def test_a_plan_says_what_will_be_done(tables, make_config):
    plan = make_plan(make_config(), tables=tables, cpu=True)
    assert plan.grid == (2, 2)
    assert plan.heatmap_bytes == 24 * (10 * 4 * 4 + 4)
    # Eleven complete validation images are too few for K; the guess is 1.5 x 1.
    assert plan.objective.positives_per_image == 1.5
    lines = [*plan.lines()]
    for line in (
        "method: expected_negative (cl_weight 0.1, scl_weight 0.3)",
        "net: test_resnet, weights none, 64 px, maps 2 x 2; preset views, seed 0",
        "stage warmup: 1 epochs, lr 0.01 cosine, batch 8, trains the head",
        "heatmaps: 0.0 MB in memory (4 x 4 per image and class)",
    ):
        assert line in lines
    assert any(line.startswith("positives per image: 1.50, a guess") for line in lines)


def with_places(table, image=(0,), places=((0.5, 0.5, 0.5, 0.5),), state=1):
    """A table with facts of its class 0 in some places, and nothing else."""
    count = len(image)
    return LabelTable.build(
        table.images.to_pylist(), table.classes, image=np.array(image), class_=np.zeros(count, int),
        state=np.full(count, state), locations=np.array(places), root=table.root,
    )  # fmt: skip


def test_a_method_that_nobody_named_uses_points_and_boxes_where_there_are_any(tables, make_config):
    unnamed = make_config().model_copy(update={"objective": ObjectiveConfig()})
    train = with_places(tables.train, (0, 0, 1), ((0.5, 0.5, 0.5, 0.5), (0.1, 0.1, 0.1, 0.1), (0.0, 0.0, 0.5, 0.5)))
    plan = derive(unnamed, replace(tables, train=train), None, cpu=True)
    assert (plan.method.name, plan.config, plan.objective.patch_weight) == ("expected_negative", unnamed, 1)
    assert plan.objective.patch_weights == (4, 1, 1), "maps are 2 x 2"
    lines = [*plan.lines()]
    assert "method: expected_negative" in lines
    assert "a located patch weighs 4, as all of a map (objective.patch_weights)" in lines
    tags = derive(unnamed, tables, None, cpu=True)
    assert (tags.method.name, tags.objective.patch_weight) == ("expected_negative", 0)
    assert not any("patch" in line for line in tags.lines())


def test_complete_tags_with_places_have_a_focus_on_negatives_where_the_head_is_solved(scenes, tables, make_config):
    """It is said and recorded; a run in steps, and one with one unknown label in fifty, keep the paper's loss."""
    truth = scenes.train_truth
    image, class_ = np.indices(truth.matrix.shape).reshape(2, -1)
    corners = np.full((image.size, 4), np.nan)
    corners[truth.matrix.dense().ravel() == Label.POSITIVE] = [0.2, 0.2, 0.6, 0.6]

    def planned(known, **changes):
        labels = LabelTable.build(
            truth.images, truth.classes, image=image[known], class_=class_[known],
            state=truth.matrix.dense().ravel()[known], locations=corners[known], root=truth.root,
        )  # fmt: skip
        solved = {"train__preset": "cpu", "train__stages": None, "train__cached_views": None, "train__batch_size": None}
        return derive(
            make_config({"name": "expected_negative"}, **(solved | changes)),
            replace(tables, train=labels), None, cpu=True,
        )  # fmt: skip

    plan = planned(slice(None))
    assert plan.objective.negative_gamma == method_record(plan)["negative_gamma"] == 1
    assert any(line.endswith("(objective.negative_gamma)") for line in plan.lines())
    assert planned(slice(1, None)).objective.negative_gamma == 1  # one unknown label, such as a difficult object
    for other in (planned(slice(image.size // 50 + 1, None)), planned(slice(None), train__preset="views")):
        assert other.objective.negative_gamma == 0
        assert not any("negative_gamma" in line for line in other.lines())


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ({"name": "asl"}, "asl does not use locations; objective='expected_negative' does"),
        ({"name": "expected_negative", "patch_weight": 0.0}, "objective.patch_weight is 0"),
    ],
)
def test_a_method_that_does_not_look_at_places_says_so(tables, make_config, objective, words):
    plan = derive(make_config(objective), replace(tables, train=with_places(tables.train)), None, cpu=True)
    (note,) = (note for note in plan.notes if "count as tags only" in note)
    assert note.startswith("1 point and 0 boxes count as tags only")
    assert note.endswith(words)
    assert not any("tags only" in note for note in derive(make_config(objective), tables, None, cpu=True).notes)


def test_a_method_that_was_named_with_its_unknown_classes_needs_no_words(tables, make_config):
    own = {"name": "patchml", "image_unknown": "selective", "patch_weights": (2.0, 1.0, 1.0)}
    config = make_config(objective=own)
    plan = derive(config, replace(tables, train=with_places(tables.train)), None, cpu=True)
    assert (plan.objective.image_unknown, plan.objective.patch_weights) == ("selective", (2, 1, 1))
    assert plan.notes == ()


def test_a_stage_that_cannot_begin_is_refused_before_the_first_is_trained(tables, make_config):
    stage = {"name": "main", "epochs": 1, "lr": 0.01, "trainable": 99}
    with pytest.raises(ConfigError, match="99"):
        make_plan(make_config(train__stages=[stage], train__cached_views=0), tables=tables, cpu=True)
    plan = make_plan(make_config(), tables=tables, cpu=True)
    assert all(parameter.requires_grad for parameter in plan.net.parameters())


def test_views_that_do_not_fit_the_cache_are_said(tables, make_config):
    """24 images x 8 views x 2 x 2 cells x d channels do not fit into so many bytes in float32."""
    roomy = make_plan(make_config(train__cached_views=8), tables=tables, cpu=True)
    assert not any(line.startswith("cached views") for line in roomy.notes)
    half = 24 * 8 * 4 * roomy.net.head.features_dim * 2 / 2**30
    tight = make_plan(make_config(train__cached_views=8, train__cache_gib=half), tables=tables, cpu=True)
    assert f"cached views: 8 of 8 per image, in float16, since train.cache_gib allows {half:g} GiB" in tight.notes


def test_what_the_user_says_about_k_is_taken(tables, make_config):
    plan = make_plan(make_config(objective__positives_per_image=2.9), tables=tables, cpu=True)
    assert plan.objective.positives_per_image == 2.9
    assert not any("positives per image" in note for note in plan.notes)
    prior = derive(make_config(objective__class_prior=[0.2] * 10), tables, None, cpu=True)
    assert not any("positives per image" in note for note in prior.notes)


def test_a_preset_gives_settings_of_its_method(tables, make_config):
    """K and the number of heatmaps of ImageNet in the paper; the user's own settings replace them."""
    changes = {"train__preset": "paper_imagenet", "train__stages": None, "train__cached_views": None}
    plan = make_plan(make_config(**changes), tables=tables, cpu=True)
    assert (plan.objective.positives_per_image, plan.objective.heatmap_top_k) == (1.2, 10)
    assert "positives_per_image 1.2" in next(line for line in plan.lines() if line.startswith("method:"))
    assert not any("positives per image" in note for note in plan.notes)
    own = make_plan(make_config(**changes, objective__positives_per_image=2.0), tables=tables, cpu=True)
    assert (own.objective.positives_per_image, own.objective.heatmap_top_k) == (2.0, 10)


@pytest.mark.parametrize("minutes", [None, 1e-5])
def test_a_head_that_is_trained_in_steps_without_being_asked_for_says_why(tables, make_config, minutes):
    """Also where the time is too short for anything but the head."""
    open_ = {"train__stages": None, "train__cached_views": None, "train__batch_size": None}
    changes = {**open_, "train__preset": None, "train__minutes": minutes, "augment__flip": True}
    plan = make_plan(make_config(**changes), tables=tables, cpu=True)
    assert plan.resolved.preset == "views"
    assert plan.notes[minutes is not None] == "preset views was taken, since augment.flip needs training in steps"
    asked = make_plan(
        make_config(**{**changes, "train__preset": "views", "train__minutes": None}), tables=tables, cpu=True
    )
    assert not any(note.startswith("preset views") for note in asked.notes)


def test_photos_in_a_step_of_several_processes_are_shown(tables, make_config, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    changes = {
        "train__preset": "paper_scratch",
        "train__stages": None,
        "train__cached_views": None,
        "train__batch_size": None,
    }
    plan = derive(make_config(**changes), tables, None, cpu=True)
    assert plan.resolved.batch_size == 2
    assert "stage main: 100 epochs, lr 0.0001 cosine, batch 8 (4 processes x 2), trains all layers" in [*plan.lines()]
    said = "note: BatchNorm takes its statistics from the 2 photos of each process, not from the whole step"
    assert said in plan.notes
    fixed = derive(make_config(**changes, train__batchnorm_eval=True), tables, None, cpu=True)
    assert said not in fixed.notes


def test_resuming_keeps_what_was_resolved(tables, make_config):
    """On another machine the presets would say something else."""
    config = make_config()
    first = derive(config, tables, None, cpu=True)
    other = first.resolved.model_copy(update={"batch_size": 3, "preset": "paper"})
    assert derive(config, tables, None, cpu=True, resolved=other).resolved == other


def test_the_same_seed_gives_the_same_net(tables, make_config):
    nets = [derive(make_config(train__seed=seed), tables, None, cpu=True).net for seed in (0, 0, 1)]
    assert nets[0].origin.fingerprint == nets[1].origin.fingerprint != nets[2].origin.fingerprint


def test_labels_without_photos_are_refused(tables, make_config):
    with pytest.raises(DataError) as error:
        make_plan(make_config(), tables=Tables(tables.train, tables.val.with_root(None)), cpu=True)
    assert str(error.value) == (
        "the val labels do not say where the photos are; give their folder: val_images='FOLDER'."
    )


def test_nothing_to_learn_is_refused(tables, make_config):
    empty = LabelTable.build(
        tables.train.images.to_pylist(), tables.train.classes, image=[0], class_=[0], state=[-1], root=tables.train.root
    )
    with pytest.raises(ConfigError) as error:
        derive(make_config(), Tables(empty, tables.val), None, cpu=True)
    assert str(error.value) == (
        "no training image has a positive label, so there is nothing to learn; look at `fewtags check`."
    )


def test_the_best_epoch_needs_something_to_rank_before_training(tables, make_config):
    single = tables.train.subset(np.arange(8))
    with pytest.raises(ConfigError) as error:
        derive(make_config(train__select="best"), Tables(tables.train, single), None, cpu=True)
    assert str(error.value) == (
        'train.select = "best" needs a class with known positives and known negatives in the validation images, and '
        'there is none; use "auto" or "last".'
    )


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ({"positives_per_image": 20.0}, "positives_per_image is 20.0, but there are 10 classes."),
        ({"class_prior": [0.5]}, "class_prior has 1 shares, but there are 10 classes."),
        ({"name": "bce"}, "objective 'bce' needs known negatives, and no training image has one"),
        ({"scl_weight": -1.0}, "objective.scl_weight = -1.0: must be at least 0"),
    ],
)  # fmt: skip
def test_what_the_method_refuses_is_refused_by_the_plan(tables, make_config, objective, message):
    with pytest.raises(ConfigError) as error:
        make_plan(make_config(objective={"name": "expected_negative"} | objective), tables=tables, cpu=True)
    assert message in str(error.value)


def test_top_k_below_the_annotated_positives_is_refused_by_the_plan(scenes, make_config):
    """The complete labels have images with two positives and more."""
    tables = Tables(scenes.train_truth, scenes.val)
    with pytest.raises(ConfigError, match=r"heatmap_top_k=1 is less than the \d annotated positives of training image"):
        make_plan(make_config(objective__heatmap_top_k=1), tables=tables, cpu=True)


def test_the_rehearsal_of_a_method_allocates_nothing(tables, make_config, monkeypatch):
    """Stores are made on a device without memory, and nothing is mapped to the disk."""
    seen = []
    setup = ExpectedNegative.setup

    def watched(self, net, problem):
        parts = setup(self, net, problem)
        seen.extend(tensor.device.type for part in parts.values() for tensor in part.state_dict().values())
        return parts

    monkeypatch.setattr(ExpectedNegative, "setup", watched)
    plan = make_plan(make_config(objective__heatmap_storage="disk"), tables=tables, cpu=True)
    assert len(seen) >= 4
    assert set(seen) == {"meta"}
    assert plan.objective.heatmap_storage == "disk"


def test_settings_are_refused_before_photos_are_looked_at(tables, make_config, monkeypatch):
    monkeypatch.setattr(planning, "check", lambda *_, **__: pytest.fail("looked at photos"))
    with pytest.raises(ConfigError, match=r"objective\.momentum = 2\.0: must be in 0\.\.1"):
        make_plan(make_config(objective__momentum=2.0), tables=tables, cpu=True)
    with pytest.raises(ConfigError, match="would do nothing"):
        make_plan(make_config(augment__policy="none", augment__flip=True), tables=tables, cpu=True)


def test_the_disk_of_the_run_folder_is_asked(tables, make_config, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("fewtags.engine.memory.free_disk", lambda path: asked.append(path) or 10**12)
    make_plan(make_config(objective__heatmap_storage="disk"), tables=tables, out=tmp_path / "run", cpu=True)
    assert asked == [tmp_path / "run"]


@pytest.mark.parametrize("decode", [True, False])
def test_photos_are_decoded_unless_headers_are_enough(scenes, make_config, tmp_path, decode):
    """The header of a truncated photo is whole."""
    root = tmp_path / "images"
    shutil.copytree(scenes.train.root, root)
    broken = root / scenes.train.images[3].as_py()
    broken.write_bytes(broken.read_bytes()[:-200])
    tables = Tables(*(t.with_root(root) for t in (scenes.train, scenes.val)))
    plan = make_plan(make_config(data__decode=decode), tables=tables, cpu=True)
    assert plan.report.decoded is decode
    assert len(plan.tables.train) == (23 if decode else 24)


def test_photos_that_cannot_be_read_are_left_out_of_every_table(scenes, make_config, tmp_path):
    root = tmp_path / "images"
    shutil.copytree(scenes.train.root, root)
    broken = scenes.train.images[3].as_py()
    (root / broken).write_bytes((root / broken).read_bytes()[:300])
    (root / scenes.val.images[0].as_py()).unlink()
    tables = Tables(*(t.with_root(root) for t in (scenes.train, scenes.val)), truth=scenes.train_truth.with_root(root))
    plan = make_plan(make_config(), tables=tables, cpu=True)
    assert (len(plan.tables.train), len(plan.tables.val), len(plan.tables.truth)) == (23, 10, 23)
    assert broken not in plan.tables.train.images.to_pylist()
    assert plan.tables.truth.images.to_pylist() == plan.tables.train.images.to_pylist()
    assert "train: 1 image left out, without a readable photo" in plan.tables.train.notes.messages
    assert {row.item for row in plan.report.excluded_rows()} == {broken, scenes.val.images[0].as_py()}


def test_a_split_without_any_readable_photo_is_refused(tables, make_config, tmp_path):
    gone = Tables(tables.train, tables.val.with_root(tmp_path))
    with pytest.raises(DataError, match=r"val: no photo can be read, for example val/00000\.jpg: "):
        make_plan(make_config(), tables=gone, cpu=True)
