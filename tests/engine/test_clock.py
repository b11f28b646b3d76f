"""Where the time of a run goes: phases add up, also over an interruption."""

from fewtags.engine import clock as clocks
from fewtags.engine.clock import Clock, clock_line


def test_phases_add_up(monkeypatch):
    now = iter([0.0, 2.0, 5.0, 6.0, 10.0, 11.0])
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: next(now))
    clock = Clock()
    clock.lap("reading")  # 0 .. 2
    clock.start()  # 2 .. 5 belongs to nobody
    clock.lap("features")  # 5 .. 6
    assert clock.so_far("training") == {"reading": 2.0, "features": 1.0, "training": 4.0}  # 6 .. 10
    clock.lap("features")  # 6 .. 11
    assert clock.seconds == {"reading": 2.0, "features": 6.0}


def test_a_resumed_run_counts_what_was_spent_before(monkeypatch):
    now = iter([0.0, 0.0, 3.0])
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: next(now))
    clock = Clock()
    clock.add({"features": 50.0, "training": 4.0})
    clock.start()
    clock.lap("training")
    assert clock_line(clock.seconds) == "photos to model in 57 s: 50 s features, 7 s training"
