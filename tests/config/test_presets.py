"""Presets by machine, what is said against what a preset says, and settings that contradict each other."""

import tomllib
from typing import get_args

import numpy as np
import pytest

from fewtags.config.parse import apply_overrides, dump_toml, parse
from fewtags.config.presets import LOGIT_VARIANCES, PRESETS, Facts, Resolved, resolve, why_in_steps
from fewtags.config.search import candidates
from fewtags.config.sections import ModelConfig, StageConfig
from fewtags.engine.methods import settings_models
from fewtags.engine.model import make_policy
from fewtags.errors import ConfigError
from fewtags.nets.pool import PoolName
from fewtags.text import command_line

LAPTOP = Facts(samples=100, classes=5, device="cpu", cores=4, offline_backbone="tf_efficientnet_lite0")
SERVER = Facts(samples=100, classes=5, device="cuda", cores=32, offline_backbone="tf_efficientnet_lite0", bf16=True)
BARE = {"data": {"train": "photos"}}
STAGE = {"name": "main", "epochs": 2, "lr": 1e-3}


def read(**changes):
    """The configuration of dotted keys, with __ for the dot."""
    flat = {key.replace("__", "."): value for key, value in changes.items()}
    return parse(apply_overrides(BARE, flat), settings_models(), "run.toml")


def test_presets_by_machine():
    laptop, server = resolve(read(), LAPTOP), resolve(read(), SERVER)
    assert (laptop.preset, laptop.backbone, laptop.weights) == ("cpu", "tf_efficientnet_lite0", "offline")
    assert (server.preset, server.backbone, server.weights) == ("finetune", "resnet50", "hub")
    assert (laptop.cached_views, server.cached_views) == (0, 0)
    assert [s.logit_variances for s in laptop.stages] == [LOGIT_VARIANCES]
    assert (laptop.precision, server.precision) == ("no", "bf16")
    assert (laptop.workers, server.workers) == (3, 8)
    assert resolve(read(), LAPTOP.model_copy(update={"device": "mps"})).preset == "cpu"
    assert resolve(read(), LAPTOP.model_copy(update={"offline_backbone": None})).weights == "hub"


@pytest.mark.parametrize(
    ("objective", "method"),
    [
        ({}, "expected_negative"),
        ({"objective__name": "bce"}, "bce"),
        ({"objective__scl_weight": 0.3}, "expected_negative"),
        ({"objective__patch_weight": 0.3}, "expected_negative"),
        ({"objective__pseudo_weight": 0.3}, "patchml"),
    ],
)
def test_the_method_follows_from_the_settings_where_none_is_named(objective, method):
    """The first of two that has all of them."""
    assert resolve(read(**objective), LAPTOP).method == method


IN_EVERY_PAPER = {
    "search": (), "photo_cache": "",
    "max_area": 1, "drop_path": 0, "output_stride": 0, "head_kernel": 1, "pool": "mean", "flip": True, "jitter": 0,
    "optimizer": "adam", "accumulate": 1, "clip_norm": 0, "precision": "no", "weight_ema": 0, "batchnorm_eval": False,
    "cached_views": 0, "patience": 0, "select": "auto", "method": "expected_negative",
}  # fmt: skip
OF_EACH_PAPER = {
    "paper": {
        "backbone": "resnet50.tv_in1k", "weights": "hub", "size": 448, "policy": "coco", "min_area": 0.25,
        "weight_decay": 0, "batch_size": 8, "preset_objective": {},
        "stages": [(5, 1e-3, "head", "constant", True), (25, 1e-5, "all", "cosine", False)],
    },
    "paper_scratch": {
        "backbone": "resnet50", "weights": "none", "size": 448, "policy": "coco", "min_area": 0.25,
        "weight_decay": 0, "batch_size": 8, "preset_objective": {},
        "stages": [(100, 1e-4, "all", "cosine", False)],
    },
    "paper_imagenet": {
        "backbone": "resnet50.tv_in1k", "weights": "hub", "size": 224, "policy": "imagenet", "min_area": 0.08,
        "weight_decay": 1e-4, "batch_size": 64,
        "preset_objective": {"positives_per_image": 1.2, "heatmap_top_k": 10},
        "stages": [(5, 1e-4, "head", "constant", True), (25, 1e-4, "all", "cosine", False)],
    },
}  # fmt: skip
OF_THE_MACHINE = {
    "preset",
    "workers",
    "seed",
    "checkpoint_every_steps",
    "pool_temperature",
    "pool_weight",
    "pool_boost",
}


