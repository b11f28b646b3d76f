"""`fewtags plan`."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image
from typer.testing import Result

from fewtags.config.sections import Config
from fewtags.demo_set import make_scenes
from fewtags.engine import pilot as piloting
from fewtags.table.storage import load, save

Run = Callable[..., Result]
PLACE = ("--photos", 5000, "--classes", 80, "--positives", 2.9, "--instances", 7.3)
COCO = ("--photos", 82783, "--cost", "coco")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """0.8 - 0.3 (x / 1000)^-0.5 for tags, .02 more for points; 4 budgets, 3 seeds."""
    path = tmp_path / "results.jsonl"
    rows = [
        {"type": kind, "labels": x, "seed": s, "mAP": more + 0.8 - 0.3 * (x / 1000) ** -0.5 + 0.001 * s, "photos": 300}
        for kind, more in (("I", 0.0), ("SP", 0.02))
        for x in (1000, 2000, 4000, 8000)
        for s in range(3)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_papers_table_one(run: Run) -> None:
    """1 % of COCO: 55.53, 58.86 and 57.36 of table 1 for 66.2k, 62.4k and 52.5k labels."""
    result = run("plan", "--budget", "1%", *COCO, "--types", "i,sp,sb", "--json")
    assert result.exit_code == 0, result.stderr
    content = json.loads(result.stdout)
    assert [(o["type"], o["labels"], round(100 * o["mAP"]["value"], 2)) for o in content["offers"]] == [
        ("tags", 66226, 55.53),
        ("one point", 62404, 58.86),
        ("one box", 52456, 57.36),
    ]
    assert all(o["mAP"]["interval"] is None for o in content["offers"])
    assert content["source"].startswith("the paper's curves (PatchML")
    assert "MS-COCO train2014" in content["source"]
    assert result.stderr == ""


def test_output_is_a_table_and_a_sentence(run: Run) -> None:
    result = run("plan", "--hours", 40, *PLACE)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("budget 40.0 h, 5,000 photos; tag 1 s, point 2.4 s")
    assert lines[1].split()[:4] == ["type", "photos", "or", "complete"]
    assert [line.split("  ")[0] for line in lines[2:7]] == [
        "tags (I)",
        "one point (SP)",
        "one box (SB)",
        "all points (AP)",
        "all boxes (AB)",
    ]
    assert lines[8].startswith("Buy all points (AP), 130,879 labels in 5,000 photos for 40.0 h, expected mAP 63.9, or ")
    assert lines[8].endswith("is not resolved, so take what is easier to make.")
    assert result.stderr.splitlines()[0].startswith("expectations are from the paper's curves (PatchML")
    assert "rough guidance only" in result.stderr


def test_stopwatch_numbers_change_what_is_bought(run: Run) -> None:
    """With 2 s a tag, half as many labels; a point that takes no longer than a tag buys as many as tags."""
    words = ("--tag", 2, "--point", 2, "--types", "i,sp", "--json")
    content = json.loads(run("plan", "--hours", 40, *PLACE, *words).stdout)
    assert [o["labels"] for o in content["offers"]] == [72_000, 72_000]


def test_a_pilot_gives_intervals_and_a_plot(run: Run, results: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "plan.png"
    result = run("plan", "--hours", 4, *PLACE, "--pilot", results, "--plot", out)
    assert result.exit_code == 0, result.stderr
    tags, points = result.stdout.splitlines()[2:4]
    assert "extrapolated x1.8" in tags
    assert "extrapolated x1.7" in points
    assert "Buy one point (SP), 13,704 labels in" in result.stdout
    assert f"expectations are from the pilot {results}\n" in result.stderr
    assert "standard deviation of a single training around the expected value" in result.stderr
    assert result.stderr.endswith(f"plot: {out}\n")
    with Image.open(out) as picture:
        assert picture.format == "PNG"


def test_beyond_the_pilot_only_a_bound_is_promised(run: Run, results: Path) -> None:
    """40 h are 144,000 tags, 18 times the pilot's 8,000; 4 times are 32,000 tags, or 8.9 h."""
    end = json.loads(run("plan", "--budget", "32000s", *PLACE, "--pilot", results, "--json").stdout)
    content = json.loads(run("plan", "--hours", 40, *PLACE, "--pilot", results, "--json").stdout)
    assert content["offers"][0]["mAP"] == {
        "value": end["offers"][0]["mAP"]["value"],
        "interval": end["offers"][0]["mAP"]["interval"],
        "bound": "at least",
        "extrapolated": True,
        "factor": 18.0,
        "refused": "18 times the largest pilot; values are given up to 4 times",
    }
    assert content["compared_at_hours"] == pytest.approx(32_000 / 3600)
    assert [each["mAP"] for each in content["compared"]] == [each["mAP"] for each in end["offers"]]
    assert " h, the largest budget at which all types can be judged, " in content["advice"]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 scenes with complete labels and boxes."""
    folder = tmp_path_factory.mktemp("scenes")
    truth = make_scenes(folder / "made", train=30, val=2, test=1, size=64, seed=0).train_truth
    save(truth, folder / "boxes.parquet", keep_root=True)
    return folder / "boxes.parquet"


TINY = (
    *("--set", "model.backbone=test_resnet", "--set", "model.weights=none", "--set", "augment.size=64", "--cpu"),
    *("--set", "train.cached_views=1", "--set", "train.workers=0", "--pilot-budgets", "25%,50%,100%"),
    *("--set", 'train.stages=[{name="main", epochs=1, lr=0.01, trainable="head"}]', "--pilot-seeds", 2),
)


def test_a_pilot_runs_once_and_its_results_are_reused(run: Run, scenes: Path, tmp_path: Path) -> None:
    words = ("plan", scenes, "--budget", "300s", "--photos", 500, "--run-pilot", "--out", tmp_path / "p", *TINY)
    result = run(*words, "--types", "sp")
    assert result.exit_code == 0, (result.stderr, result.exception)
    rows = (tmp_path / "p" / "results.jsonl").read_text().splitlines()
    assert [(json.loads(r)["budget"], json.loads(r)["seed"]) for r in rows] == [
        (budget, seed) for seed in (0, 1) for budget in ("25%", "50%", "100%")
    ]
    lines = result.stderr.splitlines()
    assert lines[1] == "methods: one point (SP) expected_negative"
    assert lines[2].startswith("pilot: buys labels of ")
    assert [line.split()[0] for line in lines[3:9]] == [f"{i}/6" for i in range(1, 7)]
    assert "one point (SP)" in result.stdout
    again = run(*words, "--types", "sp")
    assert again.stdout == result.stdout
    assert again.stderr.count("(already done)") == 6
    # The same rows serve a plan without the photos, at other prices.
    later = run("plan", scenes, "--budget", "300s", "--photos", 500, "--pilot", tmp_path / "p" / "results.jsonl")
    assert later.exit_code == 0, later.stderr


def train_once(monkeypatch: pytest.MonkeyPatch, often: int) -> list[tuple[str, str]]:
    """Let a pilot train so many nets; others get made-up measures. Returns the type and the method of each training."""
    train, seen = piloting._train, []

    def train_or_not(purchase: piloting._Purchase, measured: object, photos: object, config: Config, *rest: object):
        seen.append((purchase.kind.short, config.objective.name))
        made_up = {"mAP": 0.4 + 0.001 * purchase.labels + 0.01 * purchase.seed}
        return train(purchase, measured, photos, config, *rest) if len(seen) <= often else made_up

    monkeypatch.setattr(piloting, "_train", train_or_not)
    return seen


def test_each_type_is_trained_by_its_own_method(
    run: Run, scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default the one that `train` chooses; settings of another method say that it is meant."""
    out, seen = tmp_path / "p", train_once(monkeypatch, 1)
    words = ("plan", scenes, "--budget", "300s", "--photos", 500, "--run-pilot", "--out", out, "--types", "i,sp")
    result = run(*words, *TINY, "--arm", "SP:objective.image_weight=2")
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "methods: tags (I) expected_negative, one point (SP) patchml\n" in result.stderr
    assert seen == [("I", "expected_negative"), ("SP", "patchml")] * 6
    settings = json.loads((out / "pilot.json").read_text())["settings"]
    assert {kind: arm["objective"]["name"] for kind, arm in settings.items()} == {
        "I": "expected_negative",
        "SP": "patchml",
    }
    assert settings["SP"]["objective"]["image_weight"] == 2
    changed = run(*words, *TINY, "--arm", "one-point:objective.image_weight=3")
    assert (changed.exit_code, "has a pilot with other settings" in changed.stderr) == (1, True)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("sb:train.workers=0", "the pilot has no one box (SB); add it to --types."),
        ("objective.name=patchml", "expected TYPE:KEY=VALUE, such as tags:objective.name=assume_negative."),
        ("sp:data.complete=true", "labels are read once for all types; use --set data.complete=true."),
    ],
)
def test_wrong_settings_of_a_type(run: Run, scenes: Path, tmp_path: Path, word: str, message: str) -> None:
    words = ("--budget", "300s", "--photos", 500, "--run-pilot", "--out", tmp_path / "p", "--types", "i,sp")
    result = run("plan", scenes, *words, *TINY, "--arm", word)
    assert (result.exit_code, f"error: --arm {word}: {message}\n" in result.stderr) == (1, True), result.stderr


