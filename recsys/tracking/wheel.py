"""The library itself as a wheel, so that a logged model brings the code that reads it.

No requirement line may name it: a package index knows another project as ``recsys``, and need not
have this version of this one.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from recsys.extras import DISTRIBUTION
from recsys.folders.manifest import library_version

_DATE = (1980, 1, 1, 0, 0, 0)
"""Of every file: the same code gives the same bytes."""


class Wheel(NamedTuple):
    """A wheel in memory."""

    name: str
    """The name of its file."""
    content: bytes


@cache
def library_wheel() -> Wheel:
    """Return a wheel of the library as it runs here, without dependencies.

    Its version ends in a digest of the code: tools that keep environments, as MLflow does, must
    not take the environment of other code of the same version for this one's.
    """
    package = Path(__file__).parents[1]
    files = {
        f"{package.name}/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name} {hashlib.sha256(content).hexdigest()}\n".encode())
    public = library_version().partition("+")[0].replace("source", "0")
    version = f"{public}+c{digest.hexdigest()[:12]}"  # c: digits alone would be read as a number
    stem = f"{DISTRIBUTION.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {version}\n"
    files[f"{info}/METADATA"] = metadata.encode()
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: recsys\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = [_record_line(name, content) for name, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            out.writestr(entry, content)
    return Wheel(f"{stem}-py3-none-any.whl", archive.getvalue())


def _record_line(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}"
