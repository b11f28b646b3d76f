"""Whether the running scores and heatmaps of expected-negative training fit, before they are allocated."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from fewtags.check.check import HeatmapNeed
from fewtags.engine.machine import free_disk, free_memory, share_of_images, torch_device
from fewtags.errors import ConfigError
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.stores.heatmaps import HeatmapPlan, heatmap_bytes

VISITS = 4
"""Bytes that every row of a store spends on counting its updates."""


def score_bytes(samples: int, classes: int, dtype: str) -> int:
    """Bytes of a `ScoreStore`: a number per image and class, "float32" or "float16", and a count per image.

    >>> score_bytes(1_281_167, 1000, "float32") / 1e9  # ImageNet
    5.129792668
    """
    return samples * (classes * (4 if dtype == "float32" else 2) + VISITS)


def heatmap_memory(
    objective: ExpectedNegative,
    samples: int,
    classes: int,
    grid: tuple[int, int],
    *,
    out: Path | None = None,
    most_positives: int = 1,
    cpu: bool = False,
) -> int:
    """Bytes of the heatmaps, over all processes; 0 where none are kept.

    Half of the free memory may be used, by the running scores first: of each GPU by the images of its process, of main
    memory by the images of all processes on the machine. On disk it is a third of the free space: while a checkpoint is
    written, the one before is still there.

    Args:
        objective: says how scores and heatmaps are kept.
        samples: N training images, over all processes.
        classes: C.
        grid: (height, width) of the net's maps.
        out: the run folder, where heatmaps on disk go; None: the working directory.
        most_positives: annotated positives of one image, at most; the least that top-k can be.
        cpu: ignore GPUs.

    Raises:
        ConfigError: they do not fit; what would is proposed.
    """
    device = torch_device(cpu)
    share = share_of_images(device)
    here = math.ceil(samples * share)
    owner = "" if share == 1 else f" of this {'GPU' if device.type == 'cuda' else 'machine'}"
    whose = f"{here:,} images{owner} and {classes:,} classes"
    free, scores = free_memory(device) // 2, score_bytes(here, classes, objective.score_dtype)
    if scores > free:
        raise ConfigError(_scores_text(objective, whose, scores, score_bytes(here, classes, "float16"), free))
    if objective.gamma == 0:
        return 0
    plan = objective.heatmap_plan()
    everywhere = heatmap_bytes(samples, classes, grid, plan)
    if objective.heatmap_storage == "disk":
        here, needed, free = samples, everywhere, free_disk(out or Path.cwd()) // 3
        whose, beside, other = f"{samples:,} images and {classes:,} classes", " of the disk", ""
    else:
        needed, free = heatmap_bytes(here, classes, grid, plan), free - scores
        beside = f" beside {scores / 1e9:.1f} GB of running scores"
        other = '; objective.heatmap_storage = "disk" needs no more memory'
    if needed > free:
        lines = range(max(1, most_positives), plan.kept(classes))
        fitting = [k for k in lines if heatmap_bytes(here, classes, grid, replace(plan, top_k=k)) <= free]
        least = "one heatmap" if most_positives <= 1 else f"the {most_positives} heatmaps of annotated classes"
        top = f"objective.heatmap_top_k = {fitting[-1]} fits" if fitting else f"not even {least} per image would fit"
        raise ConfigError(
            f"heatmaps of {whose} take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB{beside} may be used: {top}"
            f"{other}; objective.scl_weight = 0 does without heatmaps."
        )
    return everywhere


def _scores_text(objective: ExpectedNegative, whose: str, scores: int, halved: int, free: int) -> str:
    start = f"running scores of {whose} take {scores / 1e9:.1f} GB, and {free / 1e9:.1f} GB may be used: "
    if objective.score_dtype == "float32" and halved <= free:
        return f'{start}objective.score_dtype = "float16" fits.'
    return (
        f"{start}train where there is more memory, on fewer images, or with --method assume_negative, which has none."
    )


def heatmap_need(grid: tuple[int, int]) -> HeatmapNeed:
    """For `check`: what dense or top-k heatmaps take, against half of the free memory."""

    def needed(samples: int, classes: int, top_k: int | None) -> int:
        return heatmap_bytes(samples, classes, grid, HeatmapPlan(top_k=top_k))

    return HeatmapNeed(needed, free_memory() // 2)
