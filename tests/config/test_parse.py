"""Settings: every problem at once, with the cure; overrides; files."""

import tomllib
from typing import Literal, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import create_model

from fewtags.config.parse import apply_overrides, dump_toml, load_toml, parse, validated
from fewtags.config.pretrain import PretrainConfig
from fewtags.config.sections import MOST_SEED, AugmentConfig, Config, DataConfig, ObjectiveConfig, Settings, StageConfig
from fewtags.engine.methods import read_pretrain_settings, settings_models
from fewtags.errors import ConfigError
from fewtags.objectives.table import METHODS
from fewtags.seeds import rng
from fewtags.text import counted

BARE = {"data": {"train": "photos"}}
SOLVE = {"name": "solve", "logit_variances": [0.1, 1.0], "trainable": "head"}
STAGE = {"name": "main", "epochs": 2, "lr": 1e-3}


def read(**changes):
    """The configuration of dotted keys, with __ for the dot."""
    flat = {key.replace("__", "."): value for key, value in changes.items()}
    return parse(apply_overrides(BARE, flat), settings_models(), "run.toml")


def problems(tree):
    with pytest.raises(ConfigError) as error:
        parse(tree, settings_models(), "run.toml")
    first, *lines = str(error.value).splitlines()
    assert first == f"{counted(len(lines), 'problem')} in run.toml:"
    return [line.removeprefix("  ") for line in lines]


# --- parse


def test_defaults():
    config = read()
    assert config.data.train == "photos"
    assert config.objective == ObjectiveConfig(name=None)
    assert config.train.preset is None


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"scl_weight": 0.3}, "expected_negative"),
        ({"patch_weight": 2.0}, "expected_negative"),
        ({"pseudo_weight": 2.0}, "patchml"),
        ({"name": None, "pseudo_weight": 2.0, "patch_weight": 2.0}, "patchml"),
        ({"name": "fixmatch", "patch_weight": 2.0}, "fixmatch"),
        ({"name": None}, None),
        ({}, None),
    ],
)
def test_settings_without_a_name_say_which_method_is_meant(given, name):
    """Of the two that may be derived; with no settings at all, the labels decide."""
    assert parse({**BARE, "objective": given}, settings_models()).objective.name == name


def test_a_derived_method_stays_derived_in_a_file():
    config = read()
    assert parse(tomllib.loads(dump_toml(config)), settings_models()) == config


PATHS = (
    *("data.train", "data.images", "data.val", "data.test", "data.val_images", "data.test_images", "data.truth"),
    *("data.answers", "data.teacher", "data.names", "data.covers", "data.complete_files", "data.photo_cache"),
    *("model.weights", "search.starts"),
)
"""The settings that are paths, or lists of them."""
SINGLE = ("teacher", "names", "photo_cache", "weights")
NO_PATHS = (
    *("data.group_by", "data.absent_prefix", "data.image_column", "data.delimiter", "data.tags_separator"),
    *("data.none_folder", "data.columns", "data.positive_words", "data.negative_words", "data.unknown_words"),
    *("data.rename", "data.exactly_one", "data.at_most_one", "model.backbone", "search.methods", "search.backbones"),
)
PRETRAINING_PATHS = ("data.train", "data.images", "data.photo_cache", "model.weights")


def texts(model):
    """The settings of a run that take any text, by dotted key."""
    for section, field in model.model_fields.items():
        if section != "objective":
            for name, inner in field.annotation.model_fields.items():
                if "str" in str(inner.annotation).replace("PathText", "str"):
                    yield f"{section}.{name}"


def test_every_setting_that_takes_a_text_is_known_to_be_a_path_or_not():
    """A new setting that is a path must be one of `PATHS`, and so be read as `PathText`."""
    others = {"train.stages"}  # sections of their own
    assert {*texts(Config)} - others == {*PATHS, *NO_PATHS}
    assert {*texts(PretrainConfig)} == {*PRETRAINING_PATHS, "model.backbone"}


