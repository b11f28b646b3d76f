import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fewtags.errors import ConfigError
from fewtags.labels import Label
from fewtags.losses import partial
from fewtags.losses.selective import PerLabel, patch_loss, patch_selectivity, selective_loss, selectivity

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "patch_losses.json").read_text())
P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN
STATE = {1: P, 0: N, -1: U}  # the encoding of the golden file
FLAT = PerLabel(0.0, 0.0, 0.0)


def int8(rows):
    return torch.tensor(rows, dtype=torch.int8)


def float64(rows):
    return torch.tensor(rows, dtype=torch.float64)


def per_label(*values):
    return PerLabel(*map(float, values))


def from_golden(rows):
    return int8(np.vectorize(STATE.get)(np.array(rows, int)).tolist())


def gradient(loss, logits):
    (grad,) = torch.autograd.grad(loss, logits)
    return grad


# --- derived by hand


def test_three_cells_by_hand():
    """f = 3/4 in all cells: positive, negative, unknown with omega 1/2; gammas 1, 2, 3; weights 2, 3, 4.

    2 (1/4) log(4/3) + 3 (3/4)^2 log 4 + (1/2) 4 (3/4)^3 log 4; the mean runs over 4 cells, one of them ignored.
    """
    logits, labels = float64([[math.log(3)] * 4]), int8([[P, N, U, U]])
    loss = selective_loss(
        logits, labels, float64([[1, 1, 0.5, 0]]), gammas=per_label(1, 2, 3), weights=per_label(2, 3, 4)
    )
    log4 = math.log(4)
    assert loss.item() == pytest.approx((math.log(4 / 3) / 2 + 27 / 16 * log4 + 27 / 32 * log4) / 4, rel=1e-12)


def test_the_focal_weight_is_detached():
    """f = 1/2, gamma 2: d/dx of -(1/4 held fixed) log f is -(1/4)(1 - f) = -1/8 for a positive, 1/8 for a negative.

    Were it part of the gradient, the positive would get another 2 (1 - f) f (1 - f) log f = -.17.
    """
    logits = float64([[0.0, 0.0]]).requires_grad_()
    loss = selective_loss(logits, int8([[P, N]]), torch.ones(1, 2), gammas=per_label(2, 2, 0))
    np.testing.assert_allclose(gradient(loss, logits) * 2, [[-1 / 8, 1 / 8]], rtol=1e-12)


def test_clip_by_hand():
    """clip 1/4. f = 1/4: q = 1, nothing. f = 3/4: q = 1/2, (1/2)^1 log 2; d/dx = (1/2) f (1 - f) / q = 3/16."""
    logits = float64([[-math.log(3) - 1e-9, math.log(3)]]).requires_grad_()
    loss = selective_loss(logits, int8([[N, N]]), torch.ones(1, 2), gammas=per_label(0, 1, 0), clip=0.25)
    assert loss.item() == pytest.approx(math.log(2) / 2 / 2, rel=1e-9)
    np.testing.assert_allclose(gradient(loss, logits) * 2, [[0, 3 / 16]], rtol=1e-9)


def test_the_most_likely_unknowns_are_sought_in_the_whole_batch():
    """Two images, one each in the mean: both of the highest unknown logits, 3 and 2, are in the first image.

    The positive 9 is not among them, and neither is the second image's best, 1.
    """
    logits = torch.tensor([[3.0, 2.0, 9.0], [1.0, 0.0, -1.0]])
    omega = selectivity(logits, int8([[U, U, P], [U, U, N]]), "selective", top_k=1)
    assert omega.tolist() == [[False, False, False], [True, True, False]]


def test_unknowns_of_frequent_classes_are_ignored_and_still_count_among_the_likely():
    """Class 0 has a prior of .6 > .5, class 1 of exactly .5. The one likely cell for one image is class 0's.

    Were the likely sought among what the prior has left, class 1 would be ignored too.
    """
    prior = torch.tensor([0.6, 0.5, 0.1])
    logits, labels = torch.tensor([[3.0, 2.0, 1.0]]), int8([[U, U, U]])
    omega = selectivity(logits, labels, "selective", top_k=1, prior=prior, prior_threshold=0.5)
    assert omega.tolist() == [[False, True, True]]
    assert selectivity(logits, labels, "selective", prior=prior, prior_threshold=1.0).all()
    unheard = torch.tensor([math.nan, 0.5, 0.1])  # a class of which nothing is known
    assert selectivity(logits, labels, "selective", prior=unheard, prior_threshold=0.5).all()


