"""Places for results: refused before work is done, not after."""

import os
from pathlib import Path

import pytest

from fewtags.errors import ConfigError, DiskError
from fewtags.files import refuse_file, refuse_folder, replacing, write_text


def refusal(what: object, *words: object) -> str:
    with pytest.raises(ConfigError) as error:
        what(*words)  # type: ignore[operator]
    return str(error.value)


def test_places_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is there is replaced, folders that are not are made; nothing is made yet."""
    (tmp_path / "old.csv").touch()
    monkeypatch.chdir(tmp_path)
    for file in ("old.csv", "new.csv", "deep/er/new.csv", tmp_path / "new.csv"):
        refuse_file(Path(file))
    for folder in (".", "maps", "deep/er", tmp_path):
        refuse_folder(Path(folder))
    assert [p.name for p in tmp_path.iterdir()] == ["old.csv"]


def test_a_folder_where_a_file_is_to_be(tmp_path: Path) -> None:
    assert refusal(refuse_file, tmp_path) == (
        f"--out {tmp_path} is a folder; give a file in it, for example {tmp_path / 'tags.csv'}."
    )
    assert refusal(refuse_file, tmp_path, "--plot", "plan.png") == (
        f"--plot {tmp_path} is a folder; give a file in it, for example {tmp_path / 'plan.png'}."
    )


def test_a_file_or_a_dead_link_where_a_folder_is_to_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name in ("file", "link"):
        for check, place in ((refuse_folder, name), (refuse_folder, f"{name}/maps"), (refuse_file, f"{name}/a/b.csv")):
            assert refusal(check, tmp_path / place) == (
                f"--out {tmp_path / place} cannot be written: {tmp_path / name} is not a folder; give another path."
            )
    assert refusal(refuse_file, tmp_path / "file" / "plan.png", "--plot", "plan.png") == (
        f"--plot {tmp_path / 'file' / 'plan.png'} cannot be written: {tmp_path / 'file'} is not a folder; give "
        "another path."
    )


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who runs the tests as root may write everywhere, so the system's answer is given here."""
    asked = []
    monkeypatch.setattr(os, "access", lambda *question: asked.append(question))
    place = tmp_path / "new" / "tags.csv"
    expected = f"--out {place} cannot be written: no permission to write in {tmp_path}; give another path."
    assert refusal(refuse_file, place) == refusal(refuse_folder, place) == expected
    assert asked == [(tmp_path, os.W_OK | os.X_OK)] * 2


def test_a_device_or_pipe_is_never_replaced(tmp_path: Path) -> None:
    """A rename onto /dev/null would replace the device by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (pipe, Path(os.devnull)):
        with pytest.raises(ConfigError, match=r"is a device or a pipe; give the path of a file, for example tags\.csv"):
            refuse_file(place)
    with pytest.raises(DiskError, match="it is not a regular file; give the path of a file"), replacing(pipe):
        pass
    assert pipe.is_fifo()


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    """Whoever links a result to another disk wants it there."""
    (tmp_path / "other").mkdir()
    target, link = tmp_path / "other" / "tags.csv", tmp_path / "tags.csv"
    link.symlink_to(target)
    for text in ("new", "newer"):  # the file does not exist at first
        write_text(link, text)
        assert link.is_symlink()
        assert target.read_text("utf-8") == text
    assert [path.name for path in target.parent.iterdir()] == ["tags.csv"]
