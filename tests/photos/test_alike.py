"""Photos that look alike; the comparison of hashes needs no library, their computation does."""

import numpy as np
import pytest
from PIL import Image

from fewtags.engine.near_copies import copy_groups, leave_out_alike
from fewtags.errors import ConfigError
from fewtags.labels import ClassNames
from fewtags.photos import alike
from fewtags.photos.alike import find_alike, near_pairs
from fewtags.table.table import LabelTable


def scene(seed):
    """A photo with shapes of its own."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 255, (24, 32, 3), dtype=np.uint8))
    return small.resize((320, 240), Image.Resampling.BICUBIC)


def table(folder, keys):
    none = np.zeros(0, np.int64)
    return LabelTable.build(keys, ClassNames.of(["a"]), image=none, class_=none, state=none, root=folder)


@pytest.fixture
def folder(tmp_path):
    """Five photos; copies of the first: PNG, half the size, poor JPEG, and its very file. Two uniform photos."""
    pytest.importorskip("imagehash")
    for n in range(5):
        scene(n).save(tmp_path / f"{n}.jpg", quality=92)
    first = Image.open(tmp_path / "0.jpg")
    first.save(tmp_path / "again.png")
    first.resize((160, 120)).save(tmp_path / "half.jpg", quality=80)
    first.save(tmp_path / "poor.jpg", quality=15)
    (tmp_path / "same.jpg").write_bytes((tmp_path / "0.jpg").read_bytes())
    Image.new("RGB", (64, 64), (10, 20, 30)).save(tmp_path / "dark.jpg")
    Image.new("RGB", (64, 64), (250, 250, 250)).save(tmp_path / "white.jpg")
    (tmp_path / "broken.jpg").write_bytes(b"nothing")
    return tmp_path


KEYS = ["0.jpg", "1.jpg", "2.jpg", "3.jpg", "4.jpg"]
ODD = ["dark.jpg", "white.jpg", "broken.jpg", "missing.jpg"]


def test_copies_are_found_and_others_are_not(folder):
    keys = [*KEYS, "again.png", "half.jpg", "poor.jpg", *ODD]
    found = find_alike([str(folder / key) for key in keys])
    assert found.groups.tolist() == [0, 1, 2, 3, 4, 0, 0, 0, 8, 9, 10, 11]
    assert [b for _, b, _ in found.nearest(np.ones(len(found.pairs), np.bool_))] == [5, 6, 7]
    assert len(found.pairs) == 6
    assert (found.distances <= alike.LIMIT).all()


def test_a_changed_file_is_read_again(folder):
    paths = [str(folder / key) for key in ("1.jpg", "2.jpg")]
    assert len(find_alike(paths).pairs) == 0
    scene(1).save(folder / "2.jpg", quality=50)
    assert find_alike(paths).pairs.tolist() == [[0, 1]]


def test_a_photo_is_hashed_once(folder, monkeypatch):
    paths = [str(folder / key) for key in KEYS]
    find_alike(paths)
    monkeypatch.setattr(alike, "open_photo", lambda path: pytest.fail(f"{path} is read again"))
    find_alike(paths)


def test_the_split_keeps_copies_together(folder):
    keys = [*KEYS, "again.png", "half.jpg", "same.jpg"]
    groups, words = copy_groups(table(folder, keys), True)
    assert groups.tolist() == [0, 1, 2, 3, 4, 0, 0, 0]
    assert words == "equal photos and photos that look alike together"
    exact, _ = copy_groups(table(folder, keys), False)
    assert exact.tolist() == [0, 1, 2, 3, 4, 5, 6, 0]


def test_the_split_of_a_film_ignores_that_frames_look_alike(folder):
    groups, words = copy_groups(table(folder, ["0.jpg", "again.png", "half.jpg", "1.jpg"]), True)
    assert groups.tolist() == [0, 1, 2, 3]
    assert "most photos look alike" in words


def test_copies_leave_training_if_asked(folder):
    tables = {"train": table(folder, ["0.jpg", "1.jpg", "half.jpg"]), "val": table(folder, ["2.jpg", "again.png"])}
    found = leave_out_alike(tables)
    assert found["train"].images.to_pylist() == ["1.jpg"]
    assert [e.item for e in found["train"].notes.excluded] == ["0.jpg", "half.jpg"]
    assert found["train"].notes.excluded[0].reason.startswith("looks like a photo of val: again.png (distance ")
    assert found["train"].notes.messages == (
        "train: 2 photos look like photos of another split, and left out of training; 1 remain",
    )


def test_without_the_library(monkeypatch, tmp_path):
    monkeypatch.setattr(alike, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs the library imagehash: pip install 'fewtags\[copies\]'"):
        find_alike([])
    with pytest.raises(ConfigError, match=r"^settings=\{'data.near_copies': 'leave_out'\} needs the library imagehash"):
        leave_out_alike({"train": table(tmp_path, ["a.jpg"])})
    assert copy_groups(table(tmp_path, ["a.jpg"]), True)[1] == "equal photos together"


@pytest.mark.parametrize("n", [0, 1, 2, 300])
def test_pairs_equal_those_of_a_full_comparison(n):
    """Hashes around a few centres, at distances on both sides of the limit."""
    rng = np.random.default_rng(n)
    bits = rng.integers(0, 2, (20, 256), dtype=np.uint8)[rng.integers(0, 20, n)]
    for row in bits:
        row[rng.integers(0, 256, rng.integers(0, 8))] ^= 1
    prints = np.packbits(bits, axis=1).reshape(n, 32)
    pairs, distances = near_pairs(prints)
    full = (bits[:, None] != bits[None]).sum(2)
    expected = [(a, b, full[a, b]) for a in range(n) for b in range(a + 1, n) if full[a, b] <= alike.LIMIT]
    assert [(a, b, d) for (a, b), d in zip(pairs.tolist(), distances.tolist(), strict=True)] == expected


def test_many_equal_hashes_stay_linear():
    """5,000 equal hashes are linked by 32 neighbours each, and not by all their 12 million pairs."""
    pairs, _ = near_pairs(np.zeros((5_000, 32), np.uint8))
    assert len(pairs) <= 32 * 5_000
    assert (alike.linked(5_000, pairs) == 0).all()
