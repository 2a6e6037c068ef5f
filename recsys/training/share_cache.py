"""What was measured on this machine, kept between runs in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from recsys.data.files import new_file
from recsys.errors import InputError

logger = logging.getLogger(__name__)

_known: dict[Path, float] = {}
"""What this process has measured, also where the folder cannot be written."""


def cache_folder() -> Path:
    """Return the folder of what was measured: ``$XDG_CACHE_HOME/recsys`` or ``~/.cache/recsys``."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base)) / "recsys"  # noqa: PTH111 - never fails without a home


def known_share(shapes: Mapping[str, Any], measure: Callable[[], float]) -> float:
    """Return what was measured for the shapes on this machine, or measure it and keep it.

    A machine is its processor, the version of torch and the number of threads. A file that cannot
    be read, or written, is ignored.

    Args:
        shapes: what was measured, as JSON.
        measure: measures it: a positive number.
    """
    facts = {"machine": _machine(), "shapes": shapes}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    file = cache_folder() / "shares" / f"{digest[:32]}.json"
    if (known := _known.get(file) or _read(file)) is not None:
        return known
    share = _known[file] = measure()
    content = json.dumps({"share": share, **facts}, indent=1)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with new_file(file) as part:
            part.write_text(content, encoding="utf-8")
    except (OSError, InputError) as error:
        logger.debug("%s: not kept: %s", file, error)
    return share


def _read(file: Path) -> float | None:
    """Return the share in a file; None if there is none, or it is damaged."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        share = float(json.loads(file.read_text(encoding="utf-8"))["share"])
        if 0 < share < float("inf"):
            return share
    return None


def _machine() -> dict[str, Any]:
    """Return all that products are as fast as."""
    return {
        "processor": _processor(),
        "features": dict(torch.cpu.get_capabilities()),
        "instructions": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),  # which the user allows
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def _processor() -> str:
    """Return the model of the processor; `platform` knows only its architecture on Linux."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    return platform.processor()
