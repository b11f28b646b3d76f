"""A calibrated head: logits of every pool, what cannot be calibrated, and metadata."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_model import make_model

from fewtags.engine.calibration import assumed_share, calibrated, refuse_pool, stored_calibration
from fewtags.engine.model import check_info
from fewtags.errors import CheckpointError, ConfigError
from fewtags.metrics.calibration import Calibration
from fewtags.nets.pool import Pool
from fewtags.nets.spatial import HeadPlan, SpatialHead, SpatialNet

INFO = make_model()[1]
CHANGE = Calibration(1.7, np.array([-2.0, 0.3, 1.0]))


def tiny(plan):
    generator = torch.Generator().manual_seed(1)
    head = SpatialHead(4, 3, plan=plan, generator=generator)
    with torch.no_grad():
        head.weight.normal_(0, 1, generator=generator)
        head.bias.normal_(0, 1, generator=generator)
    net = SpatialNet(torch.nn.Conv2d(3, 4, 3, bias=False), head)
    return net.eval(), torch.randn(5, 3, 9, 9, generator=generator)


@pytest.mark.parametrize(
    "plan",
    [
        HeadPlan(),
        HeadPlan(3),
        HeadPlan(1, Pool("max")),
        HeadPlan(1, Pool("lse", 2.0)),
        HeadPlan(1, Pool("softmax", 0.5)),
        HeadPlan(1, Pool("csra", 2.0, weight=0.3)),
    ],
    ids=str,
)
def test_logits_of_every_pool_follow(plan):
    net, images = tiny(plan)
    info = replace(INFO, head=plan)
    with torch.no_grad():
        before = net.predict_logits(images).numpy()
        changed, described = calibrated(net, info, CHANGE, "a test")
        assert changed.predict_logits(images).numpy() == pytest.approx(CHANGE.logits(before), abs=1e-5)
        assert net.predict_logits(images).numpy() == pytest.approx(before)
        again, restored = calibrated(changed, described, Calibration.none(3), None)
        assert again.predict_logits(images).numpy() == pytest.approx(before, abs=1e-5)
    assert described.head == changed.head.plan
    assert stored_calibration(described).offsets.tolist() == CHANGE.offsets.tolist()
    assert restored.calibration is None
    assert restored.thresholds == pytest.approx(info.thresholds)
    assert restored.head.pool.temperature == pytest.approx(plan.pool.temperature)


@pytest.mark.parametrize("pool", ["boost", "mean_prob"])
def test_pools_that_do_not_follow_are_refused(pool):
    with pytest.raises(ConfigError, match=f"pool '{pool}' cannot be calibrated"):
        refuse_pool(replace(INFO, head=HeadPlan(1, Pool(pool))))


@pytest.mark.parametrize("change", [{"slope": 0.0}, {"slope": float("inf")}, {"offsets": (1.0,)}])
def test_damaged_metadata_is_refused(tmp_path, change):
    _, info = calibrated(tiny(HeadPlan())[0], INFO, CHANGE, "a test")
    check_info(tmp_path, info, "")
    damaged = replace(info, calibration=replace(info.calibration, **change))
    with pytest.raises(CheckpointError, match="a calibration has a slope above 0"):
        check_info(tmp_path, damaged, "")


def test_share_without_a_method_that_knows_it():
    """Half or fewer cells known: twice the positives that are known."""
    labels = np.array([[1, 0, 0], [0, 0, 0]], np.int8)
    assert assumed_share(replace(INFO, method={"name": "x"}), labels).sum() == pytest.approx(1.0)


def test_the_same_calibration_again_changes_no_bit():
    """A command that failed while it wrote the evaluations is given again."""
    net, info = make_model()
    wanted = Calibration(0.7, np.array([0.3, -0.2, 0.1]))
    once = calibrated(net, info, wanted, "labels")
    twice = calibrated(*once, wanted, "labels")
    assert twice[1] == once[1]
    assert all(torch.equal(value, once[0].state_dict()[name]) for name, value in twice[0].state_dict().items())
