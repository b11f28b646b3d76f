"""Settings: every problem at once, with the cure; overrides; and what is derived."""

import tomllib
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewtags.config import (
    PRESETS,
    Facts,
    ModelConfig,
    Resolved,
    StageConfig,
    apply_overrides,
    dump_toml,
    load_toml,
    parse,
    resolve,
)
from fewtags.engine.methods import settings_models
from fewtags.errors import ConfigError
from fewtags.nets.pool import PoolName

LAPTOP = Facts(samples=100, classes=5, device="cpu", cores=4, offline_backbone="tf_efficientnet_lite0")
SERVER = Facts(samples=100, classes=5, device="cuda", cores=32, offline_backbone="tf_efficientnet_lite0", bf16=True)
BARE = {"data": {"train": "photos"}}
STAGE = {"name": "main", "epochs": 2, "lr": 1e-3}


def read(**changes):
    """The configuration of dotted keys, with __ for the dot."""
    flat = {key.replace("__", "."): value for key, value in changes.items()}
    return parse(apply_overrides(BARE, flat), settings_models(), "run.toml")


def problems(tree):
    with pytest.raises(ConfigError) as error:
        parse(tree, settings_models(), "run.toml")
    first, *lines = str(error.value).splitlines()
    assert first == f"{len(lines)} problem(s) in run.toml:"
    return [line.removeprefix("  ") for line in lines]


# --- parse


def test_defaults():
    config = read()
    assert config.data.train == "photos"
    assert config.objective.name == "expected_negative"
    assert config.train.preset is None
    assert config.objective == settings_models()["expected_negative"](name="expected_negative")


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
        "train.preset = 'gpu': input should be 'cpu', 'finetune', 'paper', 'paper_scratch' or 'paper_imagenet'",
        "unknown key 'data.tarin'; did you mean 'data.train'?",
        "unknown key 'modle'; did you mean 'model'?",
        "unknown key 'objective.smothing'; did you mean 'objective.smoothing'?",
        "unknown key 'train.sed'; did you mean 'train.seed'?",
    ]


@pytest.mark.parametrize(
    ("tree", "line"),
    [
        ({}, "missing key 'data'"),
        (BARE | {"model": {"zzz": 1}},
         "unknown key 'model.zzz'; known here: backbone, weights, drop_path, output_stride, head_kernel, pool, "
         "pool_temperature, pool_weight"),
        (BARE | {"train": {"stages": [STAGE | {"eposch": 3}]}},
         "unknown key 'train.stages.0.eposch'; did you mean 'train.stages.0.epochs'?"),
        (BARE | {"train": {"stages": [STAGE, {"name": "x", "epochs": 1}]}}, "missing key 'train.stages.1.lr'"),
        (BARE | {"train": {"stages": [STAGE | {"trainable": "heads"}]}},
         "train.stages.0.trainable = 'heads': input should be 'head' or 'all', or input should be a valid integer, "
         "unable to parse string as an integer"),
        (BARE | {"objective": {"name": "expected_negatives"}},
         "objective.name = 'expected_negatives' is not a method (did you mean 'expected_negative'?); known: "
         "assume_negative, bce, expected_negative, patchml"),
        (BARE | {"objective": {"name": ["bce"]}},
         "objective.name = ['bce'] is not a method (did you mean 'bce'?); known: assume_negative, bce, "
         "expected_negative, patchml"),
        (BARE | {"objective": "bce"},
         "objective = 'bce' is a value, not a section; write objective.name = \"expected_negative\""),
        (BARE | {"objective": {"class_prior": [0.1, "x"]}},
         "objective.class_prior.1 = 'x': input should be a valid number, unable to parse string as a number"),
        (BARE | {"train": 3}, "train = 3: input should be a valid dictionary or instance of TrainConfig"),
    ],
)  # fmt: skip
def test_one_problem(tree, line):
    assert problems(tree) == [line]


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


def test_toml_brings_what_was_resolved_back():
    resolved = resolve(read(train__preset="paper"), SERVER)
    assert Resolved.model_validate(tomllib.loads(dump_toml(resolved))) == resolved


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


# --- resolve


def test_presets_by_machine():
    laptop, server = resolve(read(), LAPTOP), resolve(read(), SERVER)
    assert (laptop.preset, laptop.backbone, laptop.weights) == ("cpu", "tf_efficientnet_lite0", "offline")
    assert (server.preset, server.backbone, server.weights) == ("finetune", "resnet50", "hub")
    assert (laptop.cached_views, server.cached_views) == (8, 0)
    assert (laptop.precision, server.precision) == ("no", "bf16")
    assert (laptop.workers, server.workers) == (3, 8)
    assert resolve(read(), LAPTOP.model_copy(update={"device": "mps"})).preset == "cpu"
    assert resolve(read(), LAPTOP.model_copy(update={"offline_backbone": None})).weights == "hub"


