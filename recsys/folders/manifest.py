"""Manifests: the description of a folder that the library wrote, with checksums; SHA-256."""

import hashlib
import json
import mmap
import re
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recsys.errors import DISTRIBUTION, InputError
from recsys.folders.atomic import recover

MANIFEST = "manifest.json"
_PLAIN_NAME = re.compile(r"\w[\w.-]*")

T = TypeVar("T")


def library_version() -> str:
    """Return the version of the installed library; "source" if it is not installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "source"


class FolderManifest(BaseModel):
    """The manifest of a folder; each kind adds its own fields and sets the class variables."""

    model_config = ConfigDict(  # another format version may have more fields
        frozen=True, extra="ignore", use_attribute_docstrings=True, allow_inf_nan=False
    )

    noun: ClassVar[str]
    """The kind of folder in messages, with its article."""
    remedy: ClassVar[str]
    """The advice in messages about an invalid folder."""

    format: str
    format_version: int
    """The version of the folder's layout; a folder of another one than the default is refused."""
    recsys: str = Field(default_factory=library_version)
    """The version of the library that wrote the folder."""
    files: dict[str, str] = Field(default_factory=dict)
    """The SHA-256 of each file in the folder except the manifest; `write` fills it in."""
    digest: str = ""
    """The SHA-256 of all other fields; see `tree_sha256`."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a folder; none, a damaged one or one of another kind is refused."""
        path = folder / MANIFEST
        if not folder.exists():
            recover(folder)  # a kill may have ended its replacement halfway
        if not path.is_file():
            missing = f"not {cls.noun}: it has no {MANIFEST}"
            raise InputError(f"{folder}: {missing if folder.exists() else 'no such folder'}")
        try:
            content = path.read_bytes()
            manifest = cls.model_validate_json(content)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        except ValidationError as error:
            wrong = error.errors()[0]
            key = ".".join(map(str, wrong["loc"]))
            raise InputError(
                f"{path}: not the manifest of {cls.noun}: {key} {wrong['msg'].lower()}"
            ) from error
        same_version = manifest.format_version == cls.model_fields["format_version"].default
        if same_version and manifest.digest != tree_sha256(json.loads(content)):
            raise InputError(f"{path}: the manifest was changed or is damaged; {cls.remedy}")
        return manifest

    def verify(self, folder: Path) -> None:
        """Refuse another format version, and a file that is missing or was changed."""
        current = type(self).model_fields["format_version"].default
        if self.format_version != current:
            raise InputError(
                f"{folder}: format version {self.format_version}, and this library reads "
                f"{current}; {self.remedy}"
            )
        for name, expected in self.files.items():
            file = folder / name
            # Others may lead elsewhere, or never end.
            if not _PLAIN_NAME.fullmatch(name) or file.is_symlink() or not file.is_file():
                raise InputError(f"{file}: missing, or no regular file, though {MANIFEST} lists it")
            if (digest := file_sha256(file)) != expected:
                raise InputError(
                    f"{file}: SHA-256 {digest} is not {expected} of {MANIFEST}: the file was "
                    f"changed; {self.remedy}"
                )

    @classmethod
    def load(cls, folder: Path, load: Callable[[Self], T]) -> T:
        """Check a folder, and load what its manifest lists; again if it was replaced meanwhile."""
        for _ in range(2):
            before = _identity(folder)
            try:
                manifest = cls.read(folder)
                manifest.verify(folder)
                loaded = load(manifest)
            except (InputError, OSError):
                if _identity(folder) == before:
                    raise
            else:
                if _identity(folder) == before:
                    return loaded
        raise InputError(f"{folder}: was replaced twice while it was read; try again")

    @classmethod
    def previous(cls, folder: Path) -> Self | None:
        """Return the manifest of a folder that may be replaced; None if there is none.

        Anything else there must not be lost, and is refused.
        """
        recover(folder)
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return None
        try:
            manifest = cls.read(folder)
        except InputError as error:
            raise InputError(f"{folder}: exists and is left alone: {error}") from error
        if foreign := {file.name for file in folder.iterdir()} - {MANIFEST, *manifest.files}:
            raise InputError(
                f"{folder}: exists and is left alone: {min(foreign)} is not part of {cls.noun}: "
                "choose another folder, or move it away"
            )
        return manifest

    def write(self, folder: Path) -> None:
        """Write the manifest into its folder, which has all other files by now."""
        files = (file for file in sorted(folder.iterdir()) if file.name != MANIFEST)
        sealed = {file.name: file_sha256(file) for file in files}
        fields = self.model_dump(mode="json") | {"files": sealed}
        fields["digest"] = tree_sha256(fields)
        text = json.dumps(fields, indent=2, ensure_ascii=False)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what changes when a folder is replaced."""
    try:
        facts = folder.stat()
    except (OSError, ValueError):  # nothing is there, or the name is none
        return None
    return facts.st_ino, facts.st_mtime_ns


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
