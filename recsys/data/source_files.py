"""The files that a path, a folder or a pattern names, and the format that their names tell."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path

from recsys.errors import InputError, checked_path

ATOMIC = "atomic"
"""The kind of RecBole's atomic files, whose headers have types, as in user_id:token."""
_KINDS = {
    ".csv": "CSV",
    ".tsv": "TSV",
    ".txt": "text",
    ".dat": "text",
    ".inter": ATOMIC,
    ".item": ATOMIC,
    ".user": ATOMIC,
    ".parquet": "Parquet",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_TABLES = {
    "a Delta": ("_delta_log", "DeltaTable(path).to_pyarrow_table()"),
    "a Hudi": (".hoodie", "spark.read.format('hudi').load(path)"),
    "an Iceberg": ("metadata/*.metadata.json", "catalog.load_table(name).scan().to_arrow()"),
}
"""What marks the folder of a table, and what reads it."""
_DATASET_MANIFEST = "manifest.json"
_EXCEL = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read."""

    path: Path
    kind: str
    """CSV, TSV, text, atomic, Parquet or JSON lines."""
    compression: str | None = None
    """gzip or zstd; None if the name has no such ending."""


def find_files(source: str | os.PathLike[str]) -> tuple[SourceFile, ...]:
    """Return the files of a path, of a folder with parts, or of a pattern such as logs/*.parquet.

    Files of a folder are all that have a known ending, subfolders included, except those whose name
    or folder begins with ``_`` or ``.``; they are read in the order of their paths.

    Raises:
        InputError: there is no such file, or its extension is unknown; a folder or pattern has no
            files to read, or files of several kinds.
    """
    path = checked_path(source)
    if path.is_file():
        return (_known_file(path),)
    if path.is_dir():
        return _parts(path)
    if path.exists():
        raise InputError(
            f"{source}: is a pipe or device, which cannot be read twice: write it to a file first"
        )
    if not is_pattern(source):
        raise InputError(f"{source}: no such file or folder")
    matched = [Path(name) for name in sorted(glob.glob(str(source), recursive=True))]  # noqa: PTH207
    _refuse_tables({match if match.is_dir() else match.parent for match in matched})
    found = [part for match in matched for part in _matched(match)]
    if not found:
        raise InputError(f"{source}: no file matches the pattern")
    return _of_one_kind(found, str(source))


def is_pattern(source: str | os.PathLike[str]) -> bool:
    """Return whether a path has wildcards and is no file itself."""
    return glob.has_magic(str(source)) and not Path(source).exists()


def source_name(source: str) -> str:
    """Return a short name for what was read.

    >>> source_name("logs/clicks.csv.gz"), source_name("logs/2024-*.parquet"), source_name("ml-1m")
    ('clicks', 'logs', 'ml-1m')
    """
    path = Path(source)
    if is_pattern(source):
        fixed = [part for part in path.parts if not glob.has_magic(part) and part != os.sep]
        return fixed[-1] if fixed else "log"
    return _unpacked(path).stem


def _matched(path: Path) -> tuple[SourceFile, ...]:
    return _parts(path) if path.is_dir() else (_known_file(path),)


def _parts(folder: Path) -> tuple[SourceFile, ...]:
    if (folder / _DATASET_MANIFEST).is_file():
        raise InputError(f"{folder}: has a {_DATASET_MANIFEST}: a prepared dataset is not a log")
    every = sorted(folder.rglob("*"))
    _refuse_tables({folder, *(path for path in every if path.is_dir())})
    below = (path for path in every if path.is_file())
    visible = [
        path
        for path in below
        if not any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts)
        and _unpacked(path).suffix not in (".item", ".user")  # tables beside a log
    ]
    known = [file for path in visible if (file := _file(path)) is not None]
    if not known:
        raise InputError(f"{folder}: the folder has no files to read ({', '.join(_KINDS)})")
    return _of_one_kind(known, str(folder))


def _refuse_tables(folders: set[Path]) -> None:
    """Refuse tables whose files are not their rows: a log beside them says which still count.

    Folders above count, too: day=2024-01-05 may be a part of such a table.

    Raises:
        InputError: one of the folders is, or is in, a table of Delta Lake, Hudi or Iceberg.
    """
    for folder in sorted({above for path in folders for above in (path, *path.absolute().parents)}):
        for kind, (mark, reader) in _TABLES.items():
            if next(folder.glob(mark), None) is not None:
                raise InputError(
                    f"{folder}: is {kind} table, whose files also have rows that were removed or "
                    f"rewritten: read it with its own library and pass the frame, e.g. {reader}, "
                    "or write that frame to Parquet"
                )


def _of_one_kind(files: list[SourceFile], origin: str) -> tuple[SourceFile, ...]:
    for file in files:
        if file.kind != files[0].kind:
            raise InputError(
                f"{origin}: has {files[0].kind} and {file.kind} ({files[0].path.name}, "
                f"{file.path.name}): name the files of one kind, as in '{origin}/*.parquet'"
            )
    return tuple(files)


def _known_file(path: Path) -> SourceFile:
    file = _file(path)
    if file is None:
        if path.suffix.lower() in _EXCEL:
            raise InputError(
                f"{path}: is an Excel workbook: save its sheet as CSV, or in Python pass the frame "
                f"of pandas.read_excel({path.name!r})"
            )
        known = f"{', '.join(_KINDS)}, also with {', '.join(_COMPRESSIONS)}"
        inner = _unpacked(path)
        ending = inner.suffix + path.name.removeprefix(inner.name)
        hint = (
            "if it has an object on each line, name it .jsonl"
            if inner.suffix.lower() == ".json"
            else "if it is text with a delimiter, name it .csv or .tsv"
        )
        raise InputError(f"{path}: unknown extension {ending!r}, not {known}: {hint}")
    return file


def _file(path: Path) -> SourceFile | None:
    """Return the file with the format that its name tells, None if it tells none."""
    kind = _KINDS.get(_unpacked(path).suffix.lower())
    compression = _COMPRESSIONS.get(path.suffix.lower())
    return None if kind is None else SourceFile(path, kind, compression)


def _unpacked(path: Path) -> Path:
    """Return the path without the ending of a compression."""
    return path.with_suffix("") if path.suffix.lower() in _COMPRESSIONS else path
