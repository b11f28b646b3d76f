"""A head solved to the end: scikit-learn's optimum, one commit a solution, the same bits after an interruption."""

from pathlib import Path

import numpy as np
import pytest
import torch
from fits import assert_same_run, take
from sklearn.linear_model import LogisticRegression
from two_processes import both, load

from fewtags.config.sections import StageConfig
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.events import Ended, EpochEnded, Saved, StepEnded
from fewtags.engine.fit import Fit
from fewtags.engine.solve import ChannelStatistics, HeadSolver, Trial, channel_statistics, next_trial
from fewtags.errors import ConfigError, TrainingError
from fewtags.labels import Label
from fewtags.losses.partial import assume_negative
from fewtags.nets.spatial import HeadPlan, SpatialHead
from fewtags.objectives.assume_negative import AssumeNegative
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.stores.shard import Shard

WORKER = Path(__file__).with_name("solve_worker.py")


@pytest.fixture(scope="module")
def worker():
    return load(WORKER)


def features(n=60, d=7, seed=0):
    """Channels of very different scales and means."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-2, 1, d) + rng.normal(size=d)
    return torch.from_numpy(x).float()


def labels(x, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    scores = ((x - x.mean(0)) / x.std(0)).numpy() @ rng.normal(size=(x.shape[1], classes)) + rng.normal(
        size=(len(x), classes)
    )
    return torch.from_numpy(np.where(scores > 0.5, Label.POSITIVE, Label.UNKNOWN).astype(np.int8))


def solve(head, x, y, variance, samples=None):
    def loss():
        value = y.shape[1] * assume_negative(head(x[:, :, None, None]).logits, y)
        value.backward()
        return value.detach()

    statistics = channel_statistics(x[None, :, :, None, None], len(x))
    return HeadSolver(head, statistics, max_iterations=500).minimise(loss, variance, samples or len(x))


@pytest.mark.parametrize("variance", [0.1, 1.0, 10.0])
def test_the_optimum_is_that_of_scikit_learn(variance):
    """A scaler and one-vs-rest LogisticRegression(C = variance / d), its weights folded back to unscaled features."""
    x = features()
    y, d = labels(x), x.shape[1]
    head = SpatialHead(d, 3)
    solve(head, x, y, variance)
    mean, std = x.double().mean(0).numpy(), x.double().std(0, correction=0).numpy()
    for c in range(3):
        oracle = LogisticRegression(C=variance / d, tol=1e-8, max_iter=10_000)
        oracle.fit((x.double().numpy() - mean) / std, (y[:, c] == Label.POSITIVE).numpy())
        weight = oracle.coef_[0] / std
        np.testing.assert_allclose(head.weight[c].detach().numpy() * std, oracle.coef_[0], atol=2e-3)
        np.testing.assert_allclose(head.bias[c].item(), oracle.intercept_[0] - weight @ mean, atol=5e-3)


def test_the_start_does_not_decide():
    x = features()
    y = labels(x)
    heads = [SpatialHead(7, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    values = [solve(head, x, y, 1.0) for head in heads]
    assert values[0] == pytest.approx(values[1], rel=1e-4)
    np.testing.assert_allclose(*(head.predict_logits(x[:, :, None, None]).detach() for head in heads), atol=5e-3)


def test_the_value_is_the_loss_and_the_penalty():
    """d / (2 c N) |v|^2 with v = weight x std: 2 channels of std 1 and 2, c = .5, N = 4, one class."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 4.0], [-1.0, 4.0]])
    y = torch.full((4, 1), Label.UNKNOWN, dtype=torch.int8)
    y[0] = Label.POSITIVE
    head = SpatialHead(2, 1)
    value = solve(head, x, y, 0.5)
    v = head.weight.detach()[0] * torch.tensor([1.0, 2.0])
    loss = assume_negative(head.predict_logits(x[:, :, None, None]), y)
    assert value == pytest.approx(float(loss.detach() + 2 / (2 * 0.5 * 4) * v.square().sum()), rel=1e-5)


