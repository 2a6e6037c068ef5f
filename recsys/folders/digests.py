"""SHA-256 of files, of folders and of trees of plain values."""

import hashlib
import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def seal(path: Path) -> None:
    """Replace `BLANK`, which a file must contain once, by the SHA-256 of the file with it."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        place = _place_of_digest(content)
        content[place] = hashlib.sha256(content).hexdigest().encode()


def check_seal(path: Path) -> None:
    """Raise a ValueError if a file was never sealed, or changed since."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as content:
        place = _place_of_digest(content)
        digest, content[place] = content[place], b"0" * _DIGITS
        if hashlib.sha256(content).hexdigest().encode() != digest:
            raise ValueError("damaged: its SHA-256 is not the one that it holds")


def _place_of_digest(content: mmap.mmap) -> slice:
    start = content.find(_MARK) + len(_MARK)
    once = start >= len(_MARK) and content.find(_MARK, start) < 0
    if not once or start + _DIGITS > len(content):
        raise ValueError("it does not hold its SHA-256, or is damaged")
    return slice(start, start + _DIGITS)
