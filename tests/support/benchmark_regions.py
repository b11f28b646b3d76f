"""Functions of the benchmarks that tests of the metrics use, too."""

import importlib
import sys
from pathlib import Path

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
sys.path.insert(0, BENCHMARKS)
regions = importlib.import_module("regions")
sys.path.remove(BENCHMARKS)

localisation_report = regions.localisation_report
