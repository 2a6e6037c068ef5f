"""Locks of files and folders, which the system releases even when their holder is killed."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from recsys.errors import InputError, one_line

logger = logging.getLogger(__name__)


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
    lock = FileLock(file, poll_interval=0.1)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with suppress(Timeout):
            lock.acquire(timeout=0)
        if not lock.is_locked:
            if patience:
                logger.info("%s: waiting for %s", path.parent, _holder(file))
            lock.acquire(timeout=patience)
    except Timeout:
        raise BusyError(f"{path}: in use: {_holder(file)}; wait for it, or end it") from None
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


def _holder(file: Path) -> str:
    with suppress(OSError, ValueError):
        return one_line(file.read_text(encoding="utf-8")) or "another process"
    return "another process"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder itself for a moment; other processes wait, if the file system locks folders."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_unlocked(folder: Path) -> bool:
    """Return whether nobody holds a folder; False if the file system cannot say."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True
