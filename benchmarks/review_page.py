"""Times of the review page with many photos and classes: `review_page.py FOLDER [PHOTOS [CLASSES [ANSWERS]]]`.

Makes a synthetic run in FOLDER: an untrained net, files that are links to a few photos, one label for each, and 20,000
questions. The server is a process of its own; another process scores the photos meanwhile, as for a new model. Printed
are the times that a client sees, and how long the server's processor worked. The start is that of the process, with
the import of torch.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fewtags.labels import ClassNames, Label
from fewtags.table.storage import load, save
from fewtags.table.table import LabelTable

QUESTIONS, FOLDERS, COPIES = 20_000, 100, 2


def make(folder: Path, photos: int, classes: int) -> Path:
    """Make the photos and the run."""
    from PIL import Image

    from fewtags.engine.model import ModelInfo, save_model
    from fewtags.nets.backbones import create_net
    from fewtags.nets.spatial import HeadPlan
    from fewtags.review.questions import Question
    from fewtags.review.scoring import Found, questions_file, write_questions

    rng = np.random.default_rng(0)
    images, run = folder / "photos", folder / "run"
    keys = [f"{n % FOLDERS:02}/{n:06}.jpg" for n in range(photos)]
    for n in range(FOLDERS):
        (images / f"{n:02}").mkdir(parents=True, exist_ok=True)
        for copy in range(COPIES):
            noise = rng.integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(noise).resize((640, 480)).save(images / f"{n:02}" / f"source{copy}.jpg")
    for n, key in enumerate(keys):
        os.link(images / f"{n % FOLDERS:02}" / f"source{n % COPIES}.jpg", images / key)
    names = ClassNames.of(f"species {n:04}" for n in range(classes))
    own = rng.integers(0, classes, photos)
    state = np.full(photos, Label.POSITIVE)
    table = LabelTable.build(keys, names, image=np.arange(photos), class_=own, state=state, root=images)
    (run / "tables").mkdir(parents=True)
    (run / "review").mkdir()
    save(table, run / "tables" / "train.parquet", keep_root=True)
    (run / "run.toml").write_text('[data]\ntrain = "labels.csv"\n')
    info = ModelInfo(
        backbone="test_resnet",
        output_stride=0,
        head=HeadPlan(),
        size=64,
        policy="none",
        class_ids=names.ids,
        class_names=names.display,
        thresholds=(0.5,) * classes,
        threshold_rules=("half",) * classes,
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        method={"name": "expected_negative", "positives_per_image": 2.0},
        selection="not trained",
        version="0",
    )
    save_model(run / "model.safetensors", create_net("test_resnet", classes, weights="none", size=64, seed=0), info)
    cells = rng.permutation(np.unique(rng.integers(0, photos * classes, 2 * QUESTIONS)))
    image, class_ = np.divmod(cells, classes)
    free = (class_ != own[image]).nonzero()[0][:QUESTIONS]
    asked = [
        Question(
            image=keys[image[n]],
            class_=names.ids[class_[n]],
            name=names.display[class_[n]],
            probability=0.5,
            rank=1,
            expected=100.0,
            reason="ranked first",
            box=(0.2, 0.2, 0.6, 0.7),
        )
        for n in free.tolist()
    ]
    loaded = load(run / "tables" / "train.parquet")
    place = questions_file(run / "review", run, replace(loaded, root=loaded.require_root().absolute()), None)
    write_questions(place, Found(asked, []))
    return run


def serve(run: Path) -> None:
    """Serve the run while its photos are scored, as for a new model."""
    from fewtags.review.review import opened
    from fewtags.review.scoring import Scoring
    from fewtags.review.serve import listen
    from fewtags.review.serve import serve as serve_page

    with opened(run, cpu=True) as review:
        busy = run / "busy"
        busy.mkdir(exist_ok=True)
        scoring = Scoring(run, review.table, busy, lambda *_: None, order="best", cpu=True)
        bound = listen(port=None)
        start = {"start": time.time() - psutil.Process().create_time(), "worked": time.process_time()}
        print(json.dumps({"port": bound.getsockname()[1], "token": review.token, **start}), flush=True)
        try:
            serve_page(review, bound)
        finally:
            scoring.stop()


class Client:
    """One browser: a connection that stays open, and its cookies."""

    def __init__(self, port: int, token: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.cookies: dict[str, str] = {}
        self.send("GET", f"/?token={token}")

    def send(self, method: str, path: str, body: Any = None) -> bytes:
        """Return the content of a reply."""
        cookie = "; ".join(f"{key}={value}" for key, value in self.cookies.items())
        headers = {"Cookie": cookie, "Content-Type": "application/json"}
        self.connection.request(method, path, None if body is None else json.dumps(body), headers)
        reply = self.connection.getresponse()
        content = reply.read()
        for line in reply.headers.get_all("Set-Cookie") or []:
            key, _, value = line.partition(";")[0].partition("=")
            self.cookies[key] = value
        assert reply.status in (200, 303), (path, reply.status, content[:500])
        return content


def clock(name: str, action: Callable[[int], Any], count: int, server: psutil.Process) -> None:
    """Print the median and the 95th percentile of some calls in milliseconds, and the server's processor time."""
    worked, times = sum(server.cpu_times()[:2]), []
    for n in range(count):
        began = time.perf_counter()
        action(n)
        times.append(1000 * (time.perf_counter() - began))
    worked = 1000 * (sum(server.cpu_times()[:2]) - worked) / count
    middle, late = np.percentile(times, [50, 95])
    print(
        f"{name:28} {times[0]:8.0f} first {middle:8.1f} median {late:8.1f} 95 % {worked:8.1f} processor, ms", flush=True
    )