def test_likely_patches_are_sought_per_image_and_class():
    """Two classes with a located positive and one unknown class, k = 1 of three unknown patches each."""
    maps = torch.tensor([[[[5.0, 4.0], [3.0, 9.0]], [[0.0, -1.0], [-2.0, 7.0]], [[8.0, 8.0], [8.0, 8.0]]]])
    labels = int8([[[[U, U], [U, P]], [[U, U], [P, U]], [[U, U], [U, U]]]])
    omega = patch_selectivity(maps, labels, "selective", top_k=1)
    assert omega.int().tolist() == [[[[0, 1], [1, 0]], [[1, 1], [0, 0]], [[0, 0], [0, 0]]]]


def test_weights_of_one_pull_a_cell_as_hard_as_the_image_loss():
    """Constant maps, so that f of the image (mean pool) is f of each patch: both give (f - z) / (b c h w)."""
    maps = (torch.tensor([[0.3, -1.0], [2.0, 0.7]], dtype=torch.float64)[:, :, None, None] * torch.ones(3, 4)).double()
    maps.requires_grad_()
    labels = int8([[P, N], [N, P]])
    patches = labels[:, :, None, None].expand(2, 2, 3, 4)
    of_image = gradient(partial.bce(maps.mean((2, 3)), labels), maps)
    of_patches = gradient(patch_loss(maps, patches, torch.zeros(2, 2, 3, 4), gammas=FLAT), maps)
    np.testing.assert_allclose(of_patches, of_image, rtol=1e-12)


# --- golden values

# A normalisation by the number of annotated classes, which belongs to another method.
CASES = [c for c in GOLDEN["csl"]["cases"] if c["mode"] != "ignore_normalize_classes"]


def test_golden_cases_cover_every_mode():
    assert {case["mode"] for case in CASES} == {"ignore", "negative", "selective"}
    assert len(CASES) == len(GOLDEN["csl"]["cases"]) - 1 == 10


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['mode']}-{c['gamma']}-{c['clip']}-{c['likelihood_topk']}")
def test_golden_class_aware_selective_loss(case):
    """The peer's values are float32 sums."""
    logits = float64(GOLDEN["csl"]["logits"]).requires_grad_()
    labels = from_golden(GOLDEN["csl"]["targets"])
    prior = None if case["prior"] is None else torch.tensor(case["prior"])
    omega = selectivity(
        logits,
        labels,
        case["mode"],
        top_k=case["likelihood_topk"],
        prior=prior,
        prior_threshold=case["prior_threshold"],
    )
    assert (omega | (labels != U)).float().tolist() == case["weights"]
    gammas, weights = per_label(*case["gamma"]), per_label(*case["alpha"])
    loss = (
        selective_loss(logits, labels, omega, gammas=gammas, weights=weights, clip=float(case["clip"])) * logits.numel()
    )
    assert loss.item() == pytest.approx(case["loss"], rel=1e-6)
    np.testing.assert_allclose(gradient(loss, logits), case["grad"], rtol=1e-6, atol=2e-8)


@pytest.mark.parametrize("case", GOLDEN["asl"]["cases"], ids=lambda c: f"{c['cls']}-{c['kw']}")
def test_golden_asymmetric_loss_on_full_labels(case):
    """ASL without detached focal weights has the same value and another gradient."""
    logits, options = float64(GOLDEN["asl"]["logits"]).requires_grad_(), case["kw"]
    gammas = per_label(options["gamma_pos"], options["gamma_neg"], 9)
    labels = from_golden(GOLDEN["asl"]["targets"])
    loss = selective_loss(logits, labels, labels == U, gammas=gammas, clip=float(options["clip"])) * logits.numel()
    assert loss.item() == pytest.approx(case["loss"], rel=1e-6)
    flat = gammas[:2] == (0, 0)
    same = np.allclose(gradient(loss, logits), case["grad"], rtol=1e-6, atol=2e-8)
    assert same == (flat or options.get("disable_torch_grad_focal_loss", False))