def test_a_kernel_of_three_is_scaled_but_not_centred():
    x = features()[:, :, None, None] + torch.zeros(1, 1, 3, 3)
    head = SpatialHead(7, 2, plan=HeadPlan(kernel=3))
    y = labels(features(), 2)

    def loss():
        value = 2 * assume_negative(head(x).logits, y)
        value.backward()
        return value.detach()

    before = float(assume_negative(head(x).logits.detach(), y))
    HeadSolver(head, channel_statistics(x[None], len(x))).minimise(loss, 1.0, len(x))
    assert head.weight.shape == (2, 7, 3, 3)
    assert float(assume_negative(head(x).logits.detach(), y)) < 0.8 * before


def test_statistics_by_hand():
    """Two views of two images: pooled values 1, 3 and 5, 7 have mean 4 and variance 5; the other channel is 1."""
    views = torch.tensor([[[0.0, 2.0], [2.0, 4.0]], [[4.0, 6.0], [6.0, 8.0]]])  # view, image, two cells
    x = torch.stack([views, torch.ones_like(views)], 2)[:, :, :, None, :]
    found = channel_statistics(x, 2)
    assert found.mean.tolist() == [4.0, 1.0]
    np.testing.assert_allclose(found.std, [5**0.5, 1e-6 + 1e-4], rtol=1e-6)


# --- weights of answers


def trials(variances, weights, values):
    return [next_trial(variances, weights, values[:n]) for n in range(len(values))]


def test_the_order_of_a_search():
    """The best of .1, 1, 10 with weight 4 is 1; with weight 1 then 10 is the best so far, so the pair is 1 and 10."""
    values = [0.2, 0.5, 0.4, 0.3, 0.6, 0.1, 0.1]
    found = [(t.variance, t.answer_weight) for t in trials([0.1, 1.0, 10.0], [4.0, 1.0, 16.0], values)]
    assert found == [(0.1, 4), (1, 4), (10, 4), (1, 1), (10, 1), (1, 16), (10, 16)]
    # Without a number nothing is better than the first.
    found = [(t.variance, t.answer_weight) for t in trials([0.1, 1.0], [4.0, 1.0], [float("nan")] * 4)]
    assert found == [(0.1, 4), (1, 4), (0.1, 1), (1, 1)]
    assert trials([3.0], [4.0, 1.0], [0.1, 0.1]) == [Trial(3.0, 4.0), Trial(3.0, 1.0)]
    assert trials([3.0, 1.0], [], [0.1, 0.1]) == [Trial(3.0), Trial(1.0)]


SEARCH = (
    StageConfig.model_validate(
        {"name": "solve", "logit_variances": (0.1, 1.0, 10.0), "answer_weights": (4.0, 1.0), "trainable": "head"}
    ),
)


def test_weights_of_answers_are_tried_with_the_best_variance(worker, tmp_path):
    """A larger weight makes the loss larger; an interrupted search goes on with the same trials, to the same bits."""
    whole = make_fit(worker, tmp_path / "whole", stages=SEARCH)
    records = [event.record for event in take(whole) if isinstance(event, EpochEnded)]
    best = max(records[:3], key=lambda record: record["val/mAP"])["logit_variance"]
    pair = [1.0, 10.0] if best > 0.1 else [0.1, 1.0]
    assert [(r["logit_variance"], r["answer_weight"]) for r in records] == [
        (0.1, 4), (1, 4), (10, 4), (pair[0], 1), (pair[1], 1)
    ]  # fmt: skip
    at = {(r["logit_variance"], r["answer_weight"]): r["train/loss"] for r in records}
    assert at[pair[1], 1] < at[pair[1], 4]
    take(make_fit(worker, tmp_path / "cut", stages=SEARCH), 4)
    fit = make_fit(worker, tmp_path / "cut", stages=SEARCH)
    take(fit, resume=True)
    assert_same_solution(fit, tmp_path / "cut", whole, tmp_path / "whole")


