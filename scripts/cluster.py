"""Run the tests that need Ray, in an environment of their own: `python scripts/cluster.py` (make cluster).

Ray takes 350 MB with what it needs, so it is not part of the development environment, whose packages are used here.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / ".venv-cluster"
RAY = "ray[data]==2.60.0"


def main() -> None:
    """Run the script."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(ENVIRONMENT, with_pip=True)
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    place = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
    (place / "development.pth").write_text(f"{ROOT / 'src'}\n{sysconfig.get_path('purelib')}\n")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-c", ROOT / "requirements" / "lock.txt", RAY], check=True)
    tests = [python, "-m", "pytest", "tests/cluster/test_ray.py", "tests/cluster/submitit_local.py", *sys.argv[1:]]
    raise SystemExit(subprocess.run(tests, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