def main() -> None:
    folder = Path(sys.argv[1])
    if sys.argv[2:] == ["--serve"]:
        serve(folder)
        return
    given = [int(word) for word in sys.argv[2:]]
    photos, classes, answers = (*given, *(100_000, 1_000, 500)[len(given) :])
    run = folder / "run" if (folder / "run").exists() else make(folder, photos, classes)
    command = [sys.executable, __file__, str(run), "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        found = json.loads(child.stdout.readline())
        try:
            print(
                f"{photos:,} photos, {classes:,} classes; start {found['start']:.1f} s, {found['worked']:.1f} s "
                f"of them processor; load {os.getloadavg()[0]:.1f}"
            )
            client, server = Client(found["port"], found["token"]), psutil.Process(child.pid)
            clock("first page", lambda _: client.send("GET", "/"), 10, server)
            clock("one photo at a time", lambda _: client.send("GET", "/photo"), 10, server)
            clock("wall", lambda _: client.send("GET", "/wall?class=species%200007"), 10, server)
            questions: list[dict[str, Any]] = []
            while len(questions) < answers:
                got = json.loads(client.send("GET", "/api/next?count=200"))["questions"]
                cells = [{"photo": q["photo"], "class": q["class"]} for q in got]
                client.send("POST", "/api/skip", {"request": f"skip{len(questions):08}", "cells": cells})
                questions += got
            clock("picture, 1600 pixels", lambda n: client.send("GET", f"/picture/{questions[n]['photo']}"), 20, server)
            clock(
                "answer",
                lambda n: client.send(
                    "POST",
                    "/api/answer",
                    {
                        "request": f"answer{n:08}",
                        "answers": [
                            {
                                "photo": questions[n]["photo"],
                                "class": questions[n]["class"],
                                "answer": "yes",
                                "seconds": 1,
                            }
                        ],
                    },
                ),
                answers,
                server,
            )
            clock("next questions", lambda _: client.send("GET", "/api/next?count=12"), 50, server)
        finally:
            child.terminate()


if __name__ == "__main__":
    main()