def test_the_papers_numbers():
    """Section 4.1: head 5 epochs at 1e-3, then all for 25 at 1e-5, cosine, Adam, batch 8, 448 px; from scratch 100 at
    1e-4. Section 4.3 (ImageNet): 1e-4 and weight decay 1e-4 at 224 px."""
    paper = resolve(read(train__preset="paper"), SERVER)
    assert [(s.epochs, s.lr, s.trainable, s.schedule, s.warmup) for s in paper.stages] == [
        (5, 1e-3, "head", "constant", True),
        (25, 1e-5, "all", "cosine", False),
    ]
    assert (paper.batch_size, paper.size, paper.weight_decay, paper.policy, paper.min_area) == (8, 448, 0, "coco", 0.25)
    scratch = resolve(read(train__preset="paper_scratch"), SERVER)
    assert [(s.epochs, s.lr, s.warmup) for s in scratch.stages] == [(100, 1e-4, False)]
    imagenet = resolve(read(train__preset="paper_imagenet"), SERVER)
    assert [(s.epochs, s.lr) for s in imagenet.stages] == [(5, 1e-4), (25, 1e-4)]
    assert (imagenet.size, imagenet.weight_decay, imagenet.policy, imagenet.min_area) == (224, 1e-4, "imagenet", 0.08)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_resolves_and_is_pure(preset):
    config = read(train__preset=preset)
    assert resolve(config, LAPTOP) == resolve(config, LAPTOP)
    assert not any(value is None for value in resolve(config, LAPTOP).model_dump().values())


def test_what_is_said_beats_the_preset():
    chosen = {
        "model__backbone": "resnet18", "model__weights": "none", "augment__size": 96, "augment__min_area": 0.5,
        "augment__flip": False, "train__batch_size": 3, "train__weight_decay": 0.5, "train__batchnorm_eval": False,
        "train__workers": 0, "train__clip_norm": 2.0, "train__weight_ema": 0.9, "train__checkpoint_every_steps": 7,
        "train__select": "last", "train__accumulate": 2, "train__cached_views": 0, "train__precision": "bf16",
        "model__drop_path": 0.1, "train__seed": 4,
    }  # fmt: skip
    resolved = resolve(read(**chosen), LAPTOP)
    for key, value in chosen.items():
        assert getattr(resolved, key.split("__")[1]) == value, key


@pytest.mark.parametrize(
    ("policy", "preset", "found", "area"),
    [
        (None, "paper", "coco", 0.25),
        ("imagenet", "paper", "imagenet", 0.08),
        (None, "paper_imagenet", "imagenet", 0.08),
        ("coco", "paper_imagenet", "coco", 0.25),
        ("none", "paper_imagenet", "none", 0.25),
    ],
)
def test_the_policy_of_a_preset_is_a_default(policy, preset, found, area):
    resolved = resolve(read(augment__policy=policy, train__preset=preset), SERVER)
    assert (resolved.policy, resolved.min_area) == (found, area)


def test_epochs_and_lr_change_the_last_stage_of_the_preset():
    stages = resolve(read(train__preset="paper", train__epochs=2, train__lr=0.5), SERVER).stages
    assert [(s.epochs, s.lr) for s in stages] == [(5, 1e-3), (2, 0.5)]


def test_stages_replace_those_of_the_preset():
    stages = resolve(read(train__stages=[STAGE | {"trainable": 2}]), LAPTOP).stages
    assert stages == (StageConfig(name="main", epochs=2, lr=1e-3, trainable=2),)


def test_views_are_cached_where_every_stage_trains_the_head():
    head = STAGE | {"trainable": "head"}
    assert resolve(read(train__stages=[head]), LAPTOP).cached_views == 8
    assert resolve(read(train__stages=[head, STAGE]), LAPTOP).cached_views == 0
    assert resolve(read(train__stages=[head], train__preset="paper"), LAPTOP).cached_views == 0
    assert resolve(read(train__stages=[head], train__preset="paper", train__cached_views=3), LAPTOP).cached_views == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train__stages": [STAGE], "train__epochs": 3},
         "train.epochs and train.lr change the preset's last stage; with train.stages set them there."),
        ({"train__stages": [STAGE], "train__cached_views": 2},
         'train.cached_views needs a frozen trunk: give every stage trainable = "head", or set it to 0.'),
        ({"train__precision": "fp16"}, 'train.precision = "fp16" needs a GPU; use bf16 or no.'),
        ({"train__stages": []}, "train.stages have no epoch in all; give at least one stage epochs above 0."),
        ({"train__stages": [STAGE | {"epochs": 0}]},
         "train.stages have no epoch in all; give at least one stage epochs above 0."),
        ({"train__stages": [STAGE, STAGE | {"name": "late", "warmup": True}]},
         "stage 'late' has warmup = true but comes after a stage without; warm-up stages come first."),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other(changes, message):
    with pytest.raises(ConfigError) as error:
        resolve(read(**changes), LAPTOP)
    assert str(error.value) == message


def test_the_pools_are_those_of_the_nets():
    """Written out twice, because nets and configuration do not know each other."""
    for model in (ModelConfig, Resolved):
        assert get_args(model.model_fields["pool"].annotation) == get_args(PoolName)
