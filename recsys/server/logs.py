"""Logs as lines of JSON, which never hold a history."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

logger = logging.getLogger(__name__)

FACTS = "facts"
"""The attribute of a record with further fields of its line."""


class JsonLines(logging.Formatter):
    """Writes a record as an object of JSON, in one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; of an exception, its kind and place, since its text may quote data."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, FACTS, {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            trace = record.exc_info[2]
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            if trace is not None:
                line["at"] = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        return json.dumps(line)


def write_json_lines(level: int = logging.INFO) -> None:
    """Have all logs of this process written to the standard error, as lines of JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("recsys").setLevel(level)
    # Answers say what was skipped or assumed; a warning of it for each request would be noise.
    logging.getLogger("recsys.serving").setLevel(logging.ERROR)
