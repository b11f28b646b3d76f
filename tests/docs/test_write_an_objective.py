"""The method of docs/write_an_objective.md, as its reader uses it: a module of their own beside their photos."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from forks import Ended, command, forked
from PIL import Image

import fewtags.report.build
from fewtags.api import Classifier
from fewtags.engine.checkpoint import CheckpointFolder

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "write_an_objective.md").read_text("utf-8")
METHOD = "my_losses:LargeLossRejection"
TINY = (
    *("--weights", "none", "--preset", "views", "--cpu", "--set", "model.backbone=test_resnet"),
    *("--set", "augment.size=64", "--set", "train.cached_views=0", "--set", "train.batch_size=4"),
    *("--set", "train.workers=0", "--set", "train.epochs=3", "--set", "train.baseline=false"),
)


def interrupted():
    """In a forked process: as if Ctrl-C came after the second checkpoint."""
    finish, finished = CheckpointFolder.finish, []

    def stopping(*args):
        path = finish(*args)
        finished.append(path)
        if len(finished) == 2:
            raise KeyboardInterrupt
        return path

    CheckpointFolder.finish = stopping


@pytest.fixture
def place(tmp_path):
    """photos/ with two classes, and my_losses.py beside them."""
    rng = np.random.default_rng(0)
    for n in range(16):
        name, colour = ("red", (220, 30, 30)) if n % 2 else ("blue", (40, 60, 230))
        pixels = rng.integers(90, 140, (48, 64, 3)).astype(np.uint8)
        pixels[14:34, 10:40] = colour
        (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{n}.png")
    module = next(text for text in PAGE.split("```python\n")[1:] if "class LargeLossRejection" in text)
    (tmp_path / "my_losses.py").write_text(module.split("```")[0], "utf-8")
    return tmp_path


def fewtags(*arguments, folder):
    """Run the command line in a new interpreter, in a folder."""
    words = [sys.executable, "-c", "from fewtags.cli.main import run; run()", *map(str, arguments)]
    done = subprocess.run(words, cwd=folder, env=os.environ, capture_output=True, text=True, timeout=300)
    return Ended(done.returncode, done.stdout, done.stderr)


def test_it_trains_resumes_predicts_and_reports(place):
    """An interrupted run is resumed in another folder, to the same bits; the model needs no class of ours."""
    done = fewtags("train", "photos", "--method", METHOD, *TINY, "--out", "whole", folder=place)
    assert done.code == 0, done.err
    assert f"method: {METHOD}" in done.err
    assert (place / "whole" / "report.html").exists()
    record = json.loads((place / "whole" / "environment.json").read_text("utf-8"))
    assert record["method"] == {"name": METHOD, "growth": 0.002}
    assert record["method_source"]["file"] == str(place / "my_losses.py")

    words = ("train", "photos", "--method", METHOD, *TINY, "--out", "half")
    assert command(*words, folder=place, before=interrupted).code == 130
    (place / "elsewhere").mkdir()
    done = command("resume", "../half", folder=place / "elsewhere")
    assert done.code == 0, done.err
    logits = [np.load(place / run / "evaluation" / "val.npy") for run in ("whole", "half")]
    assert np.array_equal(*logits)

    (place / "my_losses.py").unlink()
    assert command("predict", "../half", "../photos", folder=place / "elsewhere").code == 0
    assert command("evaluate", "half", "photos", folder=place).code == 0
    assert command("report", "half", folder=place).code == 0


def test_a_run_whose_module_is_gone_says_what_to_do(place):
    command("train", "photos", "--method", METHOD, *TINY, "--out", "half", folder=place, before=interrupted)
    (place / "my_losses.py").unlink()
    done = command("resume", "half", folder=place)
    assert done.code == 1
    assert f"cannot find the module 'my_losses' of the method {METHOD}: there is no my_losses.py" in done.err


def test_settings_are_checked(place):
    done = command("train", "photos", "--method", METHOD, "--set", "objective.growth=2", folder=place)
    assert (done.code, "growth must be in 0..1, got 2" in done.err) == (1, True)
    done = command("train", "photos", "--method", METHOD, "--set", "objective.grow=0.1", folder=place)
    assert (done.code, "did you mean 'objective.growth'?" in done.err) == (1, True)


def test_the_python_interface_takes_the_object(place):
    def use():
        from my_losses import LargeLossRejection

        settings = {"model.backbone": "test_resnet", "train.workers": 0, "train.epochs": 2, "train.baseline": False}
        method = LargeLossRejection(growth=0.1)
        clf = Classifier(objective=method, weights="none", size=64, preset="views", device="cpu")
        clf.fit("photos", out="run", settings=settings)
        print(clf.info_.method)

    done = forked(use, place)
    assert done.code == 0, done.err
    assert done.out.strip() == str({"name": METHOD, "growth": 0.1})


PULL = """
from dataclasses import dataclass
from fewtags.losses.contrastive import negative_cosine
from fewtags.nets.encoder import pooled
from fewtags.objectives.base import Objective, Step

@dataclass(eq=False)
class Pull(Objective):
    needs_second_view = True
    scale: float = 1.0

    def step(self, net, batch, at):
        one, two = (pooled(view) for view in net(batch.images, batch.second_view.images))
        return Step(self.scale * negative_cosine(one, two.detach()), {})
"""


def test_a_method_of_pretraining_works_the_same_way(place):
    (place / "my_views.py").write_text(PULL, "utf-8")
    options = ("--backbone", "test_resnet", "--set", "augment.size=64", "--set", "train.workers=0", "--cpu")
    options += ("--set", "train.epochs=2", "--set", "objective.scale=0.5", "--out", "run")
    done = command("pretrain", "photos", "--method", "my_views:Pull", *options, folder=place)
    assert done.code == 0, done.err
    assert "report: run/report.html" in done.out
    assert "method: my_views:Pull (scale 0.5)" in done.err


def test_it_keeps_the_contract(place):
    suite = ("--rootdir", ROOT, "-c", ROOT / "pyproject.toml", ROOT / "tests" / "contract" / "test_objectives.py")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "own-method", *map(str, suite)]
    own = os.environ | {"FEWTAGS_OBJECTIVE": METHOD}
    done = subprocess.run(words, cwd=place, env=own, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(".") >= 10
