"""Build the wheel, install it into a new environment, and use it there: `python scripts/dist.py` (make dist).

The new environment takes the dependencies from the environment that runs this script; `--full` installs them from the
package index instead, as a user does (several GB). The package itself must come from the wheel: every file of
src/fewtags that git knows must be in it, and train, predict and report must run in an empty folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TINY = "--weights none --cpu --set model.backbone=test_resnet --set augment.size=32 --set train.workers=0 --epochs 1"
DRAW = """
import numpy as np
from pathlib import Path
from PIL import Image
for n in range(24):
    folder = Path("photos", ("red", "blue")[n % 2])
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(n).integers(0, 90, (40, 48, 3)).astype("uint8")
    pixels[:, :, 2 * (n % 2)] += 150
    Image.fromarray(pixels).save(folder / f"{n}.png")
"""


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """Run a command; print it, and end with its output if it fails."""
    began = time.perf_counter()
    words = [str(word) for word in command]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    shown = " ".join(word if len(word) < 60 else "..." for word in words)
    print(f"{time.perf_counter() - began:6.1f} s  {shown}", flush=True)
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{done.stderr}\nfailed with exit code {done.returncode}")
    return done.stdout


def build(out: Path) -> Path:
    """Build the wheel, and check that it has every file of the package."""
    shutil.rmtree(out, ignore_errors=True)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", out, ROOT)
    (wheel,) = out.glob("*.whl")
    inside = {*zipfile.ZipFile(wheel).namelist()}
    wanted = {name.removeprefix("src/") for name in run("git", "ls-files", "src/fewtags").splitlines()}
    if missing := sorted(wanted - inside):
        raise SystemExit(f"{wheel.name} lacks {len(missing)} files of the package, for example {missing[0]}")
    print(f"{wheel} has all {len(wanted)} files of the package, {wheel.stat().st_size / 1e6:.2f} MB")
    return wheel


def install(wheel: Path, place: Path, *, full: bool) -> Path:
    """Install the wheel into a new environment; return the folder of its commands."""
    venv.create(place, with_pip=True)
    commands = place / ("Scripts" if sys.platform == "win32" else "bin")
    python = commands / "python"
    if full:
        run(python, "-m", "pip", "install", "--quiet", wheel)
    else:
        run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel)
        own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return commands


def use(commands: Path, folder: Path) -> None:
    """Train, predict and report with the installed package, in an empty folder."""
    where = run(commands / "python", "-c", "import fewtags; print(fewtags.__file__)", folder=folder).strip()
    if not Path(where).resolve().is_relative_to(commands.parent.resolve()):
        raise SystemExit(f"fewtags was imported from {where}, not from the wheel")
    run(commands / "python", "-c", DRAW, folder=folder)
    fewtags = commands / "fewtags"
    run(fewtags, "--version", folder=folder)
    run(fewtags, "train", "photos", "--out", "run", *TINY.split(), folder=folder)
    run(fewtags, "predict", "run", "photos", "--wide", "--out", "scores.parquet", "--cpu", folder=folder)
    for name in ("run/model.safetensors", "run/report.html", "run/README.md", "scores.parquet"):
        if not (folder / name).exists():
            raise SystemExit(f"the installed package wrote no {name}")


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the wheel")
    parser.add_argument("--full", action="store_true", help="install the dependencies from the package index")
    options = parser.parse_args()
    wheel = build(options.out.resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "work").mkdir()
        use(install(wheel, folder / "environment", full=options.full), folder / "work")
    print("the wheel works in a clean environment")


if __name__ == "__main__":
    main()
