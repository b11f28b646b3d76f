"""Test the oldest allowed versions of the dependencies: `python scripts/oldest.py [--python python3.11]` (make oldest).

Every lower bound in pyproject.toml becomes an exact version. They are installed into a new environment (several GB), in
which tests run. `--print` prints the constraints for pip, and installs nothing. `--newest` takes the newest versions
instead: with `--python python3.14`, the newest Python.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
BOUND = re.compile(r"([A-Za-z0-9._-]+)>=([0-9.]+)")
TESTS = (
    "tests/engine",
    "tests/cli",
    "tests/formats",
    "tests/nets",
    "tests/losses",
    "tests/metrics",
    "tests/api",
)
TOOLS = (
    *("pytest", "pytest-timeout", "hypothesis", "beartype", "scikit-learn", "faster-coco-eval", "imagehash"),
    *("fastapi", "uvicorn", "python-multipart"),
)


def oldest(requirements: list[str]) -> list[str]:
    """Return the lowest allowed version of each requirement.

    >>> oldest(["torch>=2.7", "pyyaml>=6"])
    ['torch==2.7', 'pyyaml==6']
    """
    found = []
    for requirement in requirements:
        if (bound := BOUND.fullmatch(requirement)) is None:
            raise SystemExit(f"{requirement!r} in pyproject.toml has no lower bound of the form NAME>=VERSION")
        found.append(f"{bound[1]}=={bound[2]}")
    return found


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="python3.11")
    parser.add_argument("--print", action="store_true", dest="only_print")
    parser.add_argument("--newest", action="store_true")
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pinned = oldest(project["dependencies"] + project["optional-dependencies"]["offline"])
    if options.only_print:
        print("\n".join(pinned))
        return
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "oldest.txt").write_text("" if options.newest else "\n".join(pinned))
        subprocess.run([options.python, "-m", "venv", place / "environment"], check=True)
        python = place / "environment" / "bin" / "python"
        install = [python, "-m", "pip", "install", "--quiet", "-c", place / "oldest.txt"]
        subprocess.run([*install, f"{ROOT}[offline]", *TOOLS], check=True)
        subprocess.run([python, "-m", "pip", "list"], check=True)
        # Old versions of other packages warn about each other.
        tests = [python, "-m", "pytest", "-W", "default", *TESTS]
        raise SystemExit(subprocess.run(tests, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
