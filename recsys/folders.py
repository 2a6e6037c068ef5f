"""Files and folders that appear completely or not at all, also at a kill or a power cut.

What is written is synced to the disk before it takes its place, and the old content is deleted only
after the new one has: see Pillai et al. 2014, "All file systems are not created equal". Locks keep
other processes away meanwhile, and manifests with checksums tell what is whole.
"""

import errno
import fcntl
import glob
import hashlib
import json
import mmap
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from filelock import FileLock, Timeout
from polars.exceptions import PolarsError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError

from recsys.errors import DISTRIBUTION, InputError, one_line

_SUFFIX = ".writing"
_NEW, _OLD = "new", "old"
_LITTLE = 64 * 1024
"""With fewer free bytes than this a write that failed without a reason met a full disk."""


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling folder that replaces the path when the block ends without error.

    At a kill or a power cut the path has the old or the new content, after `recover`. A full disk
    and the like are an `InputError`.
    """
    with work_folder(path) as work:
        new, old, path = work / _NEW, work / _OLD, path.resolve()
        new.mkdir()
        yield new
        sync(new)
        with locked(path.parent):  # so that nobody looks between the two renames
            if path.exists():
                path.rename(old)
            try:
                sync_entries(work)
                new.rename(path)
            except BaseException:  # not even an interrupt may lose the old folder
                if old.exists():
                    old.rename(path)
                raise
            sync_entries(path.parent)
        sync_entries(work)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling file that replaces the path, as `new_folder` does."""
    with work_folder(path) as work:
        new, path = work / path.name, path.resolve()
        yield new
        sync(new)
        new.replace(path)
        sync_entries(path.parent)


@contextmanager
def work_folder(path: Path) -> Iterator[Path]:
    """Yield a folder beside the path, in new parents, for files needed until the block ends.

    What a killed process leaves there is deleted when the path is next written.
    """
    path = path.resolve()  # a link is kept and its target replaced
    with _in_one_line(path), ExitStack() as stack:
        for parent in [*path.parents][::-1]:
            if not parent.exists():
                parent.mkdir(exist_ok=True)
                sync_entries(parent.parent)  # each is known to the disk before the next
        with locked(path.parent):  # so that nobody sweeps the folder before it is locked
            _sweep(path)
            work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=_SUFFIX, dir=path.parent))
            stack.enter_context(locked(work))
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        with _in_one_line(path):  # once the folder is deleted, the disk is no longer full
            yield work


def recover(path: Path) -> None:
    """Undo a replacement of the folder that a kill ended halfway, and delete what it left behind.

    Waits while another process replaces it, and leaves alone what it writes.
    """
    if not path.parent.exists():
        recover(path.parent)
    with suppress(OSError), locked(path.parent):  # another user's folder is read as it is
        _sweep(path)


def sync(path: Path) -> None:
    """Have the disk store a file, or a folder with everything in it."""
    for entry in [*sorted(path.rglob("*"), reverse=True), path]:
        if not entry.is_symlink():
            sync_entries(entry)


def sync_entries(path: Path) -> None:
    """Have the disk store a file, or the names that a folder holds but not what they stand for."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno == errno.EINVAL):  # some shares sync no folders
            raise
    finally:
        os.close(descriptor)


def _sweep(path: Path) -> None:
    """Delete the workspaces of processes that were killed; put back an old folder found there."""
    for work in path.parent.glob(f".{glob.escape(path.name)}.????????{_SUFFIX}"):
        with suppress(OSError), locked(work, wait=False) as is_nobodys:
            if is_nobodys and (work / _OLD).exists() and not path.exists():
                (work / _OLD).rename(path)
                sync_entries(path.parent)
            if is_nobodys:
                shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _in_one_line(path: Path) -> Iterator[None]:
    """Make one line of what can go wrong when the path is written."""
    try:
        yield
    except (OSError, PolarsError, SafetensorError) as error:  # any may be a full disk
        text = str(getattr(error, "strerror", None) or error)
        is_full = os.strerror(errno.ENOSPC) in text
        if getattr(error, "errno", None) is None:  # numpy says only how many bytes it could write
            existing = next(parent for parent in path.parents if parent.exists())
            is_full |= shutil.disk_usage(existing).free < _LITTLE
        reason = "the disk is full" if is_full else text or type(error).__name__
        raise InputError(f"{path}: cannot be written: {reason}") from error


# --- Locks, which the system releases even when their holder is killed ---------------------------


class BusyError(InputError):
    """Another process uses what this one needs; the message names it."""


@contextmanager
def sole_use(path: Path, doing: str, patience: float = 0) -> Iterator[None]:
    """Hold the path, which need not exist, by a hidden sibling, ``.NAME.lock``.

    The file says who does what, and is deleted at the end. One that a killed process left behind is
    locked by nobody, and taken over. A path that another process holds after so many seconds of
    patience is a `BusyError`.
    """
    path = path.resolve()
    file = path.with_name(f".{path.name}.lock")
    lock, is_new = FileLock(file, poll_interval=0.1), not file.parent.exists()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=patience)
    except Timeout:
        holder = "another process"
        with suppress(OSError, ValueError):
            holder = one_line(file.read_text(encoding="utf-8")) or holder
        raise BusyError(f"{path}: in use: {holder}; wait for it, or end it") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    try:
        since = datetime.now(UTC).isoformat(" ", "seconds")
        holder = f"process {os.getpid()} on {socket.gethostname()}, which {doing} since {since}"
        with suppress(OSError):  # a full disk: the lock holds all the same
            file.write_text(holder, encoding="utf-8")
        yield
    finally:
        file.unlink(missing_ok=True)  # who waits for it makes a new one
        lock.release()
        if is_new:
            with suppress(OSError):  # something was written beside it
                file.parent.rmdir()


@contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a folder itself for a moment; yield whether it is held: some file systems lock none."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        is_held = False
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = True
        yield is_held
    finally:
        os.close(descriptor)


# --- Manifests: the description of a folder that the library wrote, with checksums ----------------

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
