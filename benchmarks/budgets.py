"""Tags, points and boxes that cost the same: every method on what each annotation type buys, paired by seed.

    python benchmarks/budgets.py benchmarks/budgets.toml --out benchmarks/results/budgets.jsonl
    python benchmarks/budget_table.py benchmarks/results/budgets.jsonl > docs/budget_benchmark.md

A seed fixes the order in which (image, class) pairs are asked for, of which every budget and type buys the first so
many, the order of the batches and the initial head; the cached views are the same for all runs. Images of which nothing
was bought stay among the training images. Runs, caching and resuming are as in `single_positive.py`, and nothing is
chosen on the test part: it is measured at the last epoch and at the best validation epoch.

Heatmaps are measured against the boxes of all test images, after the last epoch. MaxBoxAccV2 is left out, since reading
boxes off a map at a hundred thresholds would take longer than the training. Sets without boxes cannot be bought from
(camvid's classes, such as sky and road, are regions and no instances to be pointed at).
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from budget_protocol import BudgetJob, Budgets, choose_jobs, read_budgets, read_done
from fewtags.budget.costs import CostModel
from fewtags.budget.purchase import simulate_budget
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.fit import Fit, FitConfig
from fewtags.engine.machine import cores
from fewtags.engine.methods import make_objective, settings_models
from fewtags.engine.sources import StoredViews
from fewtags.errors import FewtagsError
from fewtags.labels import Label, LabelMatrix
from fewtags.metrics.locate import LocateOptions, Region, locate_report
from fewtags.objectives.base import Problem
from fewtags.photos.loader import EpochSampler
from fewtags.stores.pseudo import PseudoLabels
from fewtags.table.table import LabelTable
from frozen import EVAL_BATCH, Above, Material, make_net
from photo_sets import BenchmarkSet, chance
from single_positive import Record, arguments, execute, look, metrics, positives_per_image, predict, train

LOCATE = LocateOptions(size=(48, 48), cuts=(0.5,))
"""Eight pixels per cell of the maps; the cut is for boxes, which are not reported."""

LOCATED = ("mAP-loc", "mAP-loc_chance", "mAP-cl_same_cells", "pointing", "pointing_chance", "IoA-P", "PxAP")


def run(benchmark: Budgets, job: BudgetJob, material: Material) -> Record:
    """Buy, train once, through the library's own loop, and measure."""
    bought = buy(benchmark, job, material.data)
    fit, above = make_fit(benchmark, job, material, bought)
    records, best, best_epoch = train(fit, above)
    last, found = look(above, material), localise(above, material)
    above.load_state_dict(best)
    main = [r["cpu_seconds"] for r in records if r["stage"] == benchmark.stages[-1].name]
    return {
        **identity(benchmark, job, material.data),
        "bought": receipt(bought),
        "last": last,
        "best": {"epoch": best_epoch, **look(above, material)},
        "localisation": found,
        "pseudo": judge(fit.parts.get("pseudo_labels"), bought.matrix, material.data.train_truth.matrix),
        "classes_with_prototype": records[-1].get("state/classes_with_prototype"),
        "train_loss_by_epoch": [round(r["train/loss"], 6) for r in records],
        "val_mAP_by_epoch": [_percent(r["val/mAP"]) for r in records],
        "cpu_seconds_per_epoch": round(statistics.median(main), 4),
        "machine": f"{cores()} cores, torch {torch.__version__}",
    }


def identity(benchmark: Budgets, job: BudgetJob, data: BenchmarkSet) -> Record:
    """What a line says beside its results."""
    return {
        "benchmark": benchmark.name,
        "set": job.set_name,
        "budget": job.budget,
        "annotation": job.annotation,
        "method": job.method,
        "seed": job.seed,
        "label": benchmark.methods[job.method].label,
        "order": [
            benchmark.budgets.index(job.budget),
            benchmark.types.index(job.annotation),
            list(benchmark.methods).index(job.method),
        ],
        "protocol": benchmark.protocol(job),
        "epochs": sum(stage.epochs for stage in benchmark.stages),
        "scored": len(data.scored),
        "classes": len(data.test.classes),
        "images": len(data.train_truth),
        "chance_mAP": _percent(chance(data.test, data.scored_index)),
        "positives_per_image": round(positives_per_image(data), 4),
        "seconds_per_pair": round(CostModel.measured(data.train_truth).seconds_per_pair(job.annotation), 4),
    }


def buy(benchmark: Budgets, job: BudgetJob, data: BenchmarkSet) -> LabelTable:
    """What the budget buys of the training images' labels; costs are averages of these images."""
    truth = data.train_truth
    return simulate_budget(
        truth,
        job.budget,
        job.annotation,
        job.seed,
        CostModel.measured(truth),
        mode=benchmark.mode,
        points=benchmark.points,
    )