def test_a_pilot_starts_from_an_encoder(
    run: Run, scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_once(monkeypatch, 1)
    folder = max((p for p in scenes.parent.rglob("*") if p.is_dir()), key=lambda p: len([*p.glob("*.*")]))
    pre = ("--set", "model.backbone=test_resnet", "--set", "augment.size=32", "--cpu", "--set", "train.epochs=1")
    made = run("pretrain", folder, "--out", tmp_path / "pre", "--weights", "none", *pre)
    assert made.exit_code == 0, (made.stderr, made.exception)
    words = ("--budget", "300s", "--photos", 500, "--run-pilot", "--out", tmp_path / "p", "--types", "i")
    starts, whole = [], piloting.TrainRun
    monkeypatch.setattr(
        piloting, "TrainRun", lambda plan, *a, **k: starts.append(plan.net.origin.weights) or whole(plan, *a, **k)
    )
    result = run("plan", scenes, *words, "--init", tmp_path / "pre", *TINY[4:])
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert starts == [str(tmp_path / "pre" / "encoder.safetensors")]
    model = json.loads((tmp_path / "p" / "pilot.json").read_text())["settings"]["I"]["model"]
    assert (model["backbone"], model["weights"]) == ("test_resnet", str(tmp_path / "pre" / "encoder.safetensors"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--hours", 1), "--photos is missing: give the number of photos to label."),
        (("--photos", 9), "give the budget once: --hours 40, or --budget 40h (30min, 900s, or 1%)."),
        (
            ("--photos", 9, "--hours", 1, "--budget", "1h"),
            "give the budget once: --hours 40, or --budget 40h (30min, 900s, or 1%).",
        ),
        (
            ("--photos", 9, "--hours", 1),
            "the costs are not known; give --classes, the number of classes; and --positives, the number of classes "
            "that an average photo shows (count in twenty photos).",
        ),
        (
            ("--photos", 9, "--hours", 1, "--run-pilot", "--pilot", "r.csv"),
            "--pilot reads the results of runs, and --run-pilot runs them; give only one.",
        ),
        (
            ("--photos", 9, "--hours", 1, "--run-pilot"),
            "--run-pilot needs DATA: complete labels of a few hundred photos, with boxes.",
        ),
        (("--photos", 9, "--hours", 1, "--run-pilot", "x.csv"), "--run-pilot needs --out, a folder for its results."),
        (
            ("--photos", 9, "--hours", 1, "--out", "x"),
            "--out is for --run-pilot; the plan is printed on stdout (see --json and --plot).",
        ),
        *(
            (
                ("--photos", 9, "--hours", 1, *words),
                f"{words[0]} is for --run-pilot; give --run-pilot as well, or leave it out.",
            )
            for words in (
                *(("--pilot-seeds", 2), ("--pilot-budgets", "50%"), ("--measure-on", 0.2), ("--cpu",)),
                *(("--arm", "sp:train.workers=0"), ("--init", "runs/pre"), ("--weights", "none")),
            )
        ),
        *(
            (
                ("--photos", 9, "--hours", 1, *words),
                f"{words[0]} says how to read DATA; give DATA as well, or leave it out.",
            )
            for words in (("--images", "/nowhere"), ("--complete",), ("--set", "nonsense.key=1"))
        ),
        (
            ("x.csv", "--photos", 9, "--hours", 1, "--set", "data.blank=negative", "--set", "train.workers=0"),
            "--set train.workers=0 is not a reading option (data.KEY=VALUE); other settings are only for --run-pilot.",
        ),
        (("--photos", 9, "--hours", 1, "--plot", "x.pdf"), "--plot x.pdf: expected a file that ends in .png."),
        (
            ("--photos", 9, "--hours", 1, "--types", "sp,boxes"),
            "annotation type 'boxes' is not known (did you mean 'all boxes'?); known: tags (I), one point (SP), one "
            "box (SB), all points (AP), all boxes (AB).",
        ),
    ],
)
def test_refusals(run: Run, words: tuple[object, ...], message: str) -> None:
    result = run("plan", *words)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"error: {message}\n")


