"""SHA-256 of files, of folders and of trees of plain values."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.errors import InputError


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_sha256(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder, by name."""
    return {file.name: file_sha256(file) for file in sorted(folder.iterdir())}


def tree_sha256(tree: Mapping[str, Any]) -> str:
    """Return the SHA-256 of values that JSON can represent, without the key ``digest``."""
    content = {key: value for key, value in tree.items() if key != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# --- Files that hold the SHA-256 of their other bytes ---------------------------------------------

_MARK = b"recsys.sha256:"
_DIGITS = hashlib.sha256().digest_size * 2
BLANK = _MARK.decode() + "0" * _DIGITS
"""The text that a file must contain once before it is sealed: free text of its metadata, as
safetensors and Parquet have. So no copy separates a file from its checksum."""


class DamagedError(InputError):
    """The file is not as it was sealed."""


def seal(path: Path) -> None:
    """Replace `BLANK`, which a file must contain once, by the SHA-256 of the file with it."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        place = _place_of_digest(content)
        if place is None:
            raise ValueError(f"{path}: {_MARK.decode()} does not occur once")
        content[place] = hashlib.sha256(content).hexdigest().encode()


def check_seal(path: Path) -> bool:
    """Return whether a file was sealed; one that was changed since is a `DamagedError`."""
    if not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as content:
        place = _place_of_digest(content)
        if place is None:
            return False
        digest, content[place] = content[place], b"0" * _DIGITS
        if hashlib.sha256(content).hexdigest().encode() != digest:
            raise DamagedError(f"{path}: damaged: its SHA-256 is not the one that it holds")
    return True


def _place_of_digest(content: mmap.mmap) -> slice | None:
    """Return where the digest is; None unless the mark occurs once."""
    start = content.find(_MARK) + len(_MARK)
    once = start >= len(_MARK) and content.find(_MARK, start) < 0
    return slice(start, start + _DIGITS) if once and start + _DIGITS <= len(content) else None
