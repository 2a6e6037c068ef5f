"""The encodings of text files: UTF-8 and UTF-16 are recognised, others are given."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterable
from functools import partial
from itertools import chain
from pathlib import Path

from recsys.data.source_files import LONGEST_LINE, SourceFile
from recsys.errors import InputError

SAMPLE = 1 << 16
"""The number of bytes at the beginning of a file that are looked at."""
_BLOCK = 1 << 24


def as_utf8(file: SourceFile, other: str | None) -> tuple[Path | bytes, str]:
    """Return the file as UTF-8, in place if it is, and the beginning of its text: a line at least.

    Args:
        file: a text file.
        other: the encoding of text that is neither UTF-8 nor UTF-16; None leaves it as it is.

    Raises:
        InputError: the text is neither, nor of the other encoding; see `_from_other` too.
        OSError: the file cannot be read or decompressed.
    """
    if file.compression is None:
        with file.path.open("rb") as plain:
            start = plain.read(SAMPLE)
            if b"\n" not in start and b"\r" not in start:  # a header of thousands of columns
                start += plain.readline(LONGEST_LINE)
            readable = _utf16_of(start) is None and (b"\n" in start or b"\r" not in start)
            blocks = chain([start], iter(partial(plain.read, _BLOCK), b""))
            if readable and (other is None or _is_utf8(blocks)):
                return file.path, _decoded(start)
    content = file.content()
    encoding = _utf16_of(content[:SAMPLE])
    if encoding is not None:
        try:
            content = content.decode(encoding).encode()
        except UnicodeDecodeError as error:
            raise InputError(f"{file.path}: begins like {encoding} text, but is not") from error
    elif other is not None and not _is_utf8([content]):
        content = _from_other(other, content, file.path)
    if b"\n" not in content:
        content = content.replace(b"\r", b"\n")
    header = content.find(b"\n") + 1 or len(content)
    return content, _decoded(content[: max(header, SAMPLE)])


def first_line_of_another_encoding(source: Path | bytes) -> int | None:
    """Return the number, from 1, of the first line that is not UTF-8; None if all are."""
    with source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as lines:
        bad = (number for number, line in enumerate(lines, 1) if not _is_utf8([line]))
        return next(bad, None)


def _from_other(encoding: str, content: bytes, path: Path) -> bytes:
    """Return text of an encoding as UTF-8.

    Raises:
        InputError: it has not the encoding; or it is UTF-8 but for few bytes: all other letters
            would become wrong ones without a word.
    """
    lenient = content.decode(errors="replace")
    broken = lenient.count("\N{REPLACEMENT CHARACTER}")
    if len(lenient) - len(lenient.encode("ascii", "ignore")) > 3 * broken:
        line = first_line_of_another_encoding(content)
        raise InputError(f"{path}: line {line} is not UTF-8, but most of the file is: mend it")
    try:
        return content.decode(encoding).encode()
    except UnicodeDecodeError as error:
        line, bad = content.count(b"\n", 0, error.start) + 1, content[error.start]
        raise InputError(
            f"{path}: line {line} has the byte 0x{bad:02x}, which is neither UTF-8 nor {encoding}"
        ) from error


def _is_utf8(blocks: Iterable[bytes]) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for block in blocks:
            decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _utf16_of(start: bytes) -> str | None:
    """Return the encoding of UTF-16 text, every other byte of which is mostly 0; else None."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    zeros = {start[:1]: "utf-16-be", start[1:2]: "utf-16-le"}
    return zeros.get(b"\x00")


def _decoded(start: bytes) -> str:
    return start.decode("utf-8", errors="replace").removeprefix("\ufeff")
