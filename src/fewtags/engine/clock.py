"""Wall-clock time of the phases of a run."""

from __future__ import annotations

import time
from typing import final


@final
class Clock:
    """Measures the wall `seconds` of each phase; a phase may occur more than once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    def add(self, seconds: dict[str, float]) -> None:
        """Add the seconds of an interrupted run."""
        for phase, value in seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + value

    def so_far(self, phase: str) -> dict[str, float]:
        """Return the seconds as if `phase` ended now."""
        return {**self.seconds, phase: self.seconds.get(phase, 0.0) + time.perf_counter() - self._began}

    def start(self) -> None:
        """Start a phase; the time since the last one is not counted."""
        self._began = time.perf_counter()

    def lap(self, phase: str) -> None:
        """End a phase, and start the next one."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._began
        self._began = now


def clock_line(seconds: dict[str, float]) -> str:
    """Describe the time of a run in one line.

    >>> clock_line({"checking": 2.2, "features": 51.6, "training": 9.0})
    'photos to model in 63 s: 2 s checking, 52 s features, 9 s training'
    """
    parts = ", ".join(f"{value:.0f} s {phase}" for phase, value in seconds.items())
    return f"photos to model in {sum(seconds.values()):.0f} s: {parts}"