@pytest.mark.parametrize("processes", [1, 4, 8])
@pytest.mark.parametrize("preset", OF_EACH_PAPER)
def test_every_number_of_the_paper(preset, processes):
    """Sections 4.1 and 4.3 of the SCL paper, table 1 ("no pretraining") and appendix G.

    The batch is that of the whole step, so that the learning rate stays the same for any number of processes.
    """
    expected = IN_EVERY_PAPER | OF_EACH_PAPER[preset]
    found = resolve(read(train__preset=preset), SERVER.model_copy(update={"processes": processes}))
    assert found.batch_size * processes == expected.pop("batch_size")
    assert [(s.epochs, s.lr, s.trainable, s.schedule, s.warmup) for s in found.stages] == expected.pop("stages")
    assert not any(stage.solved or stage.head_factor != 1 for stage in found.stages)
    values = {key: getattr(found, key) for key in expected}
    assert values == expected
    assert {*Resolved.model_fields} - {*expected} == OF_THE_MACHINE | {"batch_size", "stages"}


def test_the_users_own_settings_beat_those_of_a_paper():
    chosen = {
        "model__weights": "hub",
        "model__backbone": "resnet18",
        "train__precision": "bf16",
        "train__batch_size": 6,
    }
    found = resolve(read(train__preset="paper_scratch", **chosen), SERVER.model_copy(update={"processes": 5}))
    assert {key: getattr(found, key.split("__")[1]) for key in chosen} == chosen
    other = read(train__preset="paper_imagenet", objective__name="patchml")
    assert resolve(other, SERVER).preset_objective == {}


@pytest.mark.parametrize(("preset", "photos"), [("finetune", 16), ("views", 16), ("paper", 8), ("paper_imagenet", 64)])
def test_the_photos_in_a_step_of_any_preset_are_shared_by_the_processes(preset, photos):
    shares = [
        resolve(read(train__preset=preset), SERVER.model_copy(update={"processes": n})).batch_size for n in (1, 2, 8)
    ]
    assert shares == [photos, photos // 2, photos // 8]
    with pytest.raises(ConfigError, match=rf"{preset!r} trains on {photos} photos in a step, which 3 processes cannot"):
        resolve(read(train__preset=preset), SERVER.model_copy(update={"processes": 3}))


def test_photos_that_cannot_be_shared():
    three = SERVER.model_copy(update={"processes": 3})
    with pytest.raises(ConfigError) as error:
        resolve(read(train__preset="paper"), three)
    assert str(error.value) == (
        "preset 'paper' trains on 8 photos in a step, which 3 processes cannot share equally. Start one process, or 2, "
        "4, 8; or set train.batch_size, the photos of each process, and train.lr."
    )
    assert resolve(read(train__preset="paper", train__batch_size=3), three).batch_size == 3
    assert resolve(read(train__preset="cpu"), three).stages[0].solved  # sees no batches


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_resolves_and_is_pure(preset):
    config = read(train__preset=preset)
    assert resolve(config, LAPTOP) == resolve(config, LAPTOP)
    assert not any(value is None for value in resolve(config, LAPTOP).model_dump().values())


def test_what_is_said_beats_the_preset():
    chosen = {
        "model__backbone": "resnet18", "model__weights": "none", "augment__size": 96, "augment__min_area": 0.5,
        "augment__flip": False, "augment__jitter": 0.4, "train__batch_size": 3,
        "train__weight_decay": 0.5, "train__batchnorm_eval": False,
        "train__workers": 0, "train__clip_norm": 2.0, "train__weight_ema": 0.9, "train__checkpoint_every_steps": 7,
        "train__select": "last", "train__accumulate": 2, "train__cached_views": 0, "train__precision": "bf16",
        "model__drop_path": 0.1, "train__seed": 4, "data__photo_cache": "cache",
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
        ("none", "paper_imagenet", "none", 1.0),
    ],
)
def test_the_policy_of_a_preset_is_a_default(policy, preset, found, area):
    resolved = resolve(read(augment__policy=policy, train__preset=preset), SERVER)
    assert (resolved.policy, resolved.min_area) == (found, area)


def test_crops_stay_between_the_smallest_and_the_largest_area():
    """Square crops of U(.1, .2) of the photo: the square of the side, the first entry of the view's matrix."""
    resolved = resolve(read(augment__min_area=0.1, augment__max_area=0.2), SERVER)
    drawn = make_policy(resolved.policy, 64, resolved.min_area, resolved.flip, resolved.max_area)
    areas = [drawn.sample(np.random.default_rng(seed), 1.0).matrix[0] ** 2 for seed in range(50)]
    assert 0.1 <= min(areas) < 0.12
    assert 0.18 < max(areas) <= 0.2


