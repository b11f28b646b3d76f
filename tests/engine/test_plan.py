"""From settings to a plan: tables under one vocabulary, K, memory, and refusals before anything is trained."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fewtags.config.sections import DataConfig, ObjectiveConfig
from fewtags.engine import planning
from fewtags.engine.label_counts import can_rank, positives_per_image
from fewtags.engine.plan import derive
from fewtags.engine.planning import make_plan
from fewtags.engine.tables import Tables, hold_out, read_named, read_options, read_tables
from fewtags.engine.train_record import method_record
from fewtags.errors import ConfigError, DataError
from fewtags.formats.options import ReadOptions
from fewtags.labels import ClassNames, Label
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.table.storage import save
from fewtags.table.table import LabelTable
from fewtags.text import command_line

CLASSES = ClassNames.of(["a", "b", "c", "d"])


def from_rows(rows, prefix="x", root=None):
    """A table of dense rows; 1, -1 and 0."""
    dense = np.array(rows, np.int8).reshape(-1, len(CLASSES))
    image, class_ = np.nonzero(dense)
    keys = [f"{prefix}{i}.jpg" for i in range(len(dense))]
    return LabelTable.build(keys, CLASSES, image=image, class_=class_, state=dense[image, class_], root=root)


SINGLE = [[1, 0, 0, 0], [0, 1, 0, 0]]
COMPLETE = [[1, 1, 1, -1], [1, -1, -1, -1]]  # two positives per image on average


# --- positives per image


def test_k_from_complete_validation_images():
    """Ten times a row with three positives and ten with one: 2. Incomplete rows do not count."""
    tables = Tables(from_rows(SINGLE), from_rows(COMPLETE * 10 + SINGLE * 5))
    assert positives_per_image(tables) == (
        2.0,
        "positives per image: 2.00, the mean of 20 completely labelled val images",
    )


def test_k_from_complete_training_images_where_validation_has_too_few():
    train = from_rows(SINGLE * 3 + [[1, -1, -1, -1]] * 20)
    assert positives_per_image(Tables(train, from_rows(COMPLETE * 9))) == (
        1.0,
        "positives per image: 1.00, the mean of 20 completely labelled train images",
    )


def test_k_is_a_guess_where_nothing_is_complete():
    """One of four images has two annotated labels, two have one: (2 + 1 + 1) / 3 x 1.5 = 2."""
    train = from_rows([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, -1], [0, 0, 0, -1]])
    assert positives_per_image(Tables(train, from_rows(SINGLE))) == (
        pytest.approx(2.0),
        "positives per image: 2.00, a guess (1.5 x the 1.33 annotated), since fewer than 20 images are completely "
        "labelled. `fewtags estimate-k` estimates it; or count the classes in twenty photos and set "
        "data.positives_per_image.",
    )


def test_k_says_that_it_is_limited_by_the_number_of_classes():
    """Three of four classes are annotated in each image: 1.5 x 3 is more than the classes there are."""
    mean, why = positives_per_image(Tables(from_rows([[1, 1, 1, 0]] * 5), from_rows([[1, 1, 1, 0]])))
    assert mean == 4
    assert why.startswith(
        "positives per image: 4.00, a guess (1.5 x the 3.00 annotated, but not more than the 4 classes), "
    )


def test_photos_of_val_leave_training_and_are_found_in_the_training_folder(tmp_path):
    for n in range(6):
        path = tmp_path / "photos" / ("Cat" if n % 2 else "Dog") / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (n, 0, 0)).save(path)
    (tmp_path / "val.csv").write_text("image,cat,dog\nCat/1.png,1,0\nDog/2.png,0,1\n")
    tables = read_tables(DataConfig(train=str(tmp_path / "photos"), val=str(tmp_path / "val.csv")), seed=0)
    assert len(tables.train) == 4
    assert len(tables.val) == 2
    assert tables.val.classes.ids == ("Cat", "Dog")
    assert tables.val.matrix.dense().tolist() == [[1, -1], [-1, 1]]
    assert "train: 2 photos are also in val (2), and left out of training; 4 of 6 remain" in tables.train.notes.messages
    (tmp_path / "own.csv").write_text("image,cat,dog\n1.png,1,0\n")
    own = DataConfig(
        train=str(tmp_path / "photos"), val=str(tmp_path / "own.csv"), val_images=str(tmp_path / "photos" / "Cat")
    )
    assert len(read_tables(own, seed=0).train) == 5


def test_k_from_known_positives_and_negatives():
    """a: 20 of 40, b: 10 of 40, c: 30 of 40; d, known in four cells, stands in for its 3 of 63 annotations.

    (1/2 + 1/4 + 3/4) / (60 / 63) = 1.575; the guess would be 1.5 x 63 / 40.
    """
    rows = np.zeros((40, 4), np.int8)
    for class_, positives in enumerate((20, 10, 30)):
        rows[:, class_] = -1
        rows[:positives, class_] = 1
    rows[:4, 3] = (1, 1, 1, -1)
    rows[4:, 3] = 0
    mean, why = positives_per_image(Tables(from_rows(rows), from_rows(SINGLE)))
    assert mean == pytest.approx(1.575)
    assert why.startswith("positives per image: 1.58, the sum over classes of positives / known training cells")


@pytest.mark.parametrize(
    ("known", "images"),
    [
        pytest.param(30, 400, id="fewer than a quarter of the cells"),
        pytest.param(15, 40, id="fewer than twenty cells a class"),
    ],
)
def test_k_is_a_guess_where_too_few_cells_are_known(known, images):
    rows = np.zeros((images, 4), np.int8)
    rows[:known] = [1, -1, -1, 0]
    rows[0] = [1, 1, 1, 0]
    mean, why = positives_per_image(Tables(from_rows(rows), from_rows(SINGLE)))
    assert mean == pytest.approx(1.5 * (known + 2) / known)
    assert "a guess" in why


def test_k_is_a_guess_where_most_annotations_are_of_classes_without_negatives():
    rows = np.zeros((40, 4), np.int8)
    rows[:, 0] = -1
    rows[:2, 0] = 1
    rows[:, 1] = 1
    assert positives_per_image(Tables(from_rows(rows), from_rows(SINGLE)))[0] == pytest.approx(1.5 * 42 / 40)


def test_a_guess_is_never_more_than_there_are_classes():
    rows = [[1, 1, 1, 0]] * 3
    assert positives_per_image(Tables(from_rows(rows), from_rows(SINGLE)))[0] == 4.0
    one = LabelTable.build(["x"], ClassNames.of(["a"]), image=[0], class_=[0], state=[1])
    assert positives_per_image(Tables(one, one))[0] == 1.0


def test_complete_images_without_a_positive_tell_nothing():
    """Twenty empty photos have a mean of 0, which is no number of positives: the guess is taken."""
    assert positives_per_image(Tables(from_rows(SINGLE), from_rows([[-1] * 4] * 20)))[0] == 1.5


def test_what_can_be_ranked():
    assert can_rank(from_rows(COMPLETE)) is True
    assert can_rank(from_rows(SINGLE)) is False
    # Positives of one class and negatives of another.
    assert can_rank(from_rows([[1, -1, 0, 0]])) is False
    assert can_rank(from_rows([[-1] * 4])) is False


# --- tables


def test_reading_options_come_from_the_configuration():
    said = {
        "complete": True, "uncertain": "ones", "blank": "negative", "difficult": "positive",
        "none_folder": ("nothing",), "absent_prefix": "!",
        "crowd": "unknown", "image_column": "file", "columns": ("a", "b"), "delimiter": ";", "tags_separator": "|",
        "positive_words": ("oui",), "negative_words": ("non",), "unknown_words": ("peut-être",),
        "points": "pixels", "places": "points", "point_seed": 7, "rename": ("a=b",), "names": "n.csv",
    }  # fmt: skip
    assert vars(read_options(DataConfig(train="x.csv", **said))) == said
    assert read_options(DataConfig(train="x.csv")) == ReadOptions()


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_validation_is_held_out_where_none_is_given(scenes):
    data = DataConfig(
        train=str(scenes.folder / "train_single.csv"), images=str(scenes.folder / "images"), val_share=0.25
    )
    tables = read_tables(data, seed=0)
    assert (len(tables.train), len(tables.val), tables.test, tables.truth) == (18, 6, None, None)
    assert not set(tables.train.images.to_pylist()) & set(tables.val.images.to_pylist())
    # With the library for it, also photos that look alike stay together.
    start = "val: 6 of 24 images held out (seed 0), equal photos "
    assert any(message.startswith(start) for message in tables.train.notes.messages)
    again = read_tables(data, seed=0)
    assert (again.train.fingerprint, again.val.fingerprint) == (tables.train.fingerprint, tables.val.fingerprint)
    assert read_tables(data, seed=1).val.fingerprint != tables.val.fingerprint


def test_equal_photos_stay_on_one_side(scenes, tmp_path):
    """Every photo three times, under other names."""
    rows = ["image,tag"]
    for n, key in enumerate(scenes.train.images.to_pylist()[:12]):
        for copy in range(3):
            name = f"{copy}-{n}.jpg"
            (tmp_path / name).write_bytes((scenes.train.root / key).read_bytes())
            rows.append(f"{name},{'ab'[n % 2]}")
    data = DataConfig(train=write(tmp_path / "tags.csv", "\n".join(rows)), images=str(tmp_path), val_share=0.3)
    tables = read_tables(data, seed=0)
    photos = [{key.split("-")[1] for key in table.images.to_pylist()} for table in (tables.train, tables.val)]
    assert all(photos)
    assert not photos[0] & photos[1]
    assert len(tables.train) + len(tables.val) == 36


def test_groups_of_the_users_stay_together(scenes, tmp_path):
    rows = ["image,tag", *(f"{key},{'ab'[n % 2]}" for n, key in enumerate(scenes.train.images.to_pylist()))]
    data = DataConfig(
        train=write(tmp_path / "tags.csv", "\n".join(rows)), images=str(scenes.train.root), val_share=0.4,
        group_by=r"train/000(\d)",
    )  # fmt: skip
    tables = read_tables(data, seed=0)
    groups = [{key[len("train/000")] for key in table.images.to_pylist()} for table in (tables.train, tables.val)]
    assert not groups[0] & groups[1]
    assert any("groups kept together" in message for message in tables.train.notes.messages)


def test_files_of_their_own_and_complete_labels(scenes):
    folder = scenes.folder
    data = DataConfig(
        train=str(folder / "train_single.csv"), images=str(folder / "images"), val=str(folder / "val.csv"),
        test=str(folder / "test.csv"), truth=str(folder / "train_truth.csv"),
    )  # fmt: skip
    tables = read_tables(data, seed=0)
    assert [len(table) for table in tables.splits().values()] == [24, 11, 5]
    assert len({table.classes for table in (*tables.splits().values(), tables.truth)}) == 1
    assert tables.truth.images.to_pylist() == tables.train.images.to_pylist()
    known = tables.train.matrix.dense() == Label.POSITIVE
    assert (tables.truth.matrix.dense()[known] == Label.POSITIVE).all()
    assert not (tables.truth.matrix.dense() == Label.UNKNOWN).any()


def test_splits_that_the_source_names(scenes, tmp_path):
    train, val = scenes.train, scenes.val
    both = LabelTable.build(
        [*train.images.to_pylist(), *val.images.to_pylist()], train.classes,
        image=np.arange(35), class_=np.zeros(35, int), state=np.ones(35, int), root=train.root,
        split=["train"] * 24 + ["val"] * 11,
    )  # fmt: skip
    save(both, tmp_path / "labels.parquet", keep_root=True)
    named = read_named(DataConfig(train=str(tmp_path / "labels.parquet")))
    assert {name: len(table) for name, table in named.items()} == {"train": 24, "val": 11}


def split_file(scenes, tmp_path, names):
    """A table of the 24 training scenes whose split names are `names` in turn."""
    keys = scenes.train.images.to_pylist()
    split = [names[i % len(names)] for i in range(len(keys))]
    index = np.arange(len(keys))
    table = LabelTable.build(
        keys, scenes.train.classes, image=index, class_=index * 0, state=index * 0 + 1,
        root=scenes.train.root, split=split,
    )  # fmt: skip
    save(table, tmp_path / "labels.parquet", keep_root=True)
    return str(tmp_path / "labels.parquet")


@pytest.mark.parametrize(("other", "words"), [("trainval", "split 'trainval'"), ("", "no split")])
def test_without_a_split_called_train_the_rest_is_learned_from_and_never_the_test_images(
    scenes, tmp_path, other, words
):
    tables = read_named(DataConfig(train=split_file(scenes, tmp_path, [other, other, "test"])))
    assert {name: len(table) for name, table in tables.items()} == {"train": 16, "test": 8}
    assert not set(tables["train"].images.to_pylist()) & set(tables["test"].images.to_pylist())
    message = f"no split is called 'train': training uses the 16 images of {words}"
    assert message in tables["train"].notes.messages


def test_messages_about_photos_of_val_name_their_own_option(scenes, tmp_path):
    (tmp_path / "val.csv").write_text("image,zero\nnowhere.jpg,1\n")
    data = DataConfig(train=split_file(scenes, tmp_path, ["train"]), val=str(tmp_path / "val.csv"))
    with pytest.raises(DataError, match=r"relative to: val_images='FOLDER'\.$"):
        read_named(data.model_copy(update={"val_images": str(tmp_path)}))
    two = data.model_copy(update={"val_images": (str(tmp_path), str(tmp_path))})
    with command_line(), pytest.raises(ConfigError, match=r"for 1 label file; give --val-images FOLDER once for all"):
        read_named(two)
    with pytest.raises(ConfigError, match=r"for 1 label file; give images='FOLDER' once for all"):
        read_named(DataConfig(train=data.train, images=(str(tmp_path), str(tmp_path))))


def test_splits_that_leave_nothing_to_learn_from_are_refused(scenes, tmp_path):
    with pytest.raises(DataError, match=r"^the labels name the splits test and val, so that no image is left to learn"):
        read_named(DataConfig(train=split_file(scenes, tmp_path, ["val", "test"])))


def test_images_of_further_splits_are_left_out_with_a_line_each(scenes, tmp_path):
    train = read_named(DataConfig(train=split_file(scenes, tmp_path, ["train", "val", "foo"])))["train"]
    assert len(train) == 8
    assert "split 'foo': 8 images left out" in train.notes.messages
    assert len([e for e in train.notes.excluded if e.reason == "split 'foo': not train, val or test"]) == 8


def test_fold_numbers_are_no_splits_to_keep_apart(scenes, tmp_path):
    tables = read_named(DataConfig(train=split_file(scenes, tmp_path, ["1", "2", "3"])))
    assert {name: len(table) for name, table in tables.items()} == {"train": 24}


def test_a_val_file_in_the_place_of_the_named_split_is_said(scenes, tmp_path):
    path = split_file(scenes, tmp_path, ["train", "val"])
    tables = read_named(
        DataConfig(train=path, val=str(scenes.folder / "val.csv"), images=str(scenes.folder / "images"))
    )
    assert len(tables["val"]) == 11
    said = f"val: {scenes.folder / 'val.csv'} is used, and not the 12 images of split 'val'"
    assert said in tables["train"].notes.messages


def test_a_val_file_that_names_splits_itself_is_used_for_its_own_rows_only(scenes, tmp_path):
    """24 images: 8 each of train, val and of no split. The other 16 are listed, and none of them is validated on."""
    path = split_file(scenes, tmp_path, ["train", "val", ""])
    named = read_named(
        DataConfig(train=str(scenes.folder / "train_single.csv"), images=str(scenes.train.root), val=path)
    )
    val = named["val"]
    assert val.images.to_pylist() == scenes.train.images.to_pylist()[1::3]
    sizes = "train 8, val 8, no split 8"
    said = f"val: of {path}, which names splits itself ({sizes}), only the images of split 'val' are used"
    assert said in val.notes.messages
    left_out = [row for row in val.notes.excluded if row.where == "val"]
    assert [row.item for row in left_out] == [
        key for first in (0, 2) for key in scenes.train.images.to_pylist()[first::3]
    ]
    assert {row.reason for row in left_out} == {
        f"split 'train': of {path}, only split 'val' is used", f"no split: of {path}, only split 'val' is used"
    }  # fmt: skip


def test_a_val_file_that_names_only_its_own_split_is_used_without_a_word(scenes, tmp_path):
    path = split_file(scenes, tmp_path, ["val"])
    data = DataConfig(train=str(scenes.folder / "train_single.csv"), images=str(scenes.train.root), val=path)
    val = read_named(data)["val"]
    assert len(val) == 24
    assert not any("names splits itself" in message for message in val.notes.messages)
    empty = data.model_copy(update={"val": split_file(scenes, tmp_path, [""])})
    assert len(read_named(empty)["val"]) == 24


def test_a_test_file_that_names_other_splits_is_refused(scenes, tmp_path):
    path = split_file(scenes, tmp_path, ["train", "val"])
    with pytest.raises(DataError) as error:
        read_named(DataConfig(train=str(scenes.folder / "train_single.csv"), images=str(scenes.train.root), test=path))
    assert str(error.value) == (
        f"{path} is given as test and names splits itself (train 12, val 12), but none of them is 'test'. Call the "
        "split of the images that are meant 'test', or take the split names out of the file."
    )


def test_hold_out_needs_photos():
    with pytest.raises(DataError, match="the labels do not say where the photos are"):
        hold_out(from_rows(SINGLE * 10))


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
    """It is said and recorded; a run in steps, and one with an unknown label, keep the paper's loss."""
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
    for other in (planned(slice(1, None)), planned(slice(None), train__preset="views")):
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


@pytest.mark.parametrize("minutes", [None, 0.01])
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
