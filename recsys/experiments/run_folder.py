"""The folder that the results of a run are written to."""

from __future__ import annotations

import logging
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from recsys.errors import InputError
from recsys.tracking import artifacts

logger = logging.getLogger(__name__)


def check_out(out: Path) -> None:
    """Check, before hours of training, that the results can be written; log what they replace.

    Raises:
        InputError: something else is there, or it cannot be written.
    """
    if out.exists():
        there = {path.name for path in out.iterdir()} if out.is_dir() else {out.name}
        if foreign := there - artifacts.RUN_FILES:
            raise InputError(
                f"{out}: exists and is left alone: {min(foreign)} does not belong to a run"
            )
        if there:
            written = datetime.fromtimestamp(out.stat().st_mtime, UTC).astimezone()
            logger.info(
                "%s of %s is replaced when this run ends; another name keeps it: --set name=…",
                *(out, f"{written:%Y-%m-%d %H:%M}"),
            )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent):
            pass
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}") from error
