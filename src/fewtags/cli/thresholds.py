"""`fewtags thresholds`: show, change and store the thresholds of a model."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fewtags.cli.options import Json, Precision, Threshold
from fewtags.cli.progress import echo, say
from fewtags.cli.use import Model, with_own_thresholds
from fewtags.errors import ConfigError


def thresholds(
    model: Model,
    threshold: Threshold = None,
    precision: Precision = None,
    store: Annotated[
        bool, typer.Option("--store", help="Store them in the model, so that predict and evaluate use them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show or change the thresholds at which a model tags a photo.

    Prints each class with its threshold and the rule that chose it. The JSON can be edited and given to --threshold.

    \b
    Examples:
      fewtags thresholds runs/first
      fewtags thresholds runs/first --json > thresholds.json
      fewtags thresholds runs/first --threshold thresholds.json --store
      fewtags thresholds runs/first --precision 0.9 --threshold cat=0.3 --store
    """  # noqa: D301
    from fewtags.engine.places import refuse_missing_model

    if store and not threshold and precision is None:
        raise ConfigError("--store needs thresholds to store: give --threshold or --precision.")
    refuse_missing_model(model)
    from fewtags.engine.onnx_net import read_predictor_info
    from fewtags.engine.own_thresholds import store_thresholds

    info = with_own_thresholds(read_predictor_info(model), model, threshold, precision)
    if store:
        say(*store_thresholds(model, info))
    rows = [
        {"class": class_id, "name": name, "threshold": value, "rule": rule}
        for class_id, name, value, rule in zip(
            info.class_ids, info.classes.display, info.thresholds, info.threshold_rules, strict=True
        )
    ]
    if as_json:
        echo(json.dumps({"thresholds": rows}, ensure_ascii=False))
        return
    width = max(5, *(len(name) for name in info.classes.display))
    echo(f"{'class':<{width}}  threshold  rule")
    for row in rows:
        echo(f"{row['name']:<{width}}  {row['threshold']:>9.3f}  {row['rule']}")
