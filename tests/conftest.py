"""Settings for every test: one thread, derandomised hypothesis. Nothing of fewtags: the type hook comes first."""

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=30)
settings.load_profile("ci")

collect_ignore = ["stress"]  # `make stress` runs these scripts


def pytest_collection_finish() -> None:
    """Every training stage collects garbage; looking through all of torch each time would take most of the time."""
    gc.collect()
    gc.freeze()
