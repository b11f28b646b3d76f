"""The table of users' problems names tests that exist, and leaves out none of the 54."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROWS = re.findall(
    r"^\| (\d+) \| (.*?) \| (.*?) \|(.*)\|$", (TESTS.parent / "docs" / "user_problems.md").read_text("utf-8"), re.M
)


def test_all_problems_are_there():
    assert [int(number) for number, *_ in ROWS] == list(range(1, 55))


def test_each_solution_names_tests_that_exist():
    """A row without a test says that there is no solution yet."""
    for number, _, solution, named in ROWS:
        tests = re.findall(r"`([^`]+)::(test_\w+)`", named)
        assert bool(tests) != solution.startswith("not there yet"), number
        for file, name in tests:
            assert re.search(rf"^def {name}\(", (TESTS / file).read_text("utf-8"), re.M), (number, file, name)