@pytest.mark.parametrize("key", PATHS)
def test_a_path_may_begin_with_the_home_folder(monkeypatch, tmp_path, key):
    """A shell writes the home folder in place of ~; in a file nobody else does. A file ~a of this folder stays."""
    monkeypatch.setenv("HOME", str(tmp_path))
    section, name = key.split(".")
    for typed, expected in (("~/a b", f"{tmp_path}/a b"), ("~", str(tmp_path)), ("~a", "~a"), ("a/~/b", "a/~/b")):
        found = getattr(getattr(parse(apply_overrides(BARE, {key: typed}), settings_models()), section), name)
        assert found in (expected, (expected,))


@pytest.mark.parametrize("key", [key for key in PATHS if key.split(".")[1] not in SINGLE])
def test_each_path_of_a_list_may_begin_with_the_home_folder(monkeypatch, tmp_path, key):
    monkeypatch.setenv("HOME", str(tmp_path))
    section, name = key.split(".")
    config = parse(apply_overrides(BARE, {key: ["a", "~/b"]}), settings_models())
    assert getattr(getattr(config, section), name) == ("a", f"{tmp_path}/b")


@pytest.mark.parametrize("key", PRETRAINING_PATHS)
def test_a_path_of_pretraining_may_begin_with_the_home_folder(monkeypatch, tmp_path, key):
    monkeypatch.setenv("HOME", str(tmp_path))
    section, name = key.split(".")
    found = read_pretrain_settings(apply_overrides(BARE, {key: "~/a"}), "run.toml")
    assert getattr(getattr(found, section), name) == f"{tmp_path}/a"


def test_an_empty_path_of_a_folder_is_refused_as_it_was_typed():
    assert problems(apply_overrides(BARE, {"data.photo_cache": ""})) == [
        "data.photo_cache = '': string should have at least 1 character"
    ]


def test_all_problems_are_reported_at_once_with_their_cure():
    tree = {
        "data": {"tarin": "photos", "blank": "maybe"},
        "modle": {},
        "augment": {"flip": "perhaps", "min_area": 2},
        "objective": {"name": "assume_negative", "smothing": 0.1, "negative_weight": "week"},
        "train": {"sed": 1, "epochs": "ten", "lr": -1, "preset": "gpu"},
    }
    assert sorted(problems(tree)) == [
        "augment.flip = 'perhaps': input should be a valid boolean, unable to interpret input",
        "augment.min_area = 2: input should be less than or equal to 1",
        "data.blank = 'maybe': input should be 'unknown' or 'negative'",
        "missing key 'data.train'",
        "objective.negative_weight = 'week': input should be a valid number, unable to parse string as a number, or "
        "input should be 'weak'",
        "train.epochs = 'ten': input should be a valid integer, unable to parse string as an integer",
        "train.lr = -1: input should be greater than 0",
        "train.preset = 'gpu': input should be 'cpu', 'views', 'finetune', 'paper', 'paper_scratch' "
        "or 'paper_imagenet'",
        "unknown key 'data.tarin'; did you mean 'data.train'?",
        "unknown key 'modle'; did you mean 'model'?",
        "unknown key 'objective.smothing'; did you mean 'objective.smoothing'?",
        "unknown key 'train.sed'; did you mean 'train.seed'?",
    ]


KNOWN = ", ".join(sorted(METHODS))


