"""All losses of the public code of other authors, in value and gradient: tests/golden/losses.json.

Each record says which label its peer saw in the place of positive, negative and unknown. The peer's own values mean:
1 positive, 0 unknown, -1 negative, except where FULL and CSL say otherwise.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fewtags.labels import Label
from fewtags.losses import counted, focusing, partial, uncertain
from fewtags.losses.large_loss import large_loss
from fewtags.losses.selective import PerLabel, annotation_weights, selective_loss, selectivity

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "losses.json").read_text())
P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN
PEER, FULL, CSL = {1: P, 0: U, -1: N}, {1: P, 0: N}, {1: P, 0: N, -1: U}
CELLS = GOLDEN["batch"] * GOLDEN["classes"]


def asl(logits, labels, options):
    gammas = PerLabel(options["gamma_pos"], options["gamma_neg"], options["gamma_neg"])
    nothing = torch.zeros_like(labels, dtype=torch.bool)
    attached = not options["weight_detached"]
    return selective_loss(
        logits, labels, nothing, gammas=gammas, clip=options["clip"], attached=attached, floor=options["eps"]
    )


def csl(logits, labels, options):
    mode = options["partial_loss_mode"]
    prior = options.get("prior")
    omega = selectivity(
        logits,
        labels,
        "ignore" if mode == "ignore_normalize_classes" else mode,
        top_k=options.get("likelihood_topk", 0),
        prior=None if prior is None else torch.tensor(prior, dtype=torch.float64),
        prior_threshold=options.get("prior_threshold") or 1.0,
    )
    weights = annotation_weights(labels) if mode == "ignore_normalize_classes" else None
    gammas = PerLabel(options["gamma_pos"], options["gamma_neg"], options["gamma_unann"])
    return selective_loss(logits, labels, omega, gammas=gammas, clip=options["clip"], image_weights=weights, floor=1e-8)


def splc(logits, labels, options):
    corrected = focusing.corrected_labels(logits, labels, positive_above=options["tau"])
    if options["epoch_0_based"] < options["change_epoch"]:
        corrected = torch.zeros_like(corrected)
    return focusing.self_paced_correction(logits, labels, corrected, gamma=options["gamma"], margin=options["margin"])


def large(correct):
    return lambda logits, labels, options: large_loss(logits, labels, options["k"] / CELLS, correct=correct).loss


def em(logits, labels, options, soft=None):
    return uncertain.entropy_maximisation(
        logits,
        labels,
        weight=options["alpha"],
        soft=soft,
        soft_weight=options.get("beta", 0.0),
        log_eps=options["log_eps"],
    )


def eps(options):
    return {"log_eps": options.get("log_eps", 0.0)}


LOSS_OF = {
    "AN": lambda x, z, o: partial.assume_negative(x, z, **eps(o)),
    "AN-LS": lambda x, z, o: partial.assume_negative(x, z, smoothing=o["ls_coef"], **eps(o)),
    "WAN": lambda x, z, o: partial.weak_assume_negative(x, z, negative_weight=o["neg_weight"], **eps(o)),
    "EPR": lambda x, z, o: counted.expected_positive_regularisation(x, z, o["expected_num_pos"], **eps(o)),
    "BCE ignoring unknown (IU)": lambda x, z, o: partial.bce(x, z, **eps(o)),
    "BCE full labels": lambda x, z, o: partial.bce(x, z, **eps(o)),
    "pairwise ranking (PR)": lambda x, z, o: counted.pairwise_ranking(x, z),
    "LL epoch 1 (= AN, BCE with logits)": lambda x, z, o: large_loss(x, z, 0).loss,
    "LL-R": large(correct=False),
    "LL-R with tied losses": large(correct=False),
    "LL-Ct": large(correct=True),
    "LL-Ct with tied losses": large(correct=True),
    "LL-Cp": large(correct=True),
    "LL-Cp (BridgeGap re-implementation)": large(correct=True),
    "LL-Cp as actually reached from argv (identity test fails)": large(correct=True),
    "Focal": asl,
    "ASL": asl,
    "BCE via ASL class": asl,
    "Hill": lambda x, z, o: focusing.hill(x, z, gamma=o["gamma"], margin=o["margin"], peak=o["lambda"]),
    "Focal margin + SPLC before change_epoch": splc,
    "Focal margin + SPLC": splc,
    "SPLC on BCE (margin 0, gamma 0) before change_epoch": splc,
    "SPLC on BCE (margin 0, gamma 0)": splc,
    "CSL negative": csl,
    "CSL ignore": csl,
    "CSL ignore_normalize_classes": csl,
    "CSL selective": csl,
    "EM": em,
    "GR loss": lambda x, z, o: uncertain.generalised_robust(
        x,
        z,
        slope=o["w"],
        offset=o["b"],
        centre=o["mu"],
        width=o["sigma"],
        positive_power=float(o["q2"]),
        negative_power=float(o["q3"]),
        **eps(o),
    ),
}
MEANING = {
    "BCE full labels": FULL,
    "Focal": FULL,
    "ASL": FULL,
    "BCE via ASL class": FULL,
    **dict.fromkeys((name for name in LOSS_OF if name.startswith("CSL")), CSL),
}
ESTIMATED, SOFT = "ROLE", "EM + asymmetric pseudo-label term"
DIFFERENT = {
    "LL-R when k > number of unknown entries (threshold 0: observed positives modified too)": False,
    "LL-Ct when k > number of unknown entries (threshold 0: observed positives modified too)": True,
}


def records(*names):
    return pytest.mark.parametrize(
        "record", [r for r in GOLDEN["records"] if r["loss_name"] in names], ids=lambda r: r["id"]
    )


def float64(rows):
    return torch.tensor(rows, dtype=torch.float64)


def inputs(record):
    case = GOLDEN["cases"][record["case"]]
    meaning = MEANING.get(record["loss_name"], PEER)
    label = {
        int(k): meaning[v] for k, v in record["encoding_to_peer"].items() if k in ("1", "0", "-1") and v in meaning
    }
    labels = torch.tensor([[label.get(v, U) for v in row] for row in case["labels"]], dtype=torch.int8)
    return float64(case["logits"]).requires_grad_(), labels


def compare(record, loss, logits):
    if record["hyper_parameters"].get("reduction") == "sum":
        loss = loss * CELLS
    loss.backward()
    rtol = record["suggested_rtol"]
    # The peer takes 1 - f from a rounded f: half an ulp of 1, times the largest derivative of the logarithm. 1 - f is
    # 2e-9 at the largest logit, 20.
    options = record["hyper_parameters"]
    smallest = max(2e-9 if record["case"] == "extreme" else 1e-4, options.get("log_eps", 0.0))
    rounding = 2**-53 / smallest * (1.0 if options.get("reduction") == "sum" else 1 / CELLS)
    assert loss.item() == pytest.approx(record["loss"], rel=rtol, abs=rounding)
    # LL-Ct and LL-Cp compute corrected cells in float32, of which the loss alone may show nothing.
    rtol = max(rtol, 1e-6) if record["loss_name"].startswith("LL-C") else rtol
    np.testing.assert_allclose(logits.grad, record["grad_logits"], rtol=rtol, atol=rounding)


@records(*LOSS_OF)
def test_public_code(record):
    logits, labels = inputs(record)
    compare(record, LOSS_OF[record["loss_name"]](logits, labels, record["hyper_parameters"]), logits)


@records(ESTIMATED)
def test_online_estimation(record):
    """ROLE has a second gradient, that of the estimated labels."""
    logits, labels = inputs(record)
    estimated = float64(record["extra"]["estimator_logits"]).requires_grad_()
    options = record["hyper_parameters"]
    loss = counted.online_estimation(logits, estimated, labels, options["expected_num_pos"], **eps(options))
    compare(record, loss, logits)
    np.testing.assert_allclose(estimated.grad, record["extra"]["grad_estimator_logits"], rtol=1e-12, atol=1e-16)


@records(SOFT)
def test_soft_labels_of_apl(record):
    logits, labels = inputs(record)
    soft = float64(record["extra"]["soft_pseudo_labels_zero_means_none"])
    soft[soft == 0] = torch.nan
    compare(record, em(logits, labels, record["hyper_parameters"], soft), logits)


@records("LL-Cp", "LL-Cp (BridgeGap re-implementation)")
def test_cells_that_are_corrected_for_good(record):
    """The first code of LL-Cp corrects one cell less for good than its loss does; the second one corrects the same."""
    logits, labels = inputs(record)
    large = large_loss(logits, labels, record["hyper_parameters"]["k"] / CELLS).large
    found = [tuple(cell) for cell in large.nonzero().tolist()]
    if record["loss_name"] == "LL-Cp":
        found.remove(min(found, key=lambda cell: logits[cell].item()))
    assert found == [tuple(cell) for cell in record["extra"]["permanently_corrected_idx"]]


@records(*DIFFERENT)
def test_known_cells_are_never_changed(record):
    """The public code also drops or inverts annotated cells if k exceeds the number of unknown cells; we do not."""
    logits, labels = inputs(record)
    correct = DIFFERENT[record["loss_name"]]
    result = large_loss(logits, labels, record["hyper_parameters"]["k"] / CELLS, correct=correct)
    assert torch.equal(result.large, labels == U)
    as_positive = labels.masked_fill(labels == U, P) if correct else labels
    assert result.loss.item() == pytest.approx(partial.bce(logits, as_positive).item(), rel=1e-12)
    assert result.loss.item() != pytest.approx(record["loss"], rel=1e-3)


def test_every_record_is_used():
    names = {record["loss_name"] for record in GOLDEN["records"]}
    assert names == {*LOSS_OF, *DIFFERENT, ESTIMATED, SOFT}
    assert len(GOLDEN["records"]) == 206