@pytest.mark.parametrize("case", GOLDEN["own"]["patch_loss"]["cases"], ids=lambda c: c["name"])
def test_golden_patch_loss(case):
    given_values = GOLDEN["own"]["patch_loss"]
    maps = float64(given_values["spatial_logits"]).requires_grad_()
    labels = from_golden(given_values["patch_targets"])
    gammas, weights = (per_label(*(case[f"{what}{kind}"] for kind in "pnu")) for what in "gw")
    mode = "negative" if case["name"] == "negative" else "ignore"
    omega = patch_selectivity(maps, labels, mode)
    loss = patch_loss(maps, labels, omega, gammas=gammas, weights=weights) * maps.numel()
    assert loss.item() == pytest.approx(case["loss"], rel=1e-6)
    np.testing.assert_allclose(gradient(loss, maps), case["grad"], rtol=1e-6, atol=2e-8)


def test_golden_likely_patches():
    given_values, expected = GOLDEN["own"]["patch_loss"], GOLDEN["own"]["csl_p"]
    maps, labels = float64(given_values["spatial_logits"]), from_golden(given_values["patch_targets"])
    omega = patch_selectivity(maps, labels, "selective", top_k=expected["k"])
    assert omega.double().tolist() == expected["unknown_patch_weight"]


# --- a slow reference


def cell(x, state, omega, gammas, weights, clip):
    """Loss of one cell and its derivative, from probabilities."""
    f = 1 / (1 + math.exp(-x))
    if state == P:
        scale = weights.positive * (1 - f) ** gammas.positive
        return -scale * math.log(f), -scale * (1 - f)
    q = min(1, 1 - f + clip)
    gamma, weight = (gammas.negative, weights.negative) if state == N else (gammas.unknown, weights.unknown * omega)
    scale = weight * (1 - q) ** gamma
    return -scale * math.log(q), scale * f * (1 - f) / q if q < 1 else 0.0


def reference(values, labels, omega, gammas, weights, clip):
    cells = [cell(*of, gammas, weights, clip) for of in zip(values.flat, labels.flat, omega.flat, strict=True)]
    losses, slopes = (np.array(column) for column in zip(*cells, strict=True))
    return losses.mean(), slopes.reshape(values.shape) / values.size


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 17)])
@pytest.mark.parametrize("gammas", [FLAT, per_label(0, 1, 4), per_label(0.5, 2.5, 3)])
@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_selective_loss_equals_a_loop_over_cells(shape, gammas, clip):
    rng = np.random.default_rng(shape)
    values, labels, omega = rng.normal(0, 3, shape), rng.integers(-1, 2, shape), rng.random(shape)
    weights = per_label(1.5, 0.25, 0.7)
    logits = torch.tensor(values, requires_grad=True)
    given_values = (logits, int8(labels.tolist()), torch.tensor(omega))
    loss = selective_loss(*given_values, gammas=gammas, weights=weights, clip=clip)
    expected, slopes = reference(values, labels, omega, gammas, weights, clip)
    assert loss.item() == pytest.approx(expected, rel=1e-11)
    np.testing.assert_allclose(gradient(loss, logits), slopes, rtol=1e-9)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 4, 5), (3, 1, 1, 6)])
@pytest.mark.parametrize("gammas", [FLAT, per_label(0.5, 2.5, 3)])
def test_patch_loss_equals_a_loop_over_cells(shape, gammas):
    rng = np.random.default_rng(shape)
    values, labels, omega = rng.normal(0, 3, shape), rng.integers(-1, 2, shape), rng.random(shape)
    weights = per_label(1.5, 0.25, 0.7)
    maps = torch.tensor(values, requires_grad=True)
    loss = patch_loss(maps, int8(labels.tolist()), torch.tensor(omega), gammas=gammas, weights=weights)
    expected, slopes = reference(values, labels, omega, gammas, weights, 0.0)
    assert loss.item() == pytest.approx(expected, rel=1e-11)
    np.testing.assert_allclose(gradient(loss, maps), slopes, rtol=1e-9)


