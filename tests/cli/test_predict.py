"""`fewtags predict`."""

import csv
import io
import json
import os
import shutil
from pathlib import Path

import pytest
from command_tables import Run, read


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".jsonl", ".CSV"])
@pytest.mark.parametrize("wide", [False, True])
def test_predict_writes_every_form(
    run: Run, model: Path, photos: Path, tmp_path: Path, ending: str, wide: bool
) -> None:
    out = tmp_path / "new" / f"tags{ending}"
    words = ["--wide"] if wide else ["--threshold", 0]
    result = run("predict", model, photos, "--out", out, "--cpu", *words)
    assert (result.exit_code, result.stdout) == (0, f"{out}\n"), result.stderr
    assert [p.name for p in out.parent.iterdir()] == [out.name]
    rows = read(out if ending != ".CSV" else out.rename(out.with_suffix(".csv")))
    keys = sorted(str(p) for p in photos.iterdir())
    if wide:
        assert list(rows[0]) == ["image", "red", "green", "blue"]
        assert sorted(str(row["image"]) for row in rows) == keys
    else:
        assert list(rows[0]) == ["image", "class", "name", "probability", "threshold"]
        assert sorted({str(row["image"]) for row in rows}) == keys
        assert len(rows) == 3 * len(keys)
        first = [float(str(row["probability"])) for row in rows[:3]]
        assert first == sorted(first, reverse=True)


def test_long_and_wide_agree(run: Run, model: Path, photos: Path) -> None:
    words = ("predict", model, photos / "0.png", "--cpu")
    long = list(csv.DictReader(io.StringIO(run(*words, "--threshold", 0).stdout)))
    wide = next(csv.DictReader(io.StringIO(run(*words, "--wide").stdout)))
    assert {row["class"]: row["probability"] for row in long} == {k: v for k, v in wide.items() if k != "image"}


def test_threshold_and_max_tags(run: Run, model: Path, photos: Path) -> None:
    every = run("predict", model, photos, "--threshold", 0, "--max-tags", 1, "--cpu")
    rows = list(csv.DictReader(io.StringIO(every.stdout)))
    assert len(rows) == len({row["image"] for row in rows}) == 12
    assert {row["threshold"] for row in rows} == {"0.0"}
    none = run("predict", model, photos, "--threshold", 1, "--cpu")
    assert none.exit_code == 0
    assert none.stdout == "image,class,name,probability,threshold\n"
    assert none.stderr == "12 of 12 photos have no tag and no row; --wide writes all photos.\n"


def test_stored_thresholds_are_used(run: Run, model: Path, photos: Path) -> None:
    stored = {c["id"]: c["threshold"] for c in json.loads((model / "evaluation" / "val.json").read_text())["per_class"]}
    wide = list(csv.DictReader(io.StringIO(run("predict", model, photos, "--wide", "--cpu").stdout)))
    expected = {(r["image"], c) for r in wide for c, t in stored.items() if float(r[c]) > t + 1e-6}
    doubtful = {(r["image"], c) for r in wide for c, t in stored.items() if abs(float(r[c]) - t) <= 1e-6}
    long = csv.DictReader(io.StringIO(run("predict", model, photos, "--cpu").stdout))
    assert {(row["image"], row["class"]) for row in long} - doubtful == expected


