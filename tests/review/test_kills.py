"""Kill -9 of the server between and during answers; `make stress` kills 200 times."""

from pathlib import Path

from two_processes import load

kills = load(Path(__file__).parents[1] / "stress" / "review_kills.py")


def test_no_answer_that_was_shown_as_saved_is_lost(run):
    actions, problems = kills.kill_rounds(run, 3, seed=1)
    assert problems == []
    assert actions >= 3