def loop_selectivity(logits, labels, top_k, prior, threshold):
    """Sort the unknown cells of the batch, as the text says."""
    unknown = [place for place in np.ndindex(logits.shape) if labels[place] == U]
    likely = sorted(unknown, key=lambda place: -logits[place])[: top_k * len(logits)]
    omega = np.zeros(logits.shape, bool)
    for place in unknown:
        omega[place] = place not in likely and not prior[place[1]] > threshold
    return omega


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (4, 1), (5, 7)])
@pytest.mark.parametrize("top_k", [0, 1, 2, 50])
def test_selectivity_equals_a_loop(shape, top_k):
    rng = np.random.default_rng(top_k)
    logits, labels, prior = rng.normal(size=shape), rng.integers(-1, 2, shape), rng.random(shape[1])
    args = (torch.tensor(logits), int8(labels.tolist()), "selective")
    omega = selectivity(*args, top_k=top_k, prior=torch.tensor(prior), prior_threshold=0.6)
    np.testing.assert_array_equal(omega, loop_selectivity(logits, labels, top_k, prior, 0.6))
    omega = selectivity(*args, top_k=top_k)
    np.testing.assert_array_equal(omega, loop_selectivity(logits, labels, top_k, prior, 1))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 4, 2, 3), (2, 1, 5, 1)])
@pytest.mark.parametrize("top_k", [0, 1, 3, 99])
def test_patch_selectivity_equals_a_loop(shape, top_k):
    rng = np.random.default_rng(top_k)
    maps, labels = rng.normal(size=shape), rng.integers(0, 2, shape)
    labels[0, 0] = U
    expected = np.zeros(shape, bool)
    for n, c in np.ndindex(shape[:2]):
        if (labels[n, c] == P).any():
            unknown = [place for place in np.ndindex(shape[2:]) if labels[n, c][place] == U]
            for place in sorted(unknown, key=lambda place: -maps[n, c][place])[top_k:]:
                expected[n, c][place] = True
    channels_last = torch.tensor(maps).contiguous(memory_format=torch.channels_last)
    for given_maps in (torch.tensor(maps), channels_last):
        omega = patch_selectivity(given_maps, int8(labels.tolist()), "selective", top_k=top_k)
        np.testing.assert_array_equal(omega, expected)


# --- properties

SHAPE = st.tuples(st.integers(1, 4), st.integers(2, 6))
GAMMAS = st.builds(per_label, *[st.floats(0, 5)] * 3)
BATCH = SHAPE.flatmap(
    lambda s: st.tuples(
        hnp.arrays(np.float64, s, elements=st.floats(-30, 30)),
        hnp.arrays(np.int8, s, elements=st.integers(-1, 1)),
        hnp.arrays(np.bool_, s),
    )
)


@given(BATCH, GAMMAS)
def test_ignored_cells_get_no_gradient_and_omega_says_nothing_about_known_cells(batch, gammas):
    logits, labels, omega = (torch.tensor(a) for a in batch)
    logits.requires_grad_()
    loss = selective_loss(logits, labels, omega, gammas=gammas, clip=0.05)
    assert (gradient(loss, logits)[(labels == U) & ~omega] == 0).all()
    other = torch.where(labels == U, omega, ~omega)
    assert torch.equal(loss, selective_loss(logits, labels, other, gammas=gammas, clip=0.05))


@given(BATCH)
def test_with_gammas_0_it_is_the_partial_cross_entropies(batch):
    logits, labels, omega = (torch.tensor(a) for a in batch)
    none, every = torch.zeros_like(omega), torch.ones_like(omega)
    for given_omega, weights, same in [
        (none, per_label(1, 1, 1), partial.bce(logits, labels)),
        (every, per_label(1, 1, 1), partial.assume_negative(logits, labels)),
        (every, per_label(1, 1, 0.3), partial.weak_assume_negative(logits, labels, negative_weight=0.3)),
        (omega, per_label(1, 1, 1), partial.expected_negative(logits, labels, ~omega)),
    ]:
        loss = selective_loss(logits, labels, given_omega, gammas=FLAT, weights=weights)
        assert loss.item() == pytest.approx(same.item(), rel=1e-12)