def test_an_unreadable_photo_is_reported_and_skipped(run: Run, model: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes((photos / "0.png").read_bytes()[:200])
    result = run("predict", model, photos, tmp_path, "--wide", "--out", tmp_path / "tags.csv", "--cpu")
    assert result.exit_code == 1
    assert result.stdout == f"{tmp_path / 'tags.csv'}\n"
    first, last = result.stderr.splitlines()
    assert first.startswith("skipped: ")
    assert "broken.png" in first
    assert last == "skipped: 1 of 13 photos, because they cannot be read."
    assert len(read(tmp_path / "tags.csv")) == 12
    (row,) = read(tmp_path / "tags.unreadable.csv")
    assert f"skipped: {row['image']}: {row['reason']}" == first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--out", "tags.xlsx"), "error: --out tags.xlsx: expected a file ending in .csv, .parquet, .jsonl.\n"),
        (("--out", "."), "error: --out .: expected a file ending in .csv, .parquet, .jsonl.\n"),
        (("nowhere.jpg",), "error: nowhere.jpg does not exist; give photos, folders of photos, or shards.\n"),
        (
            ("--wide", "--threshold", "0.5"),
            "error: --wide writes the probabilities of all classes, so --threshold has no effect; remove one option.\n",
        ),
        (
            ("--wide", "--max-tags", "2"),
            "error: --wide writes the probabilities of all classes, so --max-tags has no effect; remove one option.\n",
        ),
    ],
)
def test_predict_refuses(run: Run, model: Path, photos: Path, words: tuple[str, ...], message: str) -> None:
    result = run("predict", model, photos, *words)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", message)


def test_threshold_outside_0_to_1_is_refused(run: Run, model: Path, photos: Path) -> None:
    result = run("predict", model, photos, "--threshold", 1.5)
    assert result.exit_code == 1
    assert result.stderr == (
        "error: --threshold 1.5: '1.5' is not a threshold; expected a number from 0 to 1, CLASS=NUMBER or a file "
        "(.csv, .json, .toml).\n"
    )


def no_photos(*_: object) -> None:
    raise AssertionError("photos are read before the output path is checked")


@pytest.mark.parametrize(("command", "name"), [("predict", "tags.csv"), ("heatmap", "maps")])
def test_an_unwritable_output_is_refused_before_photos_are_read(
    run: Run,
    model: Path,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    name: str,
) -> None:
    """Below a file; and in a folder that may not be written in (root may, so the system's answer is given here)."""
    monkeypatch.setattr("fewtags.engine.places.find_photos", no_photos)
    (tmp_path / "file").touch()
    out = tmp_path / "file" / name
    result = run(command, model, photos, "--out", out, "--cpu")
    assert (result.exit_code, result.stdout, result.stderr) == (
        1,
        "",
        f"error: --out {out} cannot be written: {tmp_path / 'file'} is not a folder; give another path.\n",
    )
    monkeypatch.setattr("os.access", lambda place, _: place != tmp_path)
    out = tmp_path / "new" / name
    result = run(command, model, photos, "--out", out, "--cpu")
    assert (result.exit_code, result.stdout, result.stderr) == (
        1,
        "",
        f"error: --out {out} cannot be written: no permission to write in {tmp_path}; give another path.\n",
    )
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_predict_skips_what_train_skips(run: Run, model: Path, photos: Path, tmp_path: Path) -> None:
    shutil.copy(photos / "0.png", tmp_path / "0.png")
    (tmp_path / "._0.png").write_bytes(b"what macOS leaves on other disks")
    result = run("predict", model, tmp_path, "--wide", "--cpu")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == f"skipped in {tmp_path}, because they are not photos: (hidden) 1\n"
    assert len(result.stdout.splitlines()) == 2


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".jsonl"])
@pytest.mark.parametrize("wide", [False, True])
def test_names_that_are_not_utf8_stay_distinct(
    run: Run, model: Path, odd: Path, tmp_path: Path, ending: str, wide: bool
) -> None:
    out = tmp_path / f"tags{ending}"
    result = run("predict", model, odd, "--out", out, "--cpu", *(["--wide"] if wide else ["--threshold", 0]))
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert {row["image"] for row in read(out)} == {f"{odd}/caf\\xe9.png", f"{odd}/caf\\\\xe9.png"}
    assert result.stderr == (
        "2 photos have a name that is not UTF-8 or has control characters, written with \\xNN for these bytes and \\\\ "
        "for a backslash: "
        f"{odd}/caf\\\\xe9.png, ...\n"
    )


def test_names_that_are_not_utf8_on_stdout(run: Run, model: Path, odd: Path) -> None:
    result = run("predict", model, odd / os.fsdecode(b"caf\xe9.png"), "--wide", "--cpu")
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert result.stdout.splitlines()[1].startswith(f"{odd}/caf\\xe9.png,")
