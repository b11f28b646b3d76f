"""Settings and runs of searches."""

from fewtags.config.presets import Facts

SOLVED = {"train__preset": "cpu", "train__stages": None, "train__cached_views": None, "train__batch_size": None}
SIZES = {"augment__size": None, "search__sizes": [32, 64]}


FACTS = Facts(samples=24, classes=10, device="cpu", cores=2)
