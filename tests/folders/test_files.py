"""Folders that are written completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from recsys.errors import InputError
from recsys.folders import new_file, new_folder


def fill(path: Path, text: str) -> None:
    with new_folder(path) as folder:
        (folder / "a.txt").write_text(text)
        assert not path.exists() or (path / "a.txt").read_text() != text, "not there yet"


def test_a_folder_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "out"
    for text in ("old", "new"):
        fill(path, text)
        assert [file.name for file in path.parent.iterdir()] == ["out"]
        assert (path / "a.txt").read_text() == text
    link = tmp_path / "link"
    link.symlink_to(path)
    fill(link, "by a link")
    assert link.is_symlink()
    assert (path / "a.txt").read_text() == "by a link"


def test_a_failed_block_leaves_the_old_folder(tmp_path: Path) -> None:
    fill(tmp_path / "out", "old")
    with pytest.raises(UnicodeEncodeError):
        fill(tmp_path / "out", "\ud800")
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "a.txt").read_text() == "old"


def test_an_interrupted_swap_restores_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    fill(path, "old")
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fill(path, "new")
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    assert (path / "a.txt").read_text() == "old"


def test_what_a_killed_writer_left_is_deleted_and_a_live_one_is_left_alone(tmp_path: Path) -> None:
    stale = tmp_path / ".out.abcdefgh.writing" / "new"
    stale.mkdir(parents=True)
    mine = tmp_path / ".out.backup.writing"  # seven letters: not ours
    mine.mkdir()
    with new_folder(tmp_path / "out") as live:
        (live / "a.txt").write_text("live")
        assert not stale.exists()
        fill(tmp_path / "out", "another writer")
        assert live.is_dir()
    assert (tmp_path / "out" / "a.txt").read_text() == "live"
    assert {path.name for path in tmp_path.iterdir()} == {"out", mine.name}


def test_new_parents_and_files(tmp_path: Path) -> None:
    path, link = tmp_path / "deep" / "a.txt", tmp_path / "link"
    link.symlink_to(path)
    for written, text in ((path, "one"), (link, "two")):
        with new_file(written) as file:
            file.write_text(text)
            assert not path.exists() or path.read_text() == "one"
        assert path.read_text() == text
        assert [file.name for file in path.parent.iterdir()] == ["a.txt"]
    assert link.is_symlink()
    no_folder = pytest.raises(InputError, match=r"a\.txt/b\.txt: cannot be written: ")
    with no_folder, new_file(path / "b.txt"):
        pass


def test_all_is_synced_before_it_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of steps; tests/faults cuts the power of a real disk at each of them."""
    steps: list[str] = []
    fsync, rename, unlink = os.fsync, os.rename, os.unlink

    def sync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        same = [
            path for path in (tmp_path, *tmp_path.rglob("*")) if path.stat().st_ino == found.st_ino
        ]
        steps.append(f"sync {same[0].name}")
        fsync(descriptor)

    def move(source: Path, target: Path) -> None:
        steps.append(f"{Path(source).name} -> {Path(target).name}")
        rename(source, target)

    def delete(path: str, **options: Any) -> None:
        steps.append(f"delete {Path(path).name}")
        unlink(path, **options)

    for text in ("old", "new"):
        steps.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", sync)
            patch.setattr(os, "rename", move)
            patch.setattr(os, "unlink", delete)
            fill(tmp_path / "out", text)
    work = steps[3].removeprefix("sync ")
    assert steps == [
        *("sync a.txt", "sync new", "out -> old", f"sync {work}", "new -> out"),
        *(f"sync {tmp_path.name}", f"sync {work}", "delete a.txt"),
    ]
