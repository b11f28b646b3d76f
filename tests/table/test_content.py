"""Same content: bytes decide, whatever the names, sizes and times say."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewtags.errors import DataError
from fewtags.labels import ClassNames
from fewtags.table import content
from fewtags.table.content import content_groups, each, photo_paths, same_content
from fewtags.table.table import LabelTable


def _write(folder: Path, contents: list[bytes]) -> list[str]:
    paths = [folder / f"{n}.jpg" for n in range(len(contents))]
    for path, data in zip(paths, contents, strict=True):
        path.write_bytes(data)
    return [str(path) for path in paths]


def _table(keys: list[str], root: Path | None) -> LabelTable:
    none = np.zeros(0, np.int64)
    return LabelTable.build(keys, ClassNames.of(["a"]), image=none, class_=none, state=none, root=root)


def test_equal_bytes_are_found_and_equal_sizes_tails_and_heads_are_not_enough(tmp_path: Path) -> None:
    long = bytes(range(256)) * 64  # 16 KiB, more than the 4 KiB of the tail
    head, tail = b"x" + long[1:], long[:-1] + b"x"
    contents = [long, b"a", head, long, tail, b"b", b"a", long]
    assert same_content(_write(tmp_path, contents), threads=2) == [(0, 3, 7), (1, 6)]


def test_missing_files_folders_and_impossible_names_are_the_same_as_nothing(tmp_path: Path) -> None:
    paths = [*_write(tmp_path, [b"a", b"a"]), str(tmp_path / "no.jpg"), str(tmp_path / "no.jpg"), "\0", str(tmp_path)]
    assert same_content(paths) == [(0, 1)]
    assert same_content([]) == []


@given(st.lists(st.sampled_from([b"", b"a", b"b", b"ab", b"a" * 5000, b"b" + b"a" * 4999]), max_size=12))
def test_groups_are_those_of_a_slow_comparison(tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]) -> None:
    paths = _write(tmp_path_factory.mktemp("files"), contents)
    slow = {tuple(n for n, other in enumerate(contents) if other == content) for content in contents}
    assert same_content(paths) == sorted(group for group in slow if len(group) > 1)


def _noting(function: Callable[..., IO[Any]], names: list[str]) -> Callable[..., IO[Any]]:
    def called(path: str, *words: object, **more: object) -> IO[Any]:
        names.append(Path(path).name)
        return function(path, *words, **more)

    return called


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Split, leaks and check compare the same files one after the other."""
    paths, opened = _write(tmp_path, [b"a" * 9, b"a" * 9, b"b" * 9]), []
    monkeypatch.setattr(content, "open_bytes", _noting(content.open_bytes, opened))
    assert same_content(paths, threads=1) == [(0, 1)]
    assert sorted(opened) == ["0.jpg", "0.jpg", "1.jpg", "1.jpg", "2.jpg"]  # the tail, then the whole of equal ones
    opened.clear()
    assert same_content(paths, threads=1) == [(0, 1)]
    assert opened == []
    (tmp_path / "2.jpg").write_bytes(b"a" * 9)
    os.utime(tmp_path / "2.jpg", (0, 0))
    opened.clear()
    assert same_content(paths, threads=1) == [(0, 1, 2)]
    assert {*opened} == {"2.jpg"}


def test_content_groups_number_the_first_copy(tmp_path: Path) -> None:
    _write(tmp_path, [b"a", b"b", b"a"])
    assert content_groups(_table(["0.jpg", "gone.jpg", "1.jpg", "2.jpg"], tmp_path)).tolist() == [0, 1, 2, 0]


def test_content_groups_need_a_folder() -> None:
    assert photo_paths(_table(["0.jpg"], None)) == []
    with pytest.raises(DataError) as error:
        content_groups(_table(["0.jpg"], None))
    assert str(error.value) == ("the labels do not say where the photos are; give their folder: images='FOLDER'.")


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200])
def test_each_keeps_the_order(count: int) -> None:
    names = [str(n) for n in range(count)]
    assert list(each(int, names, threads=3)) == list(range(count))


def test_each_hands_on_what_goes_wrong() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        list(each(int, ["1", "x"]))