def test_a_folder_as_plot_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "d.png").mkdir()
    result = run("plan", "--hours", 40, *PLACE, "--plot", tmp_path / "d.png")
    assert (result.exit_code, result.stdout, result.stderr) == (
        1,
        "",
        f"error: --plot {tmp_path / 'd.png'} is a folder; give a file in it, for example "
        f"{tmp_path / 'd.png' / 'plan.png'}.\n",
    )


def test_measure_on_is_refused_if_the_labels_have_a_split(run: Run, scenes: Path, tmp_path: Path) -> None:
    whole = load(scenes)
    names = pa.array(["train", "val", "train"] * (len(whole) // 3))
    save(replace(whole, split_names=names), tmp_path / "split.parquet", keep_root=True)
    words = ("--hours", 1, "--photos", 9, "--run-pilot", "--out", tmp_path / "p", "--measure-on", 0.2)
    result = run("plan", tmp_path / "split.parquet", *words)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        "error: --measure-on 0.2 has no effect: the pilot is evaluated on the split 'val' of the labels; leave "
        "--measure-on out."
    )
    assert not (tmp_path / "p").exists()


def test_a_pilot_of_other_classes_is_refused(run: Run, scenes: Path, tmp_path: Path) -> None:
    words = ("--hours", 1, "--photos", 9, "--classes", 12, "--run-pilot", "--out", tmp_path / "p")
    result = run("plan", scenes, *words)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        "error: the costs are for 12 classes, but the labels have 10; leave --classes out, or give labels of the "
        "classes you plan for."
    )


@pytest.mark.parametrize(("budgets", "seeds"), [("25%,50%", 3), ("25%,50%,100%", 1)])
def test_a_pilot_too_small_for_a_curve_is_refused_before_it_runs(
    run: Run, scenes: Path, tmp_path: Path, budgets: str, seeds: int
) -> None:
    words = ("--hours", 1, "--photos", 9, "--run-pilot", "--out", tmp_path / "p")
    result = run("plan", scenes, *words, "--pilot-budgets", budgets, "--pilot-seeds", seeds)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        "error: a learning curve needs at least 3 --pilot-budgets and 2 --pilot-seeds, got "
        f"{budgets.count(',') + 1} and {seeds}; leave them out for 4 and 3."
    )
    assert not (tmp_path / "p").exists()
