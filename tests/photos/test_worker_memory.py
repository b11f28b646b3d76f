"""Memory of worker processes: a forked process that reads names must not copy the pages of all of them."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
from pathlib import Path
import pyarrow as pa
from fewtags.photos.dataset import PhotoFolder

names = [f"folder/photo_{n:09d}.jpg" for n in range(200_000)]
folder = PhotoFolder(Path("/photos"), pa.array(names, pa.string()))

def private():
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")) / 1024

def grown(read):
    ours, theirs = os.pipe()
    if not os.fork():
        for n in range(20_000):  # what the interpreter itself touches
            read(n)
        before = private()
        for n in range(20_000, len(names)):
            read(n)
        os.write(theirs, str(private() - before).encode())
        os._exit(0)
    os.wait()
    return float(os.read(ours, 100))

print(grown(folder.path), grown(lambda n: str(names[n])))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="private memory is read from Linux's /proc")
def test_reading_names_in_a_worker_does_not_copy_their_list():
    """A list of the same names, the control, is copied: reference counts are written beside each of them."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    arrow, objects = map(float, done.stdout.split())
    assert objects > 4
    assert arrow < objects / 2
