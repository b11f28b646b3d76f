"""Training on two processes beside one, each with one thread, on the CPU: photos a second.

    OMP_NUM_THREADS=1 python benchmarks/processes.py                          # MobileNetV2, 224 px, batches of 16 each
    OMP_NUM_THREADS=1 python benchmarks/processes.py --net resnet18 224 80 16 --rounds 3

The loop is that of `train`, with EN + SCL and gradients summed by gloo; photos are random and in memory. In each round,
one process and then two begin anew and take the same number of steps each. They are timed by the wall, without the
first ones. The ratio is that of photos a second; 2 is the most. Nothing else may run on the machine. `--busy` also
measures two processes that know nothing of each other: what two cores of this machine do beside each other.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpu import TRAINED, Setting, steps_of

WARM_UP = 2


def work(setting: Setting, steps: int, cpu: bool = True) -> None:
    """Print the seconds of some steps of this process."""
    from fewtags.nets.backbones import create_net

    net = create_net(setting.backbone, setting.classes, weights="none", size=setting.size)
    take = steps_of(setting, TRAINED["EN + SCL"], net, "no", cpu, 1)
    for _ in range(WARM_UP):
        take()
    begun = time.perf_counter()
    for _ in range(steps):
        take()
    print(json.dumps({"seconds": time.perf_counter() - begun}), flush=True)


def timed(arguments: Sequence[str], processes: int, together: bool) -> float:
    """Start processes, of one group or each alone; return the mean of their seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}
    command = [sys.executable, __file__, "--work", *arguments]
    started = []
    for rank in range(processes):
        own = {**group, "RANK": str(rank), "LOCAL_RANK": str(rank)} if together and processes > 1 else {}
        started.append(subprocess.Popen(command, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True))
    said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("a process failed, see above")
    return statistics.fmean(float(json.loads(words.splitlines()[-1])["seconds"]) for words in said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", nargs=4, metavar=("NAME", "SIZE", "CLASSES", "BATCH"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--busy", action="store_true", help="also two processes without a group")
    parser.add_argument("--out", type=Path, help="append one line of JSON a round")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    name, size, classes, batch = options.net or ("mobilenetv2_100", "224", "80", "16")
    setting = Setting(name, int(size), int(classes), int(batch), 8 * int(batch))
    if options.work:
        work(setting, options.steps)
        return
    arguments = ["--net", name, size, classes, batch, "--steps", str(options.steps)]
    found: dict[str, list[float]] = {"two of a group": [], "two alone": []}
    for number in range(options.rounds):
        one = timed(arguments, 1, together=False)
        found["two of a group"].append(2 * one / timed(arguments, 2, together=True))
        if options.busy:
            found["two alone"].append(2 * one / timed(arguments, 2, together=False))
        line = {"round": number + 1, "photos_a_second": options.steps * setting.batch / one}
        line |= {f"ratio, {key}": values[-1] for key, values in found.items() if values}
        print(json.dumps(line), flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps({**line, "net": name, "size": size, "classes": classes, "batch": batch}) + "\n")
    for key, values in found.items():
        if values:
            print(f"{key}: {statistics.median(values):.2f} times one process ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
