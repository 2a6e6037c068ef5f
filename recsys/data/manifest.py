"""Manifests: the description of a folder that the library wrote, with checksums."""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import ConfigDict, Field, ValidationError

from recsys.config import Columns, Section
from recsys.data.appended import AppendedLog
from recsys.data.files import file_sha256, recover
from recsys.errors import InputError
from recsys.extras import DISTRIBUTION

MANIFEST = "manifest.json"
_PLAIN_NAME = re.compile(r"\w[\w.-]*")

T = TypeVar("T")


def library_version() -> str:
    """Return the version of the installed library; "source" if it is not installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "source"


def manifest_digest(fields: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the fields of a manifest, without the digest itself."""
    content = {key: value for key, value in fields.items() if key != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class FolderManifest(Section):
    """The manifest of every folder that the library writes.

    Each kind of folder adds its own fields and sets the class variables.
    """

    model_config = ConfigDict(extra="ignore")  # another format version may have more fields

    noun: ClassVar[str]
    """The kind of folder in messages, with its article."""
    remedy: ClassVar[str]
    """The advice in messages about an invalid folder."""
    current_version: ClassVar[int]
    """The version of the folder's layout; a folder of another version is refused."""
    own_names: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")
    """The names of the files that mark a folder as the library's even if its manifest is damaged;
    such a folder is replaced like any other. No name by default."""

    format: str
    format_version: int
    recsys: str = Field(default_factory=library_version)
    """The version of the library that wrote the folder."""
    files: dict[str, str]
    """The SHA-256 of each file in the folder except the manifest."""
    digest: str = ""
    """The SHA-256 of all other fields; see `manifest_digest`."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a folder.

        Raises:
            InputError: the folder has none, a damaged one, or one of another kind.
        """
        path = folder / MANIFEST
        if not folder.exists():
            recover(folder)  # a kill may have ended its replacement halfway
        if not folder.exists():
            raise InputError(f"{folder}: no such folder")
        if not path.is_file():
            raise InputError(f"{folder}: not {cls.noun}: it has no {MANIFEST}")
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
                f"{f'; {cls.remedy}' if cls._damaged(folder) else ''}"
            ) from error
        same_version = manifest.format_version == cls.current_version
        if same_version and manifest.digest != manifest_digest(json.loads(content)):
            raise InputError(f"{path}: the manifest was changed or is damaged; {cls.remedy}")
        return manifest

    @classmethod
    def load(cls, folder: Path, load: Callable[[Self], T]) -> T:
        """Check a folder, and load what its manifest lists; again if it was replaced meanwhile.

        Args:
            folder: the folder.
            load: reads the files of the folder, given its manifest.

        Raises:
            InputError: as `read` and `verify`, or as ``load``; or the folder was replaced again.
        """
        for last in (False, True):
            manifest = cls.read(folder)
            before = manifest.state(folder)
            try:
                manifest.verify(folder)
                loaded = load(manifest)
            except (InputError, OSError):
                if last or manifest.state(folder) == before:
                    raise
            else:
                if manifest.state(folder) == before:
                    return loaded
        raise InputError(f"{folder}: was replaced twice while it was read; try again")

    def state(self, folder: Path) -> list[tuple[int, int, int] | None]:
        """Return what changes when a file of the folder does: inode, size and time of each."""
        state: list[tuple[int, int, int] | None] = []
        for name in (MANIFEST, *self.files):
            try:
                found = (folder / name).lstat()
            except (OSError, ValueError):
                state.append(None)
            else:
                state.append((found.st_ino, found.st_size, found.st_mtime_ns))
        return state

    @classmethod
    def previous(cls, folder: Path) -> Self | None:
        """Return the manifest of the folder that a new one would replace.

        None if there is none, or if it is damaged in a folder that is the library's all the same.

        Raises:
            InputError: something else is there, which must not be lost.
        """
        recover(folder)
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return None
        try:
            manifest = cls.read(folder)
        except InputError as error:
            if cls._damaged(folder):
                return None
            raise InputError(f"{folder}: exists and is left alone: {error}") from error
        if foreign := {file.name for file in folder.iterdir()} - {MANIFEST, *manifest.files}:
            raise InputError(
                f"{folder}: exists and is left alone: {min(foreign)} is not part of {cls.noun}: "
                "choose another folder, or move it away"
            )
        return manifest

    @classmethod
    def _damaged(cls, folder: Path) -> bool:
        """Whether a folder whose manifest cannot be read has only files of this kind of folder.

        It was written by the library then: a power cut can leave an empty manifest, or half of one.
        """
        if not folder.is_dir():
            return False
        names = {file.name for file in folder.iterdir()} - {MANIFEST}
        if not names or not all(cls.own_names.fullmatch(name) for name in names):
            return False
        try:
            fields = json.loads((folder / MANIFEST).read_bytes())
        except (RecursionError, ValueError):
            return True
        except OSError:
            return False
        return (
            isinstance(fields, dict) and fields.get("format") == cls.model_fields["format"].default
        )

    @classmethod
    def load_if_valid(cls, folder: Path) -> Self | None:
        """Return the `previous` manifest; None also if a file was changed since it was written.

        Raises:
            InputError: as `previous`.
        """
        manifest = cls.previous(folder)
        try:
            if manifest is not None:
                manifest.verify(folder)
        except InputError:
            return None
        return manifest

    def write(self, folder: Path) -> None:
        """Write the manifest into its folder."""
        fields = self.model_dump(mode="json")
        fields["digest"] = manifest_digest(fields)
        text = json.dumps(fields, indent=2, ensure_ascii=False)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")

    def verify(self, folder: Path) -> None:
        """Check the format version, and every file of the folder against its checksum.

        Raises:
            InputError: another format version, or a file is missing or was changed.
        """
        if self.format_version != self.current_version:
            raise InputError(
                f"{folder}: format version {self.format_version}, and this library reads "
                f"{self.current_version}; {self.remedy}"
            )
        for name, expected in self.files.items():
            if not _PLAIN_NAME.fullmatch(name):
                raise InputError(f"{folder / MANIFEST}: {name!r} is not the name of a file in it")
            try:
                kind = (folder / name).lstat().st_mode
            except OSError:
                raise InputError(f"{folder / name}: missing, though {MANIFEST} lists it") from None
            if not stat.S_ISREG(kind):  # a link may lead out of the folder, a pipe never ends
                raise InputError(f"{folder / name}: not a regular file, as {MANIFEST} lists it")
            if (found := file_sha256(folder / name)) != expected:
                raise InputError(
                    f"{folder / name}: SHA-256 {found} is not {expected} of {MANIFEST}: "
                    f"the file was changed; {self.remedy}"
                )


