"""Files and folders that appear completely or not at all, also at a kill or a power cut.

What is written is synced to the disk before it takes its place, and the old content is deleted only
after the new one has: see Pillai et al. 2014, "All file systems are not created equal".
"""

import errno
import fcntl
import glob
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout
from polars.exceptions import PolarsError
from safetensors import SafetensorError

from recsys.errors import InputError, one_line

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