@pytest.mark.parametrize(
    ("tree", "line"),
    [
        ({}, "missing key 'data'"),
        (BARE | {"model": {"zzz": 1}},
         "unknown key 'model.zzz'; known here: backbone, weights, drop_path, output_stride, head_kernel, pool, "
         "pool_temperature, pool_weight, pool_boost"),
        (BARE | {"epochs": 3}, "unknown key 'epochs'; did you mean 'train.epochs'?"),
        (BARE | {"train": {"complete": True}}, "unknown key 'train.complete'; did you mean 'data.complete'?"),
        (BARE | {"train": {"stages": [STAGE | {"eposch": 3}]}},
         "unknown key 'train.stages.0.eposch'; did you mean 'train.stages.0.epochs'?"),
        (BARE | {"train": {"stages": [STAGE, {"name": "x", "lr": 1}]}}, "missing key 'train.stages.1.epochs'"),
        (BARE | {"train": {"stages": [STAGE, {"name": "x", "epochs": 1}]}},
         "train.stages.1: stage 'x' needs lr, or logit_variances to solve the head"),
        (BARE | {"train": {"stages": [SOLVE | {"lr": 1}]}},
         "train.stages.0: stage 'solve' has lr and logit_variances; a head that is solved has no rate"),
        (BARE | {"train": {"stages": [SOLVE | {"trainable": "all"}]}},
         "train.stages.0: stage 'solve' has logit_variances, which need trainable = \"head\""),
        (BARE | {"train": {"stages": [SOLVE | {"epochs": 3}]}},
         "train.stages.0: stage 'solve' has 3 epochs and 2 logit_variances; leave epochs out"),
        (BARE | {"train": {"stages": [SOLVE | {"epochs": 3, "answer_weights": [1, 4]}]}},
         "train.stages.0: stage 'solve' has 3 epochs and 2 logit_variances and 2 answer_weights; leave epochs out"),
        (BARE | {"train": {"stages": [STAGE | {"answer_weights": [1, 4]}]}},
         "train.stages.0: stage 'main' has answer_weights without logit_variances; only a head that is solved can try "
         "several. Set objective.answer_weight instead"),
        (BARE | {"train": {"stages": [SOLVE | {"logit_variances": [1, 0]}]}},
         "train.stages.0.logit_variances.1 = 0: input should be greater than 0"),
        (BARE | {"train": {"stages": [STAGE | {"trainable": "heads"}]}},
         "train.stages.0.trainable = 'heads': input should be 'head' or 'all', or input should be a valid integer, "
         "unable to parse string as an integer"),
        (BARE | {"objective": {"name": "expected_negatives"}},
         "objective.name = 'expected_negatives' is not a method (did you mean 'expected_negative'?); known: "
         + KNOWN),
        (BARE | {"objective": {"name": ["bce"]}},
         "objective.name = ['bce'] is not a method (did you mean 'bce'?); known: " + KNOWN),
        (BARE | {"objective": "bce"},
         "objective = 'bce' is a value, not a section; write objective.name = \"expected_negative\""),
        (BARE | {"objective": {"class_prior": [0.1, "x"]}},
         "objective.class_prior.1 = 'x': input should be a valid number, unable to parse string as a number"),
        (BARE | {"train": 3}, "train = 3: input should be a valid dictionary or instance of TrainConfig"),
    ],
)  # fmt: skip
def test_one_problem(tree, line):
    assert problems(tree) == [line]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize(
    "key", ["train.lr", "train.cache_gib", "augment.min_area", "model.pool_weight", "objective.scl_weight"]
)
def test_numbers_are_finite(key, value):
    assert problems(apply_overrides(BARE, {key: value})) == [f"{key} = {value}: input should be a finite number"]


def test_lists_of_a_search_may_be_words_with_commas():
    found = parse(
        apply_overrides(BARE, ["search.sizes=64, 96", "search.pools=mean", 'search.methods=["bce"]']), settings_models()
    ).search
    assert (found.sizes, found.pools, found.methods) == ((64, 96), ("mean",), ("bce",))
    assert read(search__sizes=64).search.sizes == (64,)
    assert problems(apply_overrides(BARE, ["search.sizes=64,x"])) == [
        "search.sizes.1 = 'x': input should be a valid integer, unable to parse string as an integer"
    ]


def test_numbers_in_lists_are_finite():
    tree = BARE | {"objective": {"class_prior": [0.1, float("inf")]}, "train": {"stages": [STAGE | {"lr": 1e999}]}}
    assert problems(tree) == [
        "objective.class_prior.1 = inf: input should be a finite number",
        "train.stages.0.lr = inf: input should be a finite number",
    ]


