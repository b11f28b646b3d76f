"""fewtags: train multi-label image classifiers, with heatmaps, from one label per photo or whatever labels there are.

Names are imported when they are first used, so that `import fewtags` takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fewtags.api import Classifier, pretrain
    from fewtags.engine.fit import Fit, FitConfig
    from fewtags.formats.frames import from_pandas
    from fewtags.formats.hub_datasets import from_datasets, to_datasets
    from fewtags.formats.options import ReadOptions
    from fewtags.formats.read import read
    from fewtags.labels import ClassNames, Label
    from fewtags.objectives.assume_negative import BCE, AssumeNegative
    from fewtags.objectives.base import Objective
    from fewtags.objectives.expected_negative import ExpectedNegative
    from fewtags.objectives.fixmatch import FixMatch
    from fewtags.objectives.patchml import PatchML
    from fewtags.table.arrays import from_array
    from fewtags.table.merge import merge
    from fewtags.table.storage import save
    from fewtags.table.table import LabelTable

_HOMES = {
    "BCE": "fewtags.objectives.assume_negative",
    "AssumeNegative": "fewtags.objectives.assume_negative",
    "ClassNames": "fewtags.labels",
    "Classifier": "fewtags.api",
    "ExpectedNegative": "fewtags.objectives.expected_negative",
    "Fit": "fewtags.engine.fit",
    "FitConfig": "fewtags.engine.fit",
    "FixMatch": "fewtags.objectives.fixmatch",
    "Label": "fewtags.labels",
    "LabelTable": "fewtags.table.table",
    "Objective": "fewtags.objectives.base",
    "PatchML": "fewtags.objectives.patchml",
    "ReadOptions": "fewtags.formats.options",
    "from_array": "fewtags.table.arrays",
    "from_datasets": "fewtags.formats.hub_datasets",
    "from_pandas": "fewtags.formats.frames",
    "merge": "fewtags.table.merge",
    "pretrain": "fewtags.api",
    "read": "fewtags.formats.read",
    "save": "fewtags.table.storage",
    "to_datasets": "fewtags.formats.hub_datasets",
}
"""Where each public name lives (PEP 562); a test compares it with the imports above."""

__all__ = [
    "BCE",
    "AssumeNegative",
    "ClassNames",
    "Classifier",
    "ExpectedNegative",
    "Fit",
    "FitConfig",
    "FixMatch",
    "Label",
    "LabelTable",
    "Objective",
    "PatchML",
    "ReadOptions",
    "from_array",
    "from_datasets",
    "from_pandas",
    "merge",
    "pretrain",
    "read",
    "save",
    "to_datasets",
]


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name == "__version__":
        from importlib.metadata import version

        return version("fewtags")
    if name not in _HOMES:
        raise AttributeError(f"module 'fewtags' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return __all__
