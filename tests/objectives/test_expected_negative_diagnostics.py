"""What expected negatives log, and that they never wait for a device."""

import numpy as np
import pytest
import torch
from expected_cases import NET, N, P, U, batch_of, int8, problem_of, visit
from torch.utils._python_dispatch import TorchDispatchMode

from fewtags.labels import LabelMatrix
from fewtags.objectives.expected_negative import ExpectedNegative

# --- diagnostics


def test_diagnostics_by_hand():
    """Five images, one class; s after one visit with mu = 0: .75 (annotated), .5, .5, .25, .25; sum 2.25.

    K = .6 and one annotation: p = .6 * 5 * 1 / 1 = 3, images 0, 1 and 2. Truth of the unannotated ones: 1 yes, 2 not
    known, 3 yes, 4 no. Expected and judged: 1, rightly; truly positive: 1 and 3.
    """
    labels, truth = int8([[P], [U], [U], [U], [U]]), np.array([[P], [P], [U], [P], [N]], np.int8)
    method = ExpectedNegative(positives_per_image=0.6, momentum=0.0, scl_weight=0.0)
    method.setup(NET, problem_of(labels, truth=LabelMatrix.from_dense(truth)))
    assert method.on_epoch_start(0) == {}
    third = np.log(3)
    visit(method, batch_of([[third], [0.0], [0.0], [-third], [-third]], labels), 0)
    assert method.on_epoch_start(1) == pytest.approx(
        {
            "predicted_positives_per_image": 2.25 / 5,
            "expected_positives_per_image": 3 / 5,
            "expected_positives_precision": 1.0,
            "expected_positives_recall": 0.5,
        }
    )


def test_diagnostics_count_right_guesses_and_leave_out_what_is_annotated():
    """Two of three expected cells are unannotated, one of them right; two unannotated cells are truly positive."""
    labels = int8([[P, U], [U, U], [U, P]])
    truth = LabelMatrix.from_dense(np.array([[P, P], [P, N], [N, P]], np.int8))
    method = ExpectedNegative(class_prior=(2 / 3, 2 / 3), momentum=0.0, scl_weight=0.0)
    method.setup(NET, problem_of(labels, truth=truth))
    visit(method, batch_of([[2.0, -3.0], [1.0, 2.0], [-3.0, 3.0]], labels), 0)
    found = method.on_epoch_start(1)
    assert found["expected_positives_per_image"] == pytest.approx(4 / 3)  # (0,0) (1,0) (2,1) (1,1)
    assert found["expected_positives_precision"] == pytest.approx(1 / 2)  # (1,0) yes, (1,1) no
    assert found["expected_positives_recall"] == pytest.approx(1 / 2)  # (1,0) of (1,0), (0,1)


def test_without_truth_or_ranking_there_is_less_to_report():
    labels = int8([[P, U], [U, P]])
    method = ExpectedNegative(positives_per_image=1.0, scl_weight=0.0)
    method.setup(NET, problem_of(labels, warmup_epochs=2))
    assert set(method.on_epoch_start(1)) == {"predicted_positives_per_image"}
    assert set(method.on_epoch_start(2)) == {"predicted_positives_per_image", "expected_positives_per_image"}


def test_ratios_without_a_denominator_are_left_out():
    """Everything is annotated: no unannotated cell is expected, none is positive."""
    labels = int8([[P, N], [N, P]])
    method = ExpectedNegative(positives_per_image=1.0, scl_weight=0.0)
    method.setup(NET, problem_of(labels, truth=LabelMatrix.from_dense(labels.numpy())))
    assert set(method.on_epoch_start(1)) == {"predicted_positives_per_image", "expected_positives_per_image"}


def test_blocks_of_classes_give_the_same_epoch_start(monkeypatch):
    """With 1.3 million images a block is a few classes wide; here one."""
    import fewtags.objectives.ranking as module

    rng = np.random.default_rng(3)
    labels = torch.from_numpy(rng.choice(np.array([P, U, U, N], np.int8), size=(9, 5)))
    truth = LabelMatrix.from_dense(rng.choice(np.array([P, N], np.int8), size=(9, 5)))
    batch, states = batch_of(rng.normal(size=(9, 5)), labels), []
    for cells in (module.BLOCK_CELLS, 9):
        monkeypatch.setattr(module, "BLOCK_CELLS", cells)
        method = ExpectedNegative(positives_per_image=2.0, scl_weight=0.0)
        parts = method.setup(NET, problem_of(labels, truth=truth))
        visit(method, batch, 0)
        found = method.on_epoch_start(1)
        states.append((found, *(t.tolist() for t in parts["expected_positives"].state_dict().values())))
    assert states[0][1:] == states[1][1:]
    assert states[0][0] == pytest.approx(states[1][0])


# --- speed that can be counted


class Waits(TorchDispatchMode):
    """Collects operations that make the host wait for a GPU: reading a value, or a shape that depends on values."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else []
        if name in ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "unique", "_unique2") or any(
            i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices
        ):
            self.found.append(name)
        return func(*args, **kwargs or {})


def test_the_counter_sees_waits():
    with Waits() as waits:
        values = torch.ones(3)
        values[values > 0].sum().item()
    assert len(waits.found) >= 2


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"heatmap_top_k": 2, "corrected_averages": True, "heatmap_rounding": "stochastic"},
        {"heatmap_patch_weight": 1.0, "prototype_weight": 0.5},
    ],
)
def test_step_and_commit_never_wait_for_the_device(options):
    labels = int8([[P, U, N], [U, P, U]])
    method = ExpectedNegative(positives_per_image=1.0, cl_weight=1.0, scl_weight=1.0, ramp_epochs=3, **options)
    method.setup(NET, problem_of(labels, grid=(2, 2), features_dim=3))
    method.on_epoch_start(0)
    batch = batch_of(torch.zeros(2, 3, 2, 2), labels)
    visit(method, batch, 0)
    method.on_epoch_start(1)
    with Waits() as waits:
        visit(method, batch, 1)
    assert waits.found == []