def test_the_largest_seed_is_one_that_every_generator_takes():
    assert read(train__seed=MOST_SEED).train.seed == MOST_SEED == 2**32 - 1
    assert problems(apply_overrides(BARE, {"train.seed": MOST_SEED + 1})) == [
        "train.seed = 4294967296: input should be less than or equal to 4294967295"
    ]
    np.random.RandomState(MOST_SEED)
    rng(MOST_SEED, 1, 1)
    torch.Generator().manual_seed(MOST_SEED)
    with pytest.raises(ValueError, match="Seed must be between 0 and"):
        np.random.RandomState(MOST_SEED + 1)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("data.columns=cat,dog", ("cat", "dog")),
        ("data.columns= cat , big dog,", ("cat", "big dog")),
        ("data.columns=cat", ("cat",)),
        ("data.columns=1,2", ("1", "2")),
        ('data.columns=["a, b", "c"]', ("a, b", "c")),
    ],
)
def test_several_words_may_be_written_with_commas(text, columns):
    assert parse(apply_overrides(BARE, [text]), settings_models()).data.columns == columns


def test_further_words_with_commas():
    assert read(data__positive_words="oui, si").data.positive_words == ("oui", "si")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("data.columns=3",
         "data.columns = 3: input should be a valid tuple; a list in TOML looks like "
         'data.columns = ["first", "second"]'),
        ("objective.class_prior=0.1,0.2",
         "objective.class_prior = '0.1,0.2': input should be a valid tuple; a list in TOML looks like "
         "objective.class_prior = [0.5, 1.0]"),
        ("data.exactly_one=a,b",
         "data.exactly_one = 'a,b': input should be a valid tuple; a list in TOML looks like "
         'data.exactly_one = [["first", "second"]]'),
        ('data.exactly_one=["a"]',
         "data.exactly_one.0 = 'a': input should be a valid tuple; a list in TOML looks like "
         'data.exactly_one = [["first", "second"]]'),
        ('train.stages=[{name="a", lr=1, epochs=1, logit_variances=1}]',
         "train.stages.0.logit_variances = 1: input should be a valid tuple; a list in TOML looks like "
         "train.stages.0.logit_variances = [0.5, 1.0]"),
        ("train.stages=head",
         "train.stages = 'head': input should be a valid tuple; a list in TOML looks like train.stages = "
         '[{ name = "main", epochs = 10, lr = 0.001 }]'),
    ],
)  # fmt: skip
def test_what_should_be_a_list_is_told_with_an_example_that_works(text, line):
    assert problems(apply_overrides(BARE, [text])) == [line]
    if ".0.logit" not in line:  # a place in a list cannot be set
        parse(apply_overrides(BARE, [line.split("looks like ")[1]]), settings_models())


def test_a_list_of_three_is_told_with_three():
    tree = apply_overrides(BARE, ["objective.name=patchml", "objective.image_gammas=1"])
    assert problems(tree) == [
        "objective.image_gammas = 1: input should be a valid tuple; a list in TOML looks like "
        "objective.image_gammas = [0.5, 1.0, 2.0]"
    ]


@pytest.mark.parametrize(
    ("kind", "example"),
    [
        (tuple[int, ...], "[1, 2]"),
        (tuple[Literal["a", "b"], ...], '["a", "b"]'),
        (tuple[Literal["a"], ...] | None, '["a"]'),
        (tuple[bool, ...], "[true, false]"),
        (tuple[tuple[int, ...], ...], "[[1, 2]]"),
    ],
)
def test_lists_of_every_kind_of_setting_have_an_example(kind, example):
    """A method of one's own may have them."""
    model = create_model("OwnConfig", __base__=ObjectiveConfig, sizes=(kind, None))
    with pytest.raises(ConfigError) as error:
        validated(model, {"name": "own", "sizes": 3}, "Own")
    assert f"a list in TOML looks like sizes = {example}" in str(error.value)
    tomllib.loads(f"sizes = {example}")


def sections(model):
    """A section, and all that its fields hold, optional and repeated ones."""
    found = {model}
    todo = [field.annotation for field in model.model_fields.values()]
    while todo:
        kind = todo.pop()
        if isinstance(kind, type) and issubclass(kind, Settings):
            found |= sections(kind)
        todo += get_args(kind)
    return found


def test_every_setting_says_what_it_is():
    found = sections(Config)
    assert {DataConfig, AugmentConfig, StageConfig, ObjectiveConfig} < found
    for section in found - {Config}:
        assert section.__doc__
        for name, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{name}"