@pytest.mark.parametrize(
    ("policy", "flip", "found"),
    [
        (None, None, True),
        ("imagenet", None, True),
        ("coco", False, False),
        ("none", None, False),
        ("none", False, False),
    ],
)
def test_flips(policy, flip, found):
    """The policy none never flips, so what is resolved says so."""
    resolved = resolve(read(augment__policy=policy, augment__flip=flip), LAPTOP)
    assert resolved.flip is found
    drawn = make_policy(resolved.policy, 64, resolved.min_area, resolved.flip)
    views = [drawn.sample(np.random.default_rng(seed), 1.0) for seed in range(20)]
    assert any(view.matrix[0] < 0 for view in views) is found


@pytest.mark.parametrize(
    ("epochs", "lr", "stages"),
    [
        (6, None, [(1, 1e-3), (5, 1e-5)]),
        (12, None, [(2, 1e-3), (10, 1e-5)]),
        (2, None, [(1, 1e-3), (1, 1e-5)]),
        (1, None, [(1, 1e-5)]),
        (None, 1e-6, [(5, 1e-4), (25, 1e-6)]),
        (60, 2e-5, [(10, 2e-3), (50, 2e-5)]),
    ],
)
def test_epochs_and_lr_are_of_the_whole_run(epochs, lr, stages):
    """The paper's 5 + 25 epochs at 1e-3 and 1e-5 keep their proportions."""
    resolved = resolve(read(train__preset="paper", train__epochs=epochs, train__lr=lr), SERVER)
    assert [s.epochs for s in resolved.stages] == [epochs for epochs, _ in stages]
    assert [s.lr for s in resolved.stages] == pytest.approx([lr for _, lr in stages])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"train__epochs": 3}, "epochs needs training in steps"),
        ({"train__lr": 1e-3}, "train.lr needs training in steps"),
        ({"train__cached_views": 0}, "train.cached_views needs training in steps"),
        ({"augment__policy": "coco", "train__accumulate": 2},
         "train.accumulate, augment.policy need training in steps"),
        ({"train__stages": [STAGE]}, "train.stages needs training in steps"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("preset", [None, "cpu"])
def test_what_only_steps_can_do_takes_the_preset_views(preset, changes, why):
    config = read(train__preset=preset, **changes)
    assert resolve(config, LAPTOP).preset == "views"
    assert resolve(config, LAPTOP).size == 224
    assert why_in_steps(config, LAPTOP) == why


def test_what_cannot_be_solved_takes_the_preset_views():
    for facts in (LAPTOP.model_copy(update={"solvable": False}), LAPTOP.model_copy(update={"samples": 10**9})):
        assert resolve(read(), facts).preset == "views"
    assert resolve(read(), LAPTOP).preset == "cpu"
    many = LAPTOP.model_copy(update={"samples": 100_000, "needs_maps": True})
    assert why_in_steps(read(), many) == "100,000 images x 5 classes x 81 cells are too many to solve"
    assert why_in_steps(read(augment__size=64), many) == ""
    assert resolve(read(augment__policy="none", augment__flip=False), LAPTOP).preset == "cpu"


def test_finetune_without_a_gpu_trains_the_last_blocks_of_a_small_net():
    found = resolve(read(train__preset="finetune"), LAPTOP)
    assert (found.backbone, found.size, found.optimizer) == ("tf_efficientnet_lite0", 288, "adamw")
    assert [(s.name, s.solved, s.trainable, s.warmup) for s in found.stages] == [
        ("solve", True, "head", True),
        ("main", False, 2, False),
    ]
    assert (found.weight_ema, found.cached_views) == (0.98, 0)
    longer = resolve(read(train__preset="finetune", train__epochs=12, train__lr=1e-4), LAPTOP)
    assert [(s.epochs, s.lr) for s in longer.stages] == [(6, None), (12, 1e-4)]
    server = resolve(read(train__preset="finetune"), SERVER)
    assert (server.backbone, [s.solved for s in server.stages]) == ("resnet50", [False, False])


@pytest.mark.parametrize("change", [{"solvable_warmup": False}, {"samples": 10**9}])
def test_a_warmup_that_cannot_be_solved_trains_the_head_in_steps(change):
    found = resolve(read(train__preset="finetune"), LAPTOP.model_copy(update=change))
    assert [(s.name, s.epochs, s.lr, s.trainable) for s in found.stages] == [
        ("warmup", 5, 3e-3, "head"),
        ("main", 6, 1e-3, 2),
    ]


def test_a_stage_may_solve_the_head_before_others_train():
    stages = [{"name": "solve", "logit_variances": [1.0], "trainable": "head"}, STAGE]
    found = resolve(read(train__stages=stages), LAPTOP)
    assert [(s.name, s.epochs, s.solved) for s in found.stages] == [("solve", 1, True), ("main", 2, False)]
    with pytest.raises(ConfigError, match="stage 'solve' solves the head, but this method compares views or changes"):
        resolve(read(train__stages=stages), LAPTOP.model_copy(update={"solvable": False}))


def test_stages_replace_those_of_the_preset():
    stages = resolve(read(train__stages=[STAGE | {"trainable": 2}]), LAPTOP).stages
    assert stages == (StageConfig(name="main", epochs=2, lr=1e-3, trainable=2),)


def test_views_are_cached_where_every_stage_trains_the_head():
    head = STAGE | {"trainable": "head"}
    assert resolve(read(train__stages=[head]), LAPTOP).cached_views == 8
    assert resolve(read(train__stages=[head, STAGE]), LAPTOP).cached_views == 0
    assert resolve(read(train__stages=[head], train__preset="paper"), LAPTOP).cached_views == 0
    assert resolve(read(train__stages=[head], train__preset="paper", train__cached_views=3), LAPTOP).cached_views == 3


def test_the_last_epoch_is_a_choice_where_epochs_follow_each_other():
    """Of a single solution, of steps, and of steps after a solved warm-up."""
    single = {"name": "solve", "logit_variances": [1.0], "trainable": "head"}
    assert resolve(read(train__select="last", train__stages=[single]), LAPTOP).select == "last"
    assert resolve(read(train__select="last", train__preset="views"), LAPTOP).select == "last"
    assert resolve(read(train__select="last", train__preset="finetune"), LAPTOP).stages[0].solved


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train__stages": [STAGE], "train__epochs": 3},
         "epochs changes the preset's stages; set it in train.stages instead."),
        ({"train__stages": [STAGE], "train__epochs": 3, "train__lr": 1.0},
         "epochs and train.lr change the preset's stages; set them in train.stages instead."),
        ({"train__stages": [STAGE], "train__cached_views": 2},
         'train.cached_views needs a frozen trunk: give every stage trainable = "head", or set it to 0.'),
        ({"augment__policy": "none", "augment__flip": True},
         'augment.flip = true would do nothing: augment.policy = "none" shows the whole photo, never flipped; leave it '
         'out, or use the policy "coco" or "imagenet".'),
        ({"augment__policy": "none", "augment__flip": True, "augment__min_area": 0.5},
         'augment.min_area = 0.5 and augment.flip = true would do nothing: augment.policy = "none" shows the whole '
         'photo, never flipped; leave it out, or use the policy "coco" or "imagenet".'),
        ({"augment__min_area": 0.5, "augment__max_area": 0.25},
         "augment.min_area = 0.5 is above augment.max_area = 0.25; give the smaller number to min_area."),
        ({"augment__max_area": 0.2},
         "augment.min_area = 0.25 is above augment.max_area = 0.2; give the smaller number to min_area."),
        ({"augment__policy": "none", "augment__max_area": 0.5},
         'augment.max_area = 0.5 would do nothing: augment.policy = "none" shows the whole photo, never flipped; leave '
         'it out, or use the policy "coco" or "imagenet".'),
        ({"train__precision": "fp16"}, 'train.precision = "fp16" needs a GPU; use bf16 or no.'),
        ({"train__stages": []}, "train.stages have no epochs; give at least one stage epochs above 0."),
        ({"train__stages": [STAGE | {"epochs": 0}]},
         "train.stages have no epochs; give at least one stage epochs above 0."),
        ({"train__stages": [STAGE, STAGE | {"name": "late", "warmup": True}]},
         "stage 'late' has warmup = true but comes after a stage without; warm-up stages come first."),
        ({"train__select": "last"},
         'train.select = "last" cannot choose among the 6 logit_variances of stage \'solve\': use "auto", which '
         "chooses on validation; or give the stage a single one in train.stages; or train in steps (preset='views')."),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other(changes, message):
    with pytest.raises(ConfigError) as error:
        resolve(read(**changes), LAPTOP)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("changes", "facts", "message"),
    [
        ({"train__stages": [STAGE], "train__epochs": 3, "train__lr": 1.0}, {},
         "--epochs and --lr change the preset's stages; set them in train.stages instead."),
        ({"train__minutes": 2.5, "train__epochs": 3}, {},
         "--minutes 2.5 chooses the number of epochs, and --epochs gives it; leave one of them out."),
        ({"train__minutes": 2.5, "train__stages": [STAGE]}, {},
         "--minutes 2.5 chooses the number of epochs, and train.stages gives it; leave one of them out."),
        ({"train__minutes": 2, "train__preset": "cpu"}, {},
         "--minutes 2 chooses how long to fine-tune, and --preset cpu trains only the head; leave one of them out."),
        ({"train__minutes": 2}, {"processes": 2},
         "--minutes 2 is for one process, and there are 2; give --epochs instead."),
        ({"train__preset": "paper"}, {"processes": 3},
         "preset 'paper' trains on 8 photos in a step, which 3 processes cannot share equally. Start one process, or "
         "2, 4, 8; or set --batch-size, the photos of each process, and --lr."),
        ({"train__minutes": 2, "search__sizes": [64]}, {},
         "--minutes chooses what is tried first, and search gives it; leave one of them out."),
        ({"objective__name": "bce", "search__methods": ["an"]}, {},
         "search.methods tries several values, and --method bce fixes one; leave one of them out."),
        ({"augment__size": 64, "search__sizes": [64]}, {},
         "search.sizes tries several values, and augment.size = 64 fixes one; leave one of them out."),
    ],
)  # fmt: skip
def test_the_command_line_names_the_flags_that_contradict(changes, facts, message):
    config, about = read(**changes), LAPTOP.model_copy(update=facts)
    with command_line(), pytest.raises(ConfigError) as error:
        candidates(config, resolve(config, about), about)
    assert str(error.value) == message


