"""Locks of files and folders, which the system releases even when their holder is killed."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from recsys.errors import InputError

logger = logging.getLogger(__name__)

_PAUSE = 0.1
_BUSY = {errno.EACCES, errno.EAGAIN}


class BusyError(InputError):
    """Another process uses what this one needs; the message names it."""


@contextmanager
def sole_use(path: Path, doing: str, patience: float = 0) -> Iterator[None]:
    """Hold the path for this process; the lock is a hidden sibling, ``.NAME.lock``.

    The file names its holder, and is deleted at the end. One that a killed process left behind is
    locked by nobody, and taken over.

    Args:
        path: a file or folder, which need not exist.
        doing: what this process does with it, for the message to another one.
        patience: how many seconds to wait for another process; a message says so.

    Raises:
        BusyError: another process holds it.
        InputError: the lock file cannot be written.
    """
    path = path.resolve()
    lock = path.with_name(f".{path.name}.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _wait(lock, patience)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    if descriptor is None:
        raise BusyError(f"{path}: in use: {_holder(lock)}; wait for it, or end it")
    try:
        facts = {"doing": doing, "pid": os.getpid(), "host": socket.gethostname()}
        facts["since"] = datetime.now(UTC).isoformat(" ", "seconds")
        with suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(facts).encode(), 0)
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for a moment; other processes wait.

    Without any effect on a file system that locks no folders.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def free_lock(folder: Path) -> bool:
    """Return whether nobody holds a folder; False if the file system cannot say."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _wait(lock: Path, patience: float) -> int | None:
    """Return what `_take` does, after some waiting if need be."""
    end, told = time.monotonic() + patience, False
    while (descriptor := _take(lock)) is None and time.monotonic() < end:
        if not told:
            logger.info("%s: waiting for %s", lock.parent, _holder(lock))
        told = True
        time.sleep(_PAUSE)
    return descriptor


def _take(lock: Path) -> int | None:
    """Return the descriptor of the locked file; None if another process holds it."""
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(lock.stat(), os.fstat(descriptor)):
                return descriptor
        except FileNotFoundError:
            pass  # its holder deleted it meanwhile: make a new one
        except OSError as error:
            os.close(descriptor)
            if error.errno in _BUSY:
                return None
            raise
        os.close(descriptor)


def _holder(lock: Path) -> str:
    try:
        facts = json.loads(lock.read_text(encoding="utf-8"))
        return "process {pid} on {host}, which {doing} since {since}".format(**facts)
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
