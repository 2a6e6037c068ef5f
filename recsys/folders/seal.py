"""A file that holds the SHA-256 of all its other bytes, in its own metadata.

Formats with free text in their metadata (safetensors, Parquet) are written with `BLANK` there, and
`seal` replaces it. One file that checks itself is one that no copy separates from its checksum.
"""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path

from recsys.errors import InputError

_MARK = b"recsys.sha256:"
_DIGITS = hashlib.sha256().digest_size * 2
BLANK = _MARK.decode() + "0" * _DIGITS
"""The text that a file must contain once before it is sealed."""


class DamagedError(InputError):
    """The file is not as it was sealed."""


def seal(path: Path) -> None:
    """Replace `BLANK` in a file by the SHA-256 of the file with it.

    Raises:
        ValueError: the file does not contain it once.
        OSError: the file cannot be written.
    """
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        start = _start_of_digest(content)
        if start is None:
            raise ValueError(f"{path}: {_MARK.decode()} does not occur once")
        content[start : start + _DIGITS] = hashlib.sha256(content).hexdigest().encode()


def check_seal(path: Path) -> bool:
    """Check a file against the SHA-256 that `seal` wrote into it.

    Returns:
        Whether it has one: a file of another kind has none.

    Raises:
        DamagedError: it was changed since.
        OSError: it cannot be read.
    """
    if not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = _start_of_digest(content)
        if start is None:
            return False
        with memoryview(content) as view:
            digest = hashlib.sha256(view[:start])
            digest.update(b"0" * _DIGITS)
            digest.update(view[start + _DIGITS :])
        if digest.hexdigest().encode() != content[start : start + _DIGITS]:
            raise DamagedError(f"{path}: damaged: its SHA-256 is not the one that it holds")
    return True


def _start_of_digest(content: mmap.mmap) -> int | None:
    """Return where the digest is; None unless the mark occurs once."""
    start = content.find(_MARK) + len(_MARK)
    once = start >= len(_MARK) and content.find(_MARK, start) < 0
    return start if once and start + _DIGITS <= len(content) else None
