"""Run the commands of the Dockerfile without Docker: copies, installation of fewtags, the service, its health check.

`python docker/check.py RUN` installs into a temporary environment that sees the packages of this Python, so that torch
is not downloaded again; `useradd` and the installation of torch are skipped. `--port` avoids a port that is in use.
"""

import argparse
import json
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SKIPPED = ("useradd", "pip install --no-cache-dir torch ")


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile in order: the word, and the rest of the line."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def health_command(rest: str) -> list[str]:
    """Return the command of a HEALTHCHECK."""
    return shlex.split(rest.split(" CMD ", 1)[1])


def copy(rest: str, place: Path) -> None:
    """Carry out a COPY."""
    *sources, target = rest.split()
    for source in sources:
        found = ROOT / source
        if found.is_dir():
            shutil.copytree(found, place / target, dirs_exist_ok=True)
        else:
            shutil.copy(found, place / target)


def main() -> None:
    """Run every instruction; raise an error at the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--port", default="8000")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "app"
        place.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", f"{folder}/venv"], check=True)
        site = next(Path(folder, "venv").glob("lib/python*/site-packages"))
        paths = [sysconfig.get_path("purelib"), *(p for p in sys.path if p.endswith(".site"))]
        (site / "outer.pth").write_text("\n".join(paths))
        python = f"{folder}/venv/bin/python"
        service, health = [], []
        for word, rest in instructions((ROOT / "docker" / "Dockerfile").read_text("utf-8")):
            if word == "COPY":
                copy(rest, place)
            elif word == "RUN" and not rest.startswith(SKIPPED):
                command = [python, "-m", *shlex.split(rest), "--no-deps", "--quiet"]
                subprocess.run(command, cwd=place, check=True)
            elif word == "HEALTHCHECK":
                health = [python if w == "python" else w.replace("8000", given.port) for w in health_command(rest)]
            elif word == "CMD":
                service = [w.replace("8000", given.port) for w in json.loads(rest)]
            print(word, rest[:90], flush=True)
        service = [str(given.run.resolve()) if w == "/model" else w for w in service]
        process = subprocess.Popen(
            [python, "-m", *service], cwd=place, env={"PATH": "/usr/bin", "PYTHONUNBUFFERED": "1"}
        )
        try:
            for _ in range(60):
                if subprocess.run(health, stderr=subprocess.DEVNULL, check=False).returncode == 0:
                    break
                time.sleep(2)
            subprocess.run(health, check=True)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, process.returncode
        finally:
            process.kill()
    print("the service answered its health check, and ended with code 0 after SIGTERM")


if __name__ == "__main__":
    main()