def test_no_weight_is_tried_if_validation_cannot_compare(worker):
    events = take(make_fit(worker, None, stages=SEARCH, val_unknown=True, val_empty=True))
    assert sum(isinstance(event, EpochEnded) for event in events) == 3
    assert events[-1] == Ended(3, None, None)


def make_fit(worker, out, objective=None, **options):
    return worker.make_fit(out, Shard(), objective, **options)


def test_each_prior_variance_is_an_epoch(worker, tmp_path):
    fit = make_fit(worker, tmp_path)
    events = take(fit)
    records = [event.record for event in events if isinstance(event, EpochEnded)]
    assert [record["logit_variance"] for record in records] == [0.1, 1.0, 10.0]
    assert "lr" not in records[0]
    assert records[0]["train/loss"] > records[1]["train/loss"] > records[2]["train/loss"]
    assert sum(isinstance(event, StepEnded) for event in events) == sum(isinstance(e, Saved) for e in events) == 3
    # Scores are averaged once a solution.
    assert fit.parts["scores"].state_dict()["visits"].tolist() == [3] * worker.SAMPLES


def with_heatmaps():
    return ExpectedNegative(positives_per_image=1.5, scl_weight=0.0, heatmap_patch_weight=1.0)


@pytest.mark.parametrize("stop", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "prototypes", "heatmaps"])
def test_a_resumed_run_has_the_same_bits(worker, tmp_path, stop, kind):
    make = {"plain": lambda: None, "prototypes": worker.with_prototypes, "heatmaps": with_heatmaps}[kind]
    whole = make_fit(worker, tmp_path / "whole", make())
    take(whole)
    take(make_fit(worker, tmp_path / "cut", make()), stop)
    fit = make_fit(worker, tmp_path / "cut", make())
    take(fit, resume=True)
    assert_same_solution(fit, tmp_path / "cut", whole, tmp_path / "whole")