class Manifest(FolderManifest):
    """The manifest of a prepared dataset."""

    noun: ClassVar[str] = "a prepared dataset"
    remedy: ClassVar[str] = "prepare the dataset again"
    current_version: ClassVar[int] = 2
    own_names: ClassVar[re.Pattern[str]] = re.compile(
        r"(items|timestamps|offsets|cuts)\.npy|(users|items|interactions|outside)\.parquet"
    )

    format: Literal["recsys.prepared"] = "recsys.prepared"
    format_version: int = current_version
    origin: str
    """The name or path of the log."""
    log_fingerprint: str
    """The SHA-256 of the rows of the first log, before any filter."""
    fingerprint: str
    """The SHA-256 of settings and content. It depends neither on the log's file nor on when it was
    prepared."""
    settings: dict[str, Any]
    """The fields of DataConfig that determine the content."""
    columns: Columns
    """The names of the log's columns, which do not affect the content."""
    ordered_by: str
    """The total order of the interactions."""
    filtered_on: str
    """The rows on which the minimum numbers of interactions were counted."""
    counts: dict[str, int]
    """Sizes of the log and of the dataset; see `recsys.data.arrays.count_rows`."""
    dropped: dict[str, int] = Field(default_factory=dict)
    """The number of dropped rows of the source, by reason: those of data.drop, the names of the
    settings that drop rows, and blank rows. They and the interactions add up to the rows read."""
    appended: tuple[AppendedLog, ...] = ()
    """The logs that were appended, the earliest first."""
