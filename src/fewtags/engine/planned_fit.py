"""The training loop of a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path

from torch import nn

from fewtags.config.presets import Resolved
from fewtags.engine.fit import Fit, FitConfig
from fewtags.engine.plan import make_problem
from fewtags.engine.run_photos import RunPhotos
from fewtags.engine.sources import StoredViews
from fewtags.table.answered import answered


def make_fit(
    photos: RunPhotos,
    *,
    out: Path | None = None,
    validate: Callable[[nn.Module], Mapping[str, float]] | None = None,
) -> Fit:
    """Return the loop of the plan of `photos`, whose features are computed.

    `out` is the run folder; None writes nothing. `validate` replaces the measures of validation.
    """
    plan, r, device = photos.plan, photos.plan.resolved, photos.device
    net, tables, source = plan.net.to(device), plan.tables, photos.source()
    problem = make_problem(r, tables.train.matrix, net.head.features_dim, plan.grid, device, photos.shard)
    problem = replace(
        problem,
        state_dir=None if out is None else out / "state",
        truth=None if tables.truth is None else tables.truth.matrix,
        teacher=None if plan.teacher is None else plan.teacher.values,
        answered=answered(tables.train),
    )
    return Fit(
        net,
        plan.objective,
        source,
        FitConfig(**{f.name: getattr(r, f.name) for f in fields(FitConfig) if f.name in Resolved.model_fields}),
        problem,
        fixed=photos.fixed,
        accelerator=photos.accelerator,
        model=net.head if isinstance(source, StoredViews) else net,
        out=out,
        validate=validate or photos.validation(),
        predict=photos.predict_train,
    )