def assert_same_solution(fit, out, whole, whole_out):
    """As `assert_same_run`, whose optimisers have a state that a solved head has not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fits.load_pickled", lambda _: {"optimizer": {"state": {}}})
        assert_same_run(fit, out, whole, whole_out)


def test_steps_after_a_solution(worker, tmp_path):
    """A stage of steps goes on from the solved head, and resumes within itself."""
    stages = (*worker.STAGES, StageConfig(name="steps", epochs=2, lr=1e-3, trainable="head"))
    whole = make_fit(worker, tmp_path / "whole", stages=stages)
    events = take(whole)
    records = [event.record for event in events if isinstance(event, EpochEnded)]
    assert [record["stage"] for record in records] == ["solve"] * 3 + ["steps"] * 2
    assert records[3]["train/loss"] < 1.5 * records[2]["train/loss"]
    for stop in (2, 3, 5):
        out = tmp_path / str(stop)
        take(make_fit(worker, out, stages=stages), stop)
        fit = make_fit(worker, out, stages=stages)
        take(fit, resume=True)
        assert_same_run(fit, out, whole, tmp_path / "whole")


def test_averaged_weights_are_those_of_the_solution(worker, tmp_path):
    """Strong and weak regularisation are not averaged; steps that follow are, from the last solution on."""
    stages = (*worker.STAGES, StageConfig(name="steps", epochs=1, lr=1e-2, trainable="head"))
    fit = make_fit(worker, tmp_path, stages=stages, weight_ema=0.5)
    for event in fit.run():
        if isinstance(event, StepEnded):
            same = torch.equal(fit.evaluated.head.weight, fit.net.head.weight)
            assert same is (event.global_step <= 3 + 1)  # the first step after a solution starts the average


def test_features_that_are_not_finite_leave_everything_as_it_was(worker, tmp_path):
    fit = make_fit(worker, tmp_path)
    fit.fixed.filled.features[0, 3, 2] = float("nan")
    fit.fixed.statistics = lambda _: ChannelStatistics(torch.zeros(worker.DIM), torch.ones(worker.DIM))
    before = [p.clone() for p in fit.net.head.parameters()]
    with pytest.raises(TrainingError, match=r"the loss is nan for logit variance 0.1 in epoch 0; weights and stores"):
        take(fit)
    assert all(torch.equal(p, q) for p, q in zip(fit.net.head.parameters(), before, strict=True))
    assert not fit.parts["scores"].state_dict()["visits"].any()


def test_the_fallback_chooses_where_no_negative_is_known(worker):
    """Known positives alone: unknown cells count as absent in the choice of how strongly to regularise."""
    fit = make_fit(worker, None, val_unknown=True)
    best = [event.best for event in take(fit) if isinstance(event, EpochEnded)]
    assert any(best)
    assert fit.state.best_value == pytest.approx(max(r["val/pessimistic_mAP"] for r in fit.state.history))


def test_epochs_in_steps_are_measured_as_the_solutions_before_them(worker):
    """Without known negatives, too: the best of all epochs is kept, be it a solution or not."""
    stages = (*worker.STAGES, StageConfig(name="steps", epochs=2, lr=1e-2, trainable="head"))
    fit = make_fit(worker, None, stages=stages)
    values = iter([0.1, 0.3, 0.2, 0.5, 0.4])
    fit.validate = lambda _: {"pessimistic_mAP": next(values)}
    best = [event.best for event in take(fit) if isinstance(event, EpochEnded)]
    assert best == [True, True, False, True, False]
    assert (fit.state.best_epoch, fit.state.best_value) == (3, 0.5)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return both(WORKER, tmp_path_factory.mktemp("two"))


def test_two_processes_solve_what_one_does(worker, two):
    fit = make_fit(worker, None)
    take(fit)
    for key, value in fit.net.head.state_dict().items():
        assert torch.equal(two[0]["head"][key], two[1]["head"][key])
        torch.testing.assert_close(two[0]["head"][key], value, rtol=2e-2, atol=2e-3)
    for rank in range(2):
        own = Shard(rank, 2).owned(worker.SAMPLES)
        scores = fit.parts["scores"].state_dict()["values"]
        torch.testing.assert_close(two[rank]["scores"], scores[own], rtol=0, atol=2e-3)


def test_two_processes_have_the_prototypes_and_the_cuts_of_one(worker, two):
    ranked = make_fit(worker, None, worker.with_prototypes())
    take(ranked)
    made = ranked.parts["prototypes"].state_dict()
    assert (made["second"] > 0).all()
    for rank in range(2):
        own, found = Shard(rank, 2).owned(worker.SAMPLES), two[rank]["prototypes"]
        for name in ("vectors", "own"):
            torch.testing.assert_close(found[name], made[name])
        torch.testing.assert_close(found["values"], made["values"][own])
        torch.testing.assert_close(found["second"], made["second"], rtol=2e-2, atol=0)
        assert torch.equal(found["second"], two[0]["prototypes"]["second"])
        torch.testing.assert_close(
            two[rank]["cuts"]["cut_score"], ranked.parts["expected_positives"].cut_score, rtol=2e-2, atol=2e-3
        )


def test_a_solved_stage_needs_fixed_features(worker):
    whole = make_fit(worker, None)
    with pytest.raises(ConfigError, match="needs a classifier and its fixed features"):
        Fit(
            whole.net,
            AssumeNegative(),
            whole.source,
            whole.config,
            whole.problem,
            accelerator=make_accelerator(cpu=True),
            model=whole.net.head,
        )


def test_images_in_order_are_those_of_the_batches(worker):
    source = make_fit(worker, None).fixed
    found = list(source.in_order(0, 7))
    assert torch.cat([batch.index for batch in found]).tolist() == list(range(worker.SAMPLES))
    assert [len(batch.index) for batch in found] == [7, 7, 7, 2]
    for batch in source.batches(0):
        torch.testing.assert_close(batch.images, torch.cat([b.images for b in found])[batch.index], rtol=0, atol=0)
