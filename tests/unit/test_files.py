"""Folders that are written completely or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from recsys.data.files import file_sha256, new_folder


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


def test_permissions_are_those_of_any_new_folder(tmp_path: Path) -> None:
    fill(tmp_path / "out", "x")
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode


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


def test_checksum(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")  # the example of FIPS 180-2, appendix B.1
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert file_sha256(tmp_path / "abc") == expected