def test_one_section_alone():
    assert validated(AugmentConfig, {"size": 64}, "here") == AugmentConfig(size=64)
    with pytest.raises(ConfigError) as error:
        validated(AugmentConfig, {"size": 1, "flop": True}, "here")
    assert str(error.value) == (
        "2 problems in here:\n  size = 1: input should be greater than or equal to 32\n"
        "  unknown key 'flop'; did you mean 'flip'?"
    )


def test_settings_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        read().train.seed = 3


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"data__columns": ["a b", "ü"], "data__group_by": r"^(\d+)_", "train__seed": 7, "model__weights": "none"},
        {"objective__class_prior": [0.1, 1 / 3], "objective__cl_weight": 1e-17, "train__lr": 0.1 + 0.2},
        {"objective__name": "assume_negative", "objective__negative_weight": "weak"},
        {"train__stages": [STAGE, STAGE | {"trainable": 3, "schedule": "constant", "warmup": False}]},
    ],
)
def test_toml_brings_every_setting_back(tmp_path, changes):
    config = read(**changes)
    (tmp_path / "run.toml").write_text(dump_toml(config), encoding="utf-8")
    assert parse(load_toml(tmp_path / "run.toml"), settings_models()) == config


# --- files and overrides


def test_a_toml_error_names_the_line(tmp_path):
    (tmp_path / "a.toml").write_text("[data]\ntrain = photos\n")
    with pytest.raises(ConfigError) as error:
        load_toml(tmp_path / "a.toml")
    assert str(error.value) == f"{tmp_path / 'a.toml'} is not valid TOML: Invalid value (at line 2, column 9)."


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"a\.toml is not valid TOML: .*decode"):
        load_toml(tmp_path / "a.toml")


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"b\.toml does not exist\."):
        load_toml(tmp_path / "b.toml")
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory\."):
        load_toml(tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("train.x=3", 3),
        ("train.x = 1e-4", 1e-4),
        ("train.x=true", True),
        ('train.x=["a", "b"]', ["a", "b"]),
        ('train.x="3"', "3"),
        ("train.x=photos/a=b.csv", "photos/a=b.csv"),
        ("train.x=", ""),
        ("train.x=null", None),
        # `none` is a value that weights, policies and folders have.
        ("train.x=none", "none"),
        ("train.x=None", "None"),
        # No setting is a date, but folders are named so.
        ("train.x=2024-05-01", "2024-05-01"),
        ("train.x=12:30:00", "12:30:00"),
        ("train.x=1\nv2 = 5", "1\nv2 = 5"),
        ("train.x=C:\\photos", "C:\\photos"),
    ],
)
def test_the_value_of_an_assignment(text, value):
    found = apply_overrides({}, [text])
    assert found == {"train": {"x": value}}
    assert type(found["train"]["x"]) is type(value)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_assignment_is_read_or_refused_in_words(text):
    try:
        apply_overrides({}, [text])
    except ConfigError as error:
        assert "--set" in str(error)  # noqa: PT017


@pytest.mark.parametrize("text", ["train.seed", "=3", " = 3", ""])
def test_an_assignment_needs_a_key_and_a_value(text):
    with pytest.raises(ConfigError) as error:
        apply_overrides({}, [text])
    assert str(error.value) == f"--set {text!r}: expected section.key=value, for example --set train.seed=3."


def test_a_value_is_no_section():
    with pytest.raises(ConfigError) as error:
        apply_overrides({"train": {"seed": 1}}, ["train.seed.x=3"])
    assert str(error.value) == "--set train.seed.x: 'seed' is a value, not a section."


def test_overrides_leave_the_tree_alone():
    tree = {"train": {"seed": 1, "deep": {"er": 1}}}
    assert apply_overrides(tree, ["train.seed=2", "train.deep.er=2"]) == {"train": {"seed": 2, "deep": {"er": 2}}}
    assert tree == {"train": {"seed": 1, "deep": {"er": 1}}}


def test_the_last_override_wins():
    assert apply_overrides({}, ["a.b=1", "a.b=2"]) == {"a": {"b": 2}}
    assert apply_overrides({}, {"a.b": 1}) == {"a": {"b": 1}}