def test_the_reason_for_steps_names_the_flags():
    config = read(train__epochs=3, train__batch_size=2, augment__flip=True)
    with command_line():
        assert why_in_steps(config, LAPTOP) == "--epochs, --batch-size, augment.flip need training in steps"
    assert why_in_steps(config, LAPTOP) == "epochs, train.batch_size, augment.flip need training in steps"


# --- answers

ANSWERED = LAPTOP.model_copy(update={"answers": True, "open_answer_weight": True})


def test_a_solved_head_chooses_the_weight_of_answers():
    (stage,) = resolve(read(), ANSWERED).stages
    assert (stage.answer_weights, stage.epochs) == ((4, 1, 16), 10)
    for facts in (
        LAPTOP,
        ANSWERED.model_copy(update={"answers": False}),
        ANSWERED.model_copy(update={"open_answer_weight": False}),
    ):
        (stage,) = resolve(read(), facts).stages
        assert (stage.answer_weights, stage.epochs) == ((), 6)
    finetune = resolve(read(train__preset="finetune"), ANSWERED)  # solves the head in the warm-up only
    assert not any(stage.answer_weights for stage in finetune.stages)
    one = {"name": "solve", "logit_variances": [1.0], "trainable": "head"}
    (stage,) = resolve(read(train__stages=[one], train__select="last"), ANSWERED).stages
    assert stage.answer_weights == ()