def receipt(bought: LabelTable) -> Record:
    """Pairs, places and images that were bought."""
    matrix, boxes = bought.matrix, bought.locations.boxes
    points = int(((boxes[:, 0] == boxes[:, 2]) & (boxes[:, 1] == boxes[:, 3])).sum())
    positives = matrix.counts(Label.POSITIVE)
    return {
        "positives": int(positives.sum()),
        "negatives": int(matrix.counts(Label.NEGATIVE).sum()),
        "points": points,
        "boxes": len(boxes) - points,
        "images": len(bought) - int((matrix.image_counts(Label.UNKNOWN) == matrix.shape[1]).sum()),
        "classes_without_positive": int((positives == 0).sum()),
    }


def make_fit(benchmark: Budgets, job: BudgetJob, material: Material, bought: LabelTable) -> tuple[Fit, Above]:
    """The library's loop, and the part of its net that works on the cached features."""
    data, settings = material.data, benchmark.settings(job.method, job.annotation)
    objective = make_objective(settings_models()[settings["name"]].model_validate(settings))
    net = make_net(benchmark, len(bought.classes), job.seed, benchmark.head(job.method))
    above = Above(net, benchmark.trained_blocks)
    sampler = EpochSampler(len(bought), benchmark.batch_size, job.seed)
    views = material.views if objective.needs_second_view else replace(material.views, second_view=None)
    source = StoredViews(views, sampler, bought.matrix, locations=bought.locations)
    config = FitConfig(stages=benchmark.stages, seed=job.seed, batchnorm_eval=True)
    problem = Problem(
        labels=bought.matrix,
        grid=net.grid((benchmark.size, benchmark.size)),
        warmup_epochs=config.warmup_epochs,
        epochs=config.epochs,
        seed=job.seed,
        truth=data.train_truth.matrix,
        features_dim=net.head.features_dim,
    )

    def validate(_: nn.Module) -> Mapping[str, float]:
        return metrics(predict(above, material.val), data.val, data.scored_index)

    accelerator = make_accelerator(cpu=True)
    fit = Fit(net, objective, source, config, problem, accelerator=accelerator, model=above, validate=validate)
    return fit, above


@torch.no_grad()
def localise(above: Above, material: Material) -> Record:
    """mAP-loc by IoA-P, pointing game and PxAP of the probability maps of the scored classes, in percent."""
    above.eval()
    data, scored = material.data, material.data.scored_index
    outputs = [above(batch) for batch in material.test.split(EVAL_BATCH)]
    logits = torch.cat([out.logits for out in outputs]).numpy()[:, scored]
    maps = torch.cat([out.maps.sigmoid() for out in outputs]).numpy()[:, scored]
    labels = data.test.matrix.dense()[:, scored]
    places = (located(data, image) for image in range(len(data.test)))
    report = locate_report(maps, logits, labels, places, options=LOCATE)
    values = report.to_dict()
    return {"pairs": report.present.pairs, **{name: _percent(values[name]) for name in LOCATED}}


def located(data: BenchmarkSet, image: int) -> dict[int, Region]:
    """The boxes of each scored class in a test image, by its number among the scored ones."""
    classes, boxes = data.boxes("test", image)
    own = {n: boxes[classes == c] for n, c in enumerate(data.scored_index.tolist())}
    return {n: Region(found) for n, found in own.items() if len(found)}


def judge(pseudo: Any, labels: LabelMatrix, truth: LabelMatrix) -> Record | None:
    """Precision and recall, in percent, of the last pseudo-labels, among the cells of images without any label.

    None for methods without pseudo-labels; a ratio is None where nothing stands below it.
    """
    if not isinstance(pseudo, PseudoLabels):
        return None
    images = np.flatnonzero(labels.image_counts(Label.UNKNOWN) == labels.shape[1])
    given, true = pseudo.values.numpy()[images], truth.rows(images)
    found: Record = {"images": len(images)}
    for name, state in (("positive", Label.POSITIVE), ("negative", Label.NEGATIVE)):
        made, right, there = given == state, (given == state) & (true == state), true == state
        found[name] = {
            "per_image": round(made.sum() / len(images), 4) if len(images) else None,
            "precision": _ratio(right, made & (true != Label.UNKNOWN)),
            "recall": _ratio(right, there),
        }
    return found


def _ratio(part: NDArray[np.bool_], whole: NDArray[np.bool_]) -> float | None:
    return _percent(part.sum() / whole.sum()) if whole.any() else None


def _percent(value: float) -> float:
    return round(100 * float(value), 3)


def main() -> None:
    parser = arguments(__doc__, "budgets.toml", "comma-separated SET:BUDGET:TYPE:METHOD, parts may be empty")
    options = parser.parse_args()
    try:
        benchmark = read_budgets(options.benchmark)
        done = read_done(options.out, benchmark)
        jobs = choose_jobs(benchmark, options.only, options.seeds)
        execute(options, benchmark, jobs, done, lambda job, material: run(benchmark, job, material))
    except FewtagsError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
