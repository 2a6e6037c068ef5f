"""The exchange of two folders in one step, where the system has it."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
"""Of renameat2(2), Linux."""
_RENAME_SWAP = 2
"""Of renamex_np(2), macOS."""
_UNSUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM}


def exchange(first: Path, second: Path) -> bool:
    """Exchange two existing folders in one step; Python's standard library cannot.

    Returns:
        Whether that was done: False if the system or the file system cannot.

    Raises:
        OSError: the folders cannot be renamed.
    """
    call = _system_call()
    if call is None:
        return False
    one, other = os.fsencode(first), os.fsencode(second)
    if sys.platform == "darwin":
        failed = call(one, other, _RENAME_SWAP)
    else:
        failed = call(_AT_FDCWD, one, _AT_FDCWD, other, _RENAME_EXCHANGE)
    if not failed:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(second))


@cache
def _system_call() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    name = "renamex_np" if sys.platform == "darwin" else "renameat2"
    call = getattr(library, name, None)
    if call is not None:
        path, flags = ctypes.c_char_p, ctypes.c_uint
        at = [ctypes.c_int, path, ctypes.c_int, path, flags]
        call.argtypes = [path, path, flags] if sys.platform == "darwin" else at
        call.restype = ctypes.c_int
    return call
