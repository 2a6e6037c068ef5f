"""Manifests: the description of a folder that the library wrote, with checksums."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, ValidationError

from recsys.config import Columns, Section
from recsys.data.files import file_sha256
from recsys.errors import InputError
from recsys.extras import DISTRIBUTION

MANIFEST = "manifest.json"


def library_version() -> str:
    """Return the version of the installed library; "source" if it is not installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "source"


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

    format_version: int
    recsys: str = Field(default_factory=library_version)
    """The version of the library that wrote the folder."""
    files: dict[str, str]
    """The SHA-256 of each file in the folder except the manifest."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a folder.

        Raises:
            InputError: the folder has none, or one of another kind.
        """
        path = folder / MANIFEST
        if not path.is_file():
            raise InputError(f"{folder}: not {cls.noun}: it has no {MANIFEST}")
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            wrong = error.errors()[0]
            key = ".".join(map(str, wrong["loc"]))
            raise InputError(
                f"{path}: not the manifest of {cls.noun}: {key} {wrong['msg'].lower()}"
            ) from error

    @classmethod
    def previous(cls, folder: Path) -> Self | None:
        """Return the manifest of the folder that a new one would replace; None if there is none.

        Raises:
            InputError: something else is there, which must not be lost.
        """
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return None
        try:
            manifest = cls.read(folder)
        except InputError as error:
            raise InputError(f"{folder}: exists and is left alone: {error}") from error
        if foreign := {file.name for file in folder.iterdir()} - {MANIFEST, *manifest.files}:
            raise InputError(
                f"{folder}: exists and is left alone: {min(foreign)} is not part of {cls.noun}"
            )
        return manifest

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
        (folder / MANIFEST).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

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
            if not (folder / name).is_file():
                raise InputError(f"{folder / name}: missing, though {MANIFEST} lists it")
            if (found := file_sha256(folder / name)) != expected:
                raise InputError(
                    f"{folder / name}: SHA-256 {found} is not {expected} of {MANIFEST}: "
                    f"the file was changed; {self.remedy}"
                )


class Manifest(FolderManifest):
    """The manifest of a prepared dataset."""

    noun: ClassVar[str] = "a prepared dataset"
    remedy: ClassVar[str] = "prepare the dataset again"
    current_version: ClassVar[int] = 1

    format: Literal["recsys.prepared"] = "recsys.prepared"
    format_version: int = current_version
    origin: str
    """The name or path of the log."""
    log_fingerprint: str
    """The SHA-256 of the rows of the log, before any filter."""
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
