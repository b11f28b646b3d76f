"""Checks of settings that contradict each other, while `presets.resolve` derives the others."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from fewtags.config.sections import AugmentConfig, StageConfig, TrainConfig
from fewtags.errors import ConfigError
from fewtags.text import flag, named

SMALLEST_AREA: Mapping[str, float] = {"coco": 0.25, "imagenet": 0.08, "none": 1.0}


def check_stages(stages: tuple[StageConfig, ...]) -> None:
    """Check that there is an epoch to train, and that warm-up stages come first."""
    if not any(stage.epochs for stage in stages):
        raise ConfigError("train.stages have no epochs; give at least one stage epochs above 0.")
    later = [stage.name for before, stage in pairwise(stages) if stage.warmup and not before.warmup]
    if later:
        raise ConfigError(
            f"stage {later[0]!r} has warmup = true but comes after a stage without; warm-up stages come first."
        )


def check_minutes(train: TrainConfig, preset: str, stages: tuple[StageConfig, ...], processes: int) -> None:
    """Check that `train.minutes` has epochs to choose."""
    asked = named("train.minutes", train.minutes)
    if others := [named(f"train.{name}") for name in ("stages", "epochs") if getattr(train, name) is not None]:
        raise ConfigError(f"{asked} chooses the number of epochs, and {others[0]} gives it; leave one of them out.")
    if stages[-1].trainable == "head":
        raise ConfigError(
            f"{asked} chooses how long to fine-tune, and {named('train.preset', preset)} trains only the head; leave "
            "one of them out."
        )
    if processes > 1:
        raise ConfigError(f"{asked} is for one process, and there are {processes}; give {flag('epochs')} instead.")


def check_selection(select: str, last: StageConfig) -> None:
    """Check that `train.select = "last"` does not choose among solutions, which have no order in time."""
    if select == "last" and last.solved and last.epochs > 1:
        several = f"{len(last.logit_variances)} logit_variances"
        if last.answer_weights:
            several = f"{last.solutions} solutions"
        raise ConfigError(
            f'train.select = "last" cannot choose among the {several} of stage '
            f'{last.name!r}: use "auto", which chooses on validation; or give the stage a single one in train.stages; '
            f"or train in steps ({flag('preset', 'views')})."
        )


def check_policy(policy: str, augment: AugmentConfig) -> None:
    """Check that settings of crops and flips are not given with the policy `none`, which does neither."""
    areas = {"augment.min_area": augment.min_area, "augment.max_area": augment.max_area}
    asked = [f"{name} = {area:g}" for name, area in areas.items() if area is not None]
    asked += ["augment.flip = true"] if augment.flip else []
    if policy == "none" and asked:
        raise ConfigError(
            f'{" and ".join(asked)} would do nothing: augment.policy = "none" shows the whole photo, never flipped; '
            'leave it out, or use the policy "coco" or "imagenet".'
        )
    least, most = augment.min_area or SMALLEST_AREA[policy], augment.max_area or 1.0
    if least > most:
        raise ConfigError(
            f"augment.min_area = {least:g} is above augment.max_area = {most:g}; give the smaller number to min_area."
        )
