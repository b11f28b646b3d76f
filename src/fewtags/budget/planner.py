"""Plan a budget: how many annotations of each type it buys, and the mAP to expect."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

from fewtags.budget.costs import Annotation, CostModel
from fewtags.budget.curves import FARTHEST, Curve, Estimate, Measure, Result, difference, fit_curve, too_few
from fewtags.budget.paper_curves import PaperCurve, paper_curves, paper_resolution, paper_source
from fewtags.budget.results import by_type
from fewtags.errors import ConfigError, DataError
from fewtags.text import flag

Guess = Callable[[float, Measure], Estimate]
"""(labels, measure) -> expected value."""


@final
@dataclass(frozen=True, kw_only=True)
class Guide:
    """Expected values of each type, and their source.

    Attributes:
        source: description of the source.
        guesses: expected values by type; other types cannot be judged.
        judged: the smallest and the largest number of labels with an expected mAP, by type.
        notes: remarks for the user.
        resolution: smallest difference that is resolved, 0..1; None: the bootstrap decides.
        curves: the fitted curves of mAP.
        photos: number of photos that the pilot could choose from; None: no pilot, or unknown.
        lacking: types with too few runs, and what they lack.
    """

    source: str
    guesses: Mapping[Annotation, Guess]
    judged: Mapping[Annotation, tuple[float, float]]
    notes: tuple[str, ...] = ()
    resolution: float | None = None
    curves: Mapping[Annotation, Curve] | None = None
    photos: int | None = None
    lacking: Mapping[Annotation, str] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[Annotation, ...]:
        """The types that were run, those with too few runs last."""
        return (*self.guesses, *self.lacking)

    def estimate(self, kind: Annotation, labels: float, measure: Measure) -> Estimate:
        """Return the expected measure; where there is none, a bound: more labels do not make the expectation worse."""
        if kind not in self.guesses:
            return Estimate(value=None, refused="too few runs" if kind in self.lacking else "not in the pilot")
        found = self.guesses[kind](labels, measure)
        if found.value is not None:
            return found
        nearest = self.guesses[kind](self.nearest(kind, labels), measure)
        bound: Literal["at least", "at most"] = "at least" if labels > self.judged[kind][1] else "at most"
        if nearest.value is None:
            return found
        return replace(nearest, factor=found.factor, refused=found.refused, bound=bound)

    def nearest(self, kind: Annotation, labels: float) -> float:
        """Return the number of labels nearest to `labels` at which a type can be judged."""
        least, most = self.judged[kind]
        return min(max(labels, least), most)


def paper_guide(classes: int) -> Guide:
    """Return the curves of PatchML, read at the same number of labels per class."""

    def guess(curve: PaperCurve) -> Guess:
        return lambda labels, measure: curve.estimate(labels, classes, measure)

    resolution, curves = paper_resolution(), paper_curves()
    return Guide(
        source=f"the paper's curves ({paper_source()})",
        guesses={kind: guess(curve) for kind, curve in curves.items()},
        judged={kind: curve.judged(classes) for kind, curve in curves.items()},
        notes=(
            "rough guidance only: other photos, another net and other classes give other numbers; read at the same "
            "number of labels per class. The paper has no intervals. Run a pilot on your own photos: --run-pilot",
            "tags, one point and one box are from table 1 (mean of 3 snapshots), all points and all boxes from table 2 "
            f"(1 snapshot). The two tables differ by up to {100 * resolution:.1f} mAP where they print the same run",
        ),
        resolution=resolution,
    )


def pilot_guide(results: Sequence[Result], source: str) -> Guide:
    """Fit curves to measured runs; a `DataError` says what to run if no type has enough runs."""
    groups = by_type(results)
    problems = {kind: why for kind, found in groups.items() if (why := too_few(found))}
    if len(problems) == len(groups):
        raise DataError("\n".join([f"{source}: nothing to fit a curve to.", *problems.values()]))
    curves: dict[Annotation, Curve] = {}
    guesses: dict[Annotation, Guess] = {}
    for kind, found in groups.items():
        if kind in problems:
            continue
        by_measure: dict[Measure, Curve] = {"mAP": fit_curve(found)}
        if all(result.mean_ap_loc is not None for result in found):
            by_measure["mAP_loc"] = fit_curve(found, "mAP_loc")
        curves[kind], guesses[kind] = by_measure["mAP"], _guess(by_measure)
    scatter = ", ".join(f"{kind} {100 * curve.spread:.1f}" for kind, curve in curves.items())
    return Guide(
        source=source,
        guesses=guesses,
        judged={kind: curve.judged for kind, curve in curves.items()},
        notes=(*problems.values(), f"standard deviation of a single training around the expected value: {scatter}"),
        curves=curves,
        photos=max((result.photos for result in results if result.photos is not None), default=None),
        lacking=problems,
    )


def _guess(curves: Mapping[Measure, Curve]) -> Guess:
    missing = Estimate(value=None, refused="not measured")
    return lambda labels, measure: curves[measure].estimate(labels) if measure in curves else missing


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Purchase:
    """Annotations of one type that the budget buys.

    Attributes:
        kind: the type.
        labels: (image, class) pairs, drawn from all photos.
        photos: expected number of photos with at least one label: N (1 - (1 - labels / (N C))^C).
        complete_photos: number of photos that could be labelled for all classes instead.
        positives: expected number of "yes" answers.
        places: expected number of points or boxes.
        seconds: time for these labels.
        left: seconds of the budget that remain if everything is bought.
        mean_ap: expected mAP.
        mean_ap_loc: expected mAP-loc.
    """

    kind: Annotation
    labels: int
    photos: int
    complete_photos: int
    positives: int
    places: int
    seconds: float
    left: float
    mean_ap: Estimate
    mean_ap_loc: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        names = ("labels", "photos", "complete_photos", "positives", "places")
        return {
            "type": str(self.kind),
            **{name: getattr(self, name) for name in names},
            "hours": self.seconds / 3600,
            "hours_left": self.left / 3600,
            "mAP": _plain(self.mean_ap),
            "mAP_loc": _plain(self.mean_ap_loc),
        }


def _plain(estimate: Estimate) -> dict[str, Any]:
    return {
        "value": estimate.value,
        "interval": None if estimate.low is None else [estimate.low, estimate.high],
        "bound": estimate.bound or None,
        "extrapolated": estimate.extrapolated,
        "factor": estimate.factor,
        "refused": estimate.refused or None,
    }


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class BudgetPlan:
    """Comparison of the purchases of each type for one budget.

    Attributes:
        seconds: the budget.
        photos: N.
        cost: of the labels.
        guide: expected values.
        purchases: what the budget buys of each type.
        compared: what the largest budget at which no type has passed its curve buys; the purchases, if none has.
        compared_seconds: that budget.
        notes: for the user.
    """

    seconds: float
    photos: int
    cost: CostModel
    guide: Guide
    purchases: tuple[Purchase, ...]
    compared: tuple[Purchase, ...]
    compared_seconds: float
    notes: tuple[str, ...]

    def ranked(self) -> list[Purchase]:
        """Return the compared purchases with an expected mAP, best first.

        A type never falls in this order because it gets cheaper: it then buys at least as many labels, and the other
        types at most as many, up to a budget at which all can be judged.
        """
        judged = [(purchase, value) for purchase in self.compared if (value := purchase.mean_ap.value) is not None]
        return [purchase for purchase, _ in sorted(judged, key=lambda pair: -pair[1])]

    def advice(self) -> str:
        """Return one sentence: what to buy, and whether the difference to the second best is resolved."""
        if not (ranked := self.ranked()):
            reasons = "; ".join(f"{each.kind.described()}: {each.mean_ap.refused}" for each in self.purchases)
            cure = "run a pilot on more photos" if self.guide.curves else "run a pilot: --run-pilot"
            return f"No type can be recommended: {reasons}; {cure}."
        best = ranked[0]
        bought = next(purchase for purchase in self.purchases if purchase.kind is best.kind)
        what = (
            f"{best.kind.described()}, {bought.labels:,} labels in {bought.photos:,} photos for "
            f"{bought.seconds / 3600:,.1f} h, expected mAP {_shown(bought.mean_ap)}"
        )
        if len(ranked) == 1:
            others = "; ".join(
                f"{each.kind.described()}: {each.mean_ap.refused}" for each in self.purchases if each is not bought
            )
            return f"Buy {what}; no other type can be judged{f' ({others})' if others else ''}."
        second = ranked[1]
        low, high, lead = self._lead(best, second)
        ahead = f"{lead} mAP over {second.kind.described()}"
        at = f"at {self.compared_seconds / 3600:,.1f} h, the largest budget at which all types can be judged, "
        at = "" if self.compared_seconds >= self.seconds else at
        if best.mean_ap.bound == "at most" or second.mean_ap.bound == "at least":
            low, high = min(low, -math.inf), math.inf  # the bounds say nothing about the order
        if low > 0:
            return f"Buy {what}: {at}{ahead}, the second best."
        why = f"{at}the difference of {ahead} is not resolved, so"
        if high < 0:
            why = (
                f"{at}compared seed by seed, {ahead} contradicts the curves of all seeds together, so run more seeds, "
                "or"
            )
        return f"Buy {what}, or else {second.kind.described()}: {why} take what is easier to make."

    def _lead(self, best: Purchase, second: Purchase) -> tuple[float, float, str]:
        """Interval of the difference between two purchases in mAP points, and the difference as text."""
        curves, lead = self.guide.curves, (best.mean_ap.value or 0.0) - (second.mean_ap.value or 0.0)
        if curves is None:
            resolution = math.inf if self.guide.resolution is None else self.guide.resolution
            return lead - resolution, lead + resolution, f"{100 * lead:+.1f}"
        at = [self.guide.nearest(purchase.kind, purchase.labels) for purchase in (best, second)]
        found = difference(curves[best.kind], at[0], curves[second.kind], at[1])
        if found is None:
            return -math.inf, math.inf, f"{100 * lead:+.1f} (no seeds in common to compare)"
        middle, low, high = (100 * value for value in found)
        return low, high, f"{middle:+.1f} [{low:+.1f}, {high:+.1f}]"

    def lines(self) -> Iterator[str]:
        """Yield the table as lines of text."""
        yield f"budget {self.seconds / 3600:,.1f} h, {self.photos:,} photos; {self.cost}"
        header = ("type", "photos", "or complete", "labels", "positives", "places", "hours", "mAP", "mAP-loc", "")
        rows = [header, *(_cells(purchase) for purchase in self.purchases)]
        if all(row[8] == "-" for row in rows[1:]):
            rows = [(*row[:8], *row[9:]) for row in rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for first, *rest, last in rows:
            cells = [first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(rest, widths[1:-1], strict=True)), last]
            yield "  ".join(cells).rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "hours": self.seconds / 3600,
            "photos": self.photos,
            "cost": dict(vars(self.cost)),
            "source": self.guide.source,
            "offers": [purchase.to_dict() for purchase in self.purchases],
            "compared_at_hours": self.compared_seconds / 3600,
            "compared": [purchase.to_dict() for purchase in self.compared],
            "advice": self.advice(),
            "notes": [*self.guide.notes, *self.notes],
        }


def plan_budget(
    seconds: float, photos: int, cost: CostModel, guide: Guide, kinds: Sequence[Annotation] = tuple(Annotation)
) -> BudgetPlan:
    """Compute what a budget in seconds buys of each type for N photos (at most N x C labels), at flat cost.

    Raises:
        ConfigError: no photo, or a budget that does not buy a label of any type.
    """
    if photos < 1:
        raise ConfigError(f"photos is {photos}; expected 1 or more.")
    notes: list[str] = []
    if cost.instances_per_image is None and any(kind.every for kind in kinds):
        notes.append(
            "all points and all boxes are left out because the number of objects in an average photo is unknown; give "
            f"{flag('instances')}"
        )
        kinds = [kind for kind in kinds if not kind.every]
    offers = [_purchase(kind, seconds, photos, cost, guide) for kind in kinds]
    purchases = [purchase for purchase in offers if purchase.labels]
    least = {offer.kind: _least_budget(cost.seconds_per_pair(offer.kind)) for offer in offers if not offer.labels}
    if not purchases:
        need = "; ".join(f"one label of {kind.described()} takes {need}" for kind, need in least.items())
        raise ConfigError(f"{seconds:g} s do not buy a label of any type{f': {need}' if need else ''}.")
    notes += [
        f"{kind.described()}: {seconds:g} s do not buy a label; the least budget that does is {need}"
        for kind, need in least.items()
    ]
    kinds = [purchase.kind for purchase in purchases]
    common = _common_budget(kinds, seconds, photos, cost, guide)
    return BudgetPlan(
        seconds=seconds,
        photos=photos,
        cost=cost,
        guide=guide,
        purchases=tuple(purchases),
        compared=tuple(_purchase(kind, common, photos, cost, guide) for kind in kinds),
        compared_seconds=common,
        notes=(*notes, *_remarks(purchases, photos, cost, guide)),
    )


def _least_budget(seconds: float) -> str:
    """Write a time rounded up, so that it suffices as a budget.

    >>> _least_budget(2.331), _least_budget(7.0)
    ('2.34 s', '7 s')
    """
    return f"{math.ceil(seconds * 100 - 1e-9) / 100:g} s"


def _common_budget(kinds: Sequence[Annotation], seconds: float, photos: int, cost: CostModel, guide: Guide) -> float:
    """Return the largest budget, at most `seconds`, that buys no more labels of a type than can be judged."""
    everything = photos * cost.classes
    ends = {kind: guide.judged[kind][1] for kind in kinds if kind in guide.judged}
    return min([seconds, *(end * cost.seconds_per_pair(kind) for kind, end in ends.items() if end < everything)])


def _purchase(kind: Annotation, seconds: float, photos: int, cost: CostModel, guide: Guide) -> Purchase:
    each, everything = cost.seconds_per_pair(kind), photos * cost.classes
    labels = min(everything, math.floor(seconds / each * (1 + 1e-9)))
    present = cost.positives_per_image if not kind.every else cost.instances_per_image or 0.0
    places = labels * present / cost.classes if kind is not Annotation.TAGS else 0.0
    return Purchase(
        kind=kind,
        labels=labels,
        photos=round(photos * (1 - (1 - labels / everything) ** cost.classes)),
        complete_photos=labels // cost.classes,
        positives=round(labels * cost.positives_per_image / cost.classes),
        places=round(places),
        seconds=labels * each,
        left=seconds - labels * each if labels == everything else 0.0,
        mean_ap=guide.estimate(kind, float(labels), "mAP"),
        mean_ap_loc=guide.estimate(kind, float(labels), "mAP_loc"),
    )


def _remarks(purchases: Sequence[Purchase], photos: int, cost: CostModel, guide: Guide) -> Iterator[str]:
    for purchase in purchases:
        if purchase.left > 0:
            yield (
                f"{purchase.kind.described()}: all {purchase.labels:,} labels ({photos:,} photos x {cost.classes:,} "
                f"classes) take {purchase.seconds / 3600:,.1f} h, and {purchase.left / 3600:,.1f} h are left, for more "
                "photos or a more expensive type"
            )
    for purchase in purchases:
        estimate = purchase.mean_ap
        if estimate.bound:
            end = guide.nearest(purchase.kind, purchase.labels)
            yield (
                f"{purchase.kind.described()}: {estimate.refused}; mAP {_shown(estimate)} is the value at {end:,.0f} "
                f"labels, because {'more' if estimate.bound == 'at least' else 'fewer'} labels do not make it "
                f"{'worse' if estimate.bound == 'at least' else 'better'}"
            )
        elif estimate.refused:
            yield f"{purchase.kind.described()}: no expected mAP: {estimate.refused}"
    if any(purchase.mean_ap.extrapolated for purchase in purchases):
        yield (
            "extrapolated values assume that the curves continue as they began; intervals allow for three forms of "
            f"curve and end at {FARTHEST:g} times the largest pilot"
        )
    if guide.photos is not None and photos > guide.photos:
        yield (
            f"the pilot chose its labels from {guide.photos:,} photos; with {photos:,} photos, the same number of "
            "labels has fewer per photo, which the curves do not model"
        )


def _cells(purchase: Purchase) -> tuple[str, ...]:
    estimate = purchase.mean_ap
    counts = (purchase.photos, purchase.complete_photos, purchase.labels, purchase.positives, purchase.places)
    return (
        purchase.kind.described(),
        *(f"{count:,}" for count in counts),
        f"{purchase.seconds / 3600:,.1f}",
        _shown(estimate),
        _shown(purchase.mean_ap_loc),
        _remark(estimate),
    )


def _remark(estimate: Estimate) -> str:
    if estimate.bound:
        return "end of the curve" if estimate.bound == "at least" else "start of the curve"
    return f"extrapolated x{estimate.factor:.2g}" if estimate.extrapolated else ""


def _shown(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    spread = "" if estimate.low is None else f" [{100 * estimate.low:.1f}, {100 * (estimate.high or 0.0):.1f}]"
    return f"{estimate.bound} {100 * estimate.value:.1f}{spread}".strip()
