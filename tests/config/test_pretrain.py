"""Presets of pretraining: the paper's settings for any number of processes."""

import pytest

from fewtags.config.parse import parse_as
from fewtags.config.presets import Facts
from fewtags.config.pretrain import PretrainConfig, PretrainResolved, resolve_pretrain
from fewtags.engine.methods import make_objective, pretrain_settings_models
from fewtags.errors import ConfigError

SERVER = Facts(samples=118_287, classes=0, device="cuda", cores=32, bf16=True)


def resolved(processes=1, *, method="mls", objective=None, **train):
    tree = {
        "data": {"train": "photos"},
        "objective": {"name": method, **(objective or {})},
        "train": {"preset": "paper", **train},
    }
    config = parse_as(PretrainConfig, tree, pretrain_settings_models(), "test")
    return resolve_pretrain(config, SERVER, make_objective(config.objective), processes)


@pytest.mark.parametrize("processes", [1, 4, 8])
def test_every_number_of_the_paper(processes):
    """MLS, section 4.1: ResNet-50 from scratch, 224 px, 400 epochs, lr .3, batch 256, BatchNorm of 8 x 32 photos."""
    found = resolved(processes)
    (stage,) = found.stages
    assert (stage.epochs, stage.lr, stage.trainable, stage.schedule) == (400, 0.3, "all", "cosine_epoch")
    assert found.batch_size * processes == 256
    assert found.objective["batchnorm_groups"] * processes == 8
    named = ("preset", "backbone", "weights", "drop_path", "size", "weight_decay", "clip_norm", "sync_batchnorm")
    assert [getattr(found, key) for key in named] == ["paper", "resnet50", "none", 0, 224, 1e-4, 0, False]
    assert found.augment.model_dump() == {
        "size": 224, "min_area": 0.2, "flip": True, "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1,
        "jitter_share": 0.8, "grey_share": 0.2, "blur_share": 0.5,
    }  # fmt: skip
    own = {"precision", "workers", "seed", "checkpoint_every_steps", "collapse", "photo_cache"}  # not of the paper
    assert {*PretrainResolved.model_fields} == {*named, *own, "augment", "objective", "stages", "batch_size"}


@pytest.mark.parametrize(("method", "lr"), [("moco", 0.3), ("densecl", 0.3), ("nnclr", 0.3), ("simsiam", 0.05)])
def test_other_methods_have_the_same_step(method, lr):
    for processes in (1, 2, 8):
        found = resolved(processes, method=method)
        assert found.stages[0].lr == pytest.approx(lr)
        assert found.objective.get("batchnorm_groups", 8 // processes) * processes == 8


def test_own_batches_and_groups_stay():
    """The learning rate follows the photos in a step; groups have 32 photos as far as the batch reaches."""
    found = resolved(2, batch_size=64)
    assert (found.batch_size, found.stages[0].lr, found.objective["batchnorm_groups"]) == (64, 0.15, 2)
    assert resolved(1, batch_size=8).objective["batchnorm_groups"] == 1
    assert resolved(objective={"batchnorm_groups": 2}).objective["batchnorm_groups"] == 2
    assert resolved(preset="small").objective["batchnorm_groups"] == 1


def test_photos_that_cannot_be_shared():
    with pytest.raises(ConfigError, match="'paper' trains on 256 photos in a step, which 3 processes cannot share"):
        resolved(3)