def test_weights_of_answers_that_cannot_be_tried():
    solve = {"name": "solve", "logit_variances": [0.1, 1.0], "answer_weights": [1, 2, 3], "trainable": "head"}
    (stage,) = resolve(read(train__stages=[solve]), ANSWERED).stages
    assert (stage.answer_weights, stage.epochs) == ((1, 2, 3), 6)
    steps = STAGE | {"trainable": "head"}
    for facts, stages, why in (
        (ANSWERED.model_copy(update={"answers": False}), [solve], "no training label is an answer (answers='RUN')"),
        (ANSWERED.model_copy(update={"open_answer_weight": False}), [solve],
         "the method does not weigh answers, or objective.answer_weight fixes their weight"),
        (ANSWERED, [solve, steps], "only the last stage can choose the weight"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as error:
            resolve(read(train__stages=stages), facts)
        assert str(error.value) == f"stage 'solve' has answer_weights, but {why}; leave them out."


def test_the_pools_are_those_of_the_nets():
    """Written out twice, because nets and configuration do not know each other."""
    for model in (ModelConfig, Resolved):
        assert get_args(model.model_fields["pool"].annotation) == get_args(PoolName)


def test_toml_brings_what_was_resolved_back():
    resolved = resolve(read(train__preset="paper"), SERVER)
    assert Resolved.model_validate(tomllib.loads(dump_toml(resolved))) == resolved