@given(BATCH, GAMMAS)
def test_a_permutation_of_the_classes_changes_nothing_and_images_are_averaged(batch, gammas):
    logits, labels, omega = (torch.tensor(a) for a in batch)
    loss = selective_loss(logits, labels, omega, gammas=gammas).item()
    turned = selective_loss(logits.flip(1), labels.flip(1), omega.flip(1), gammas=gammas).item()
    assert turned == pytest.approx(loss, rel=1e-12)
    rows = [selective_loss(logits[[n]], labels[[n]], omega[[n]], gammas=gammas).item() for n in range(len(logits))]
    assert np.mean(rows) == pytest.approx(loss, rel=1e-12)


@given(BATCH, st.integers(0, 5))
def test_as_many_unknowns_as_asked_for_are_ignored_and_none_of_them_is_less_likely(batch, top_k):
    logits, labels, _ = (torch.tensor(a) for a in batch)  # may hold equal logits
    omega = selectivity(logits, labels, "selective", top_k=top_k)
    unknown = labels == U
    ignored = unknown & ~omega
    assert ignored.sum() == min(top_k * len(logits), int(unknown.sum()))
    assert not (omega & ~unknown).any()
    if ignored.any() and omega.any():
        assert logits[ignored].min() >= logits[omega].max()
    assert torch.equal(selectivity(logits, labels, "negative"), unknown)
    assert not selectivity(logits, labels, "ignore").any()


@given(st.integers(0, 2**32 - 1), st.integers(0, 6))
def test_flipped_maps_have_flipped_omegas_and_the_same_loss(seed, top_k):
    rng = np.random.default_rng(seed)
    maps = torch.tensor(rng.permutation(2 * 3 * 4 * 5).reshape(2, 3, 4, 5) / 30 - 2)
    labels = torch.tensor(rng.integers(-1, 2, maps.shape).astype(np.int8))
    omega = patch_selectivity(maps, labels, "selective", top_k=top_k)
    flipped = patch_selectivity(maps.flip(3), labels.flip(3), "selective", top_k=top_k)
    assert torch.equal(flipped, omega.flip(3))
    loss = patch_loss(maps, labels, omega, gammas=per_label(0, 1, 4)).item()
    turned = patch_loss(maps.flip(3), labels.flip(3), flipped, gammas=per_label(0, 1, 4)).item()
    assert turned == pytest.approx(loss, rel=1e-12)
    assert torch.equal(patch_selectivity(maps, labels, "negative"), labels == U)
    assert not patch_selectivity(maps, labels, "ignore").any()


# --- numerics and edges


@pytest.mark.parametrize("gamma", [0, 0.5, 4])
@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_far_logits_have_a_finite_loss_and_gradient(gamma, clip):
    """At |logit| 200, the wrong positive has the weight 1: -log f = 200, derivative -1.

    The wrong negative, without clip, likewise; with it q = clip, the weight is (1 - clip)^g and the derivative 0.
    """
    logits = torch.tensor([[-200.0, 200.0, -200.0, 200.0]], requires_grad=True)
    labels = int8([[P, N, N, P]])
    loss = selective_loss(
        logits, labels, torch.zeros(1, 4, dtype=torch.bool), gammas=per_label(gamma, gamma, 0), clip=clip
    )
    wrong_negative = (1 - clip) ** gamma * -math.log(clip) if clip else 200
    assert loss.item() * 4 == pytest.approx(200 + wrong_negative, rel=1e-6)
    np.testing.assert_allclose(gradient(loss, logits) * 4, [[-1, 0 if clip else 1, 0, 0]], atol=1e-6)


