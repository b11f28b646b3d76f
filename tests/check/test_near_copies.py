"""What `check` says about photos that look alike."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewtags.check.check import CheckReport, check
from fewtags.check.label_findings import Finding
from fewtags.labels import ClassNames
from fewtags.photos import alike
from fewtags.table.table import LabelTable


def table(folder: Path, keys: list[str]) -> LabelTable:
    n = np.arange(len(keys))
    return LabelTable.build(keys, ClassNames.of(["a"]), image=n, class_=n * 0, state=1 - 2 * (n % 2), root=folder)


def near(report: CheckReport) -> list[Finding]:
    return [finding for finding in report.findings if finding.code.startswith("near-")]


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, LabelTable]:
    """Photo 0 in train (JPEG, and its very copy), half as large in train, as PNG in val and test; photo 1 elsewhere."""
    rng = np.random.default_rng(0)
    for n in range(3):
        small = Image.fromarray(rng.integers(0, 255, (24, 32, 3), dtype=np.uint8))
        small.resize((320, 240), Image.Resampling.BICUBIC).save(tmp_path / f"{n}.jpg")
    first = Image.open(tmp_path / "0.jpg")
    (tmp_path / "0b.jpg").write_bytes((tmp_path / "0.jpg").read_bytes())
    first.resize((160, 120)).save(tmp_path / "half.jpg")
    first.save(tmp_path / "0.png")
    first.save(tmp_path / "0.webp", quality=40)
    return {
        "train": table(tmp_path, ["0.jpg", "0b.jpg", "half.jpg", "1.jpg"]),
        "val": table(tmp_path, ["0.png", "2.jpg"]),
        "test": table(tmp_path, ["0.webp"]),
    }


def test_pairs_are_named_with_their_distance(tables: dict[str, LabelTable]) -> None:
    pytest.importorskip("imagehash")
    found = {finding.code: finding for finding in near(check(tables, near_copies=True))}
    assert {finding.level for finding in found.values()} == {"warning"}
    assert [text.split(" (distance")[0] for text in found["near-copies"].items] == ["train 0.jpg ~ train half.jpg"]
    assert [text.split(" (distance")[0] for text in found["near-leak"].items] == [
        "train 0.jpg ~ val 0.png",
        "train 0.jpg ~ test 0.webp",
    ]
    assert found["near-leak"].message.endswith(
        "to leave them out of train: settings={'data.near_copies': 'leave_out'}."
    )
    assert near(check(tables, near_copies=False)) == near(check(tables, near_copies=True, decode=False)) == []


def test_without_the_library_a_note_says_what_was_not_done(
    tables: dict[str, LabelTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alike, "find_spec", lambda name: None)
    (finding,) = near(check(tables, near_copies=True))
    assert str(finding) == (
        "note: copies that were encoded again or resized were not looked for; that needs pip install 'fewtags[copies]'."
    )
