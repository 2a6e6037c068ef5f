"""A large answer, written part by part: an interrupted run resumes, and the file appears whole.

The parts are in a folder beside the file, ``NAME.parts``, which is deleted when the file is there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from recsys.data.source_files import find_files
from recsys.errors import InputError
from recsys.folders.atomic import new_folder
from recsys.folders.locks import sole_use
from recsys.serving.frame_writer import check_format, write_frames
from recsys.serving.user_ranges import ROW, part_file

_REQUEST = "request.json"
_ANSWER = "answer"
_ROWS = 1 << 20
"""Rows of the answer that are in the memory at once when the parts are joined."""


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """The folder of the parts of an answer."""

    folder: Path
    out: Path

    def done(self, number: int) -> bool:
        """Whether a part is written."""
        return part_file(self.folder, _ANSWER, number).exists()

    def write(self, number: int, frames: Iterable[pl.DataFrame]) -> None:
        """Write a part, given as one frame or more."""
        write_frames(frames, part_file(self.folder, _ANSWER, number))

    def prepared(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return a folder of temporary files that is made once, whole or not at all."""
        folder = self.folder / name
        if not folder.exists():
            with new_folder(folder) as new:
                make(new)
        return folder

    def join(self, count: int) -> int:
        """Write the file from its parts, in their order, or by `ROW` if they have that column.

        Returns:
            The number of rows.
        """
        files = [part_file(self.folder, _ANSWER, number) for number in range(count)]
        return write_frames(_joined(files), self.out)


@contextmanager
def answer_parts(out: Path, request: Mapping[str, Any]) -> Iterator[AnswerParts]:
    """Yield the parts of an answer; those of an earlier run with the same request are there.

    The folder of the parts is deleted when the block ends without error.

    Args:
        out: the file that the parts become: .parquet or .csv.
        request: all that the answer depends on; values that JSON has.

    Raises:
        InputError: the parts of another request are there; another process writes them; the file
            has another extension, or cannot be written.
    """
    check_format(out)
    folder = out.with_name(f"{out.name}.parts")
    with sole_use(folder, f"writes {out}"):
        wanted: dict[str, Any] = json.loads(json.dumps(dict(request), default=str))
        if folder.exists():
            _check_request(folder, out, wanted)
        else:
            with new_folder(folder) as new:
                (new / _REQUEST).write_text(json.dumps(wanted, indent=2), encoding="utf-8")
        try:
            yield AnswerParts(folder, out)
        except InputError:
            if not any(folder.glob(f"{_ANSWER}-*")):  # nothing that a corrected request could lose
                shutil.rmtree(folder)
            raise
        shutil.rmtree(folder)


def file_facts(path: Path) -> list[list[Any]]:
    """Return names, sizes and times of change of a file, or of the files of a folder or pattern."""
    facts = [(file.path, file.path.stat()) for file in find_files(path)]
    return [[str(file.resolve()), stat.st_size, stat.st_mtime_ns] for file, stat in facts]


def _check_request(folder: Path, out: Path, wanted: Mapping[str, Any]) -> None:
    try:
        found = json.loads((folder / _REQUEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder}: not the parts of an answer: delete it, or name another file than {out}"
        ) from error
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise InputError(
                f"{folder}: holds parts of another answer ({name} is {found.get(name)}, not "
                f"{wanted.get(name)}): delete it to begin anew, or name another file than {out}"
            )


def _joined(files: list[Path]) -> Iterator[pl.DataFrame]:
    """Yield the rows of the parts, at least one frame without rows."""
    nothing = pl.read_parquet(files[0], n_rows=0)
    yield nothing.drop(ROW, strict=False)  # for the columns of an answer without rows
    if ROW not in nothing.columns:
        for file in files:
            yield from pl.scan_parquet(file).collect_batches(chunk_size=_ROWS, maintain_order=True)
        return
    # The rows of each part ascend, so few row groups of each hold the rows of a range.
    rows = pl.scan_parquet(files)
    last = rows.select(pl.col(ROW).max()).collect(engine="streaming").item()
    for start in range(0, (-1 if last is None else last) + 1, _ROWS):
        within = pl.col(ROW).is_between(start, start + _ROWS, closed="left")
        yield rows.filter(within).collect(engine="streaming").sort(ROW).drop(ROW)
