"""What a server counts, for Prometheus, and writes, as lines of JSON that never hold a history."""

import json
import logging
import os
import sys
import traceback
from datetime import UTC, datetime
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.process_collector import ProcessCollector

SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"
"""The variable with the folder where workers share their metrics, read at the first metric."""
FACTS = "facts"
"""The attribute of a record of a log with further fields of its line."""
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.requests = counter("recsys_requests_total", "Answered requests.", ["path", "status"])
        text = "Time from a complete request to its answer."
        self.seconds = histogram("recsys_request_seconds", text, ["path"], buckets=_SECONDS)
        text = "Requests answered together."
        self.batches = histogram("recsys_batch_size", text, ["question"], buckets=_SIZES)
        text = "Time of the model for one batch."
        self.model_seconds = histogram("recsys_model_seconds", text, ["question"], buckets=_SECONDS)
        text = "Requests that wait for the model."
        self.waiting = gauge("recsys_queue_length", text, multiprocess_mode="livesum")
        self.reloads = counter("recsys_reloads_total", "Attempts to load a new bundle.", ["result"])
        text = "Histories whose encoded state was kept (hit) or had to be made (miss)."
        self.histories = counter("recsys_state_cache_histories_total", text, ["result"])

    def page(self) -> bytes:
        """Return all metrics in the text format of Prometheus; with workers, those of all."""
        registry = self.registry
        if SHARED_METRICS in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return the line; of an exception, its kind and place, since its text may quote data."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, FACTS, {}),
        }
        kind, _, trace = record.exc_info or (None, None, None)
        if kind is not None:
            line["error"] = kind.__name__
            for last in traceback.extract_tb(trace)[-1:]:
                line["at"] = f"{last.filename}:{last.lineno}"
        return json.dumps(line)


def write_json_lines() -> None:
    """Have all logs of this process written to the standard error, as lines of JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("recsys").setLevel(logging.INFO)
    # Answers say what was skipped or assumed; a warning of it for each request would be noise.
    logging.getLogger("recsys.serving").setLevel(logging.ERROR)