def test_small_probabilities_keep_their_focal_weight_in_float32():
    """f = e^-20: a negative costs -f log(1 - f), which is f^2 = e^-40 to first order; 1 - (1 - f) would be 0."""
    logits = torch.tensor([[-20.0]])
    loss = selective_loss(logits, int8([[N]]), torch.zeros(1, 1), gammas=per_label(0, 1, 0))
    assert loss.item() == pytest.approx(math.exp(-40), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_logits_are_computed_in_float32_inside_autocast(dtype):
    maps = torch.linspace(-9, 9, 24).view(1, 2, 3, 4).to(dtype)
    labels = int8([P, N, U, U] * 6).view(1, 2, 3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        omega = patch_selectivity(maps, labels, "selective", top_k=2)
        inside = patch_loss(maps, labels, omega, gammas=per_label(0, 1, 2.5))
        image = selective_loss(maps[0, :, 0], labels[0, :, 0], omega[0, :, 0], gammas=per_label(0, 1, 2.5), clip=0.05)
    assert inside.dtype == image.dtype == torch.float32
    assert torch.equal(omega, patch_selectivity(maps.float(), labels, "selective", top_k=2))
    assert torch.equal(inside, patch_loss(maps.float(), labels, omega, gammas=per_label(0, 1, 2.5)))


def test_empty_batches_and_batches_of_unknowns_can_be_differentiated():
    for images, expected in [(0, 0.0), (2, 0.0)]:
        logits = torch.ones(images, 3, requires_grad=True)
        labels = torch.full((images, 3), U, dtype=torch.int8)
        omega = selectivity(logits, labels, "selective", top_k=3)
        loss = selective_loss(logits, labels, omega, gammas=per_label(0, 1, 2))
        assert loss.item() == expected
        assert (gradient(loss, logits) == 0).all()
        maps = logits.detach()[:, :, None, None].expand(-1, -1, 2, 2).clone().requires_grad_()
        patches = labels[:, :, None, None].expand(maps.shape)
        loss = patch_loss(
            maps, patches, patch_selectivity(maps, patches, "selective", top_k=1), gammas=per_label(0, 1, 2)
        )
        assert loss.item() == expected
        assert (gradient(loss, maps) == 0).all()


def test_nothing_waits_for_the_device():
    """A tensor on the meta device has no values: reading one, or a shape that depends on one, is an error."""
    maps, patches = torch.empty(2, 3, 4, 5, device="meta"), torch.empty(2, 3, 4, 5, dtype=torch.int8, device="meta")
    omega = patch_selectivity(maps, patches, "selective", top_k=3)
    assert patch_loss(maps, patches, omega, gammas=per_label(0, 1, 2)).shape == ()
    logits, labels = maps[:, :, 0, 0], patches[:, :, 0, 0]
    prior = torch.empty(3, device="meta")
    omega = selectivity(logits, labels, "selective", top_k=1, prior=prior, prior_threshold=0.1)
    assert selective_loss(logits, labels, omega, gammas=per_label(0, 1, 2), clip=0.1).shape == ()


def test_choosing_gives_no_gradient():
    logits = torch.zeros(2, 3, requires_grad=True)
    assert not selectivity(logits, int8([[U] * 3] * 2), "selective", top_k=1).requires_grad


# --- errors


def test_an_unknown_mode_is_an_error():
    labels = int8([[[[U]]]])
    for call in (
        lambda: selectivity(torch.zeros(1, 1), labels[:, :, 0, 0], "select"),
        lambda: patch_selectivity(torch.zeros(1, 1, 1, 1), labels, "select"),
    ):
        with pytest.raises(ConfigError) as error:
            call()
        assert str(error.value) == "mode 'select' is not one of ignore, negative, selective."


@pytest.mark.parametrize("mode", ["negative", "selective"])
def test_images_that_take_no_part(mode):
    """Three images of two unknown classes, the middle one out: omega is that of the other two alone, k = 1 each.

    Of the cells 4, 1 and 3, 2 the two highest, 4 and 3, stay ignored; the 9 and 8 of the middle one do not count.
    """
    logits = torch.tensor([[4.0, 1.0], [9.0, 8.0], [3.0, 2.0]])
    labels = torch.full((3, 2), Label.UNKNOWN, dtype=torch.int8)
    among = torch.tensor([True, False, True])
    omega = selectivity(logits, labels, mode, top_k=1, among=among)
    assert not omega[1].any()
    torch.testing.assert_close(omega[among], selectivity(logits[among], labels[among], mode, top_k=1))
    if mode == "selective":
        assert omega.tolist() == [[False, True], [False, False], [False, True]]
