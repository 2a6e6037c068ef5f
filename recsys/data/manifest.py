"""What a folder says of itself, and whether that is still true."""

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
    """Version of the installed library; "source" where it runs without being installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "source"


class FolderManifest(Section):
    """What every folder that the library writes says of itself.

    A kind of folder has its own fields beside these, and fills in the class variables.
    """

    model_config = ConfigDict(extra="ignore")  # another format version may say more

    noun: ClassVar[str]
    """The kind of folder, as messages name it, with its article."""
    remedy: ClassVar[str]
    """What to do about a folder that will not do."""
    current_version: ClassVar[int]
    """Of the folder's layout; a folder of another version is refused."""

    format_version: int
    recsys: str = Field(default_factory=library_version)
    """Version of the library that wrote it."""
    files: dict[str, str]
    """SHA-256 of each file in the folder but the manifest."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a folder.

        Raises:
            InputError: there is none, or it is of another kind.
        """
        path = folder / MANIFEST
        if not path.is_file():
            raise InputError(f"{folder}: not {cls.noun}: it has no {MANIFEST}")
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            wrong = error.errors()[0]
            place = ".".join(map(str, wrong["loc"]))
            raise InputError(
                f"{path}: not the manifest of {cls.noun}: {place} {wrong['msg'].lower()}"
            ) from error

    @classmethod
    def previous(cls, folder: Path) -> Self | None:
        """The manifest of the folder that a new one would replace; None if nothing is there.

        Raises:
            InputError: something else is there, which may not be lost.
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
        """As `previous`, and None too if what is there is not what was written.

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
            InputError: another version, or a file is missing or is not what was written.
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
    """What a prepared dataset is made of, and how."""

    noun: ClassVar[str] = "a prepared dataset"
    remedy: ClassVar[str] = "prepare the dataset again"
    current_version: ClassVar[int] = 1

    format: Literal["recsys.prepared"] = "recsys.prepared"
    format_version: int = current_version
    origin: str
    """The log, as it was named."""
    log_fingerprint: str
    """SHA-256 of the rows of the log, before any filter."""
    fingerprint: str
    """SHA-256 of settings and content: the same log gives the same one, whatever file it came in
    and whenever it was prepared."""
    settings: dict[str, Any]
    """The fields of DataConfig that decide the content."""
    columns: Columns
    """What the log called its columns; they leave no trace in the content."""
    ordered_by: str
    """The total order of the interactions."""
    filtered_on: str
    """Which rows the minimum numbers of interactions were counted on."""
    counts: dict[str, int]
    dropped: dict[str, int] = Field(default_factory=dict)
    """Rows of the source that were left out before all else, by the reasons of data.drop."""
