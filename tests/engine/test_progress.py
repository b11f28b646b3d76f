"""What is shown while something runs."""

import pytest

from fewtags.engine import progress
from fewtags.engine.events import EpochEnded, EpochStarted, Event, Started, StepEnded
from fewtags.objectives.base import Progress


def record(**values: float | str) -> dict[str, float | int | str]:
    return {"epoch": 0, "stage": "main", "train/loss": 0.5, "seconds": 1.25, **values}


def test_epoch_line_without_known_negatives() -> None:
    line = progress.epoch_line(
        record(**{"val/hit@1": 0.5, "val/pessimistic_mAP": 0.25, "train/sum_of_probabilities": 1.5}), 2, False
    )
    assert line == (
        "epoch 1/2 main  loss 0.5000  val hit@1 50.0  val mAP, unknown counted as absent 25.0  "
        "predicted positives/image 1.50  1.2 s"
    )


def test_show_is_one_line_an_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    events: list[Event] = [
        Started(1, 2, None, 0),
        EpochStarted(0, "main", {}),
        StepEnded(Progress(0, 1, 2), 1, True),
        EpochEnded(record(**{"val/mAP": 0.5}), True),
    ]
    progress.show(iter(events), "[an] ")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "[an] epoch 1/1 main  loss 0.5000  val mAP 50.0 (best so far)  1.2 s",
    ]


def test_long_waits_say_how_far_they_are_when_piped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 10.0, 31.0, 31.0, 40.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    with progress.counting("looking at photos") as tick:
        tick(100, 5000)
        tick(1200, 5000)
        tick(1300, 5000)
    assert capsys.readouterr().err == "looking at photos: 1,200 of 5,000, about 98 s left\n"


def test_very_long_waits_are_foretold_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 of 300,000 in 6 s: 900 s in all, which is 15 min."""
    clock = iter([0.0, 1.0, 6.0, 6.0, 7.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    with progress.counting("looking at photos", faster="headers alone are faster") as tick:
        tick(1_999, 300_000)
        tick(2_000, 300_000)
        tick(4_000, 300_000)
    said = "looking at photos: 300,000 will take about 15 min; headers alone are faster\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(("total", "faster"), [(200_000, "headers"), (300_000, "")])
def test_what_is_quick_or_cannot_be_faster_is_not_foretold(
    capsys: pytest.CaptureFixture[str], total: int, faster: str
) -> None:
    with progress.counting("looking at photos", faster=faster) as tick:
        tick(5_000, total)
    assert capsys.readouterr().err == ""


def test_only_one_of_many_processes_speaks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    progress.say("hello")
    progress.show(iter([EpochEnded(record(), False)]))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("RANK", "0")
    progress.say("hello")
    assert capsys.readouterr() == ("", "hello\n")
