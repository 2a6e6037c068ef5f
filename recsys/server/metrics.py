"""What a server counts, for Prometheus, and writes, as lines of JSON that never hold a history."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.process_collector import ProcessCollector

from recsys.inference.model_scorer import StateCache
from recsys.serving.bundle import ModelBundle

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FACTS = "facts"
"""The attribute of a record of a log with further fields of its line."""


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        ProcessCollector(registry=own)
        self.requests = Counter(
            "recsys_requests_total", "Answered requests.", ["path", "status"], registry=own
        )
        self.seconds = Histogram(
            *("recsys_request_seconds", "Time from a complete request to its answer.", ["path"]),
            buckets=_SECONDS,
            registry=own,
        )
        self.batches = Histogram(
            *("recsys_batch_size", "Requests that were answered together.", ["question"]),
            buckets=_SIZES,
            registry=own,
        )
        self.model_seconds = Histogram(
            *("recsys_model_seconds", "Time of the model for one batch.", ["question"]),
            buckets=_SECONDS,
            registry=own,
        )
        self.waits = Histogram(
            *("recsys_queue_seconds", "Wait of the oldest request of a batch."),
            buckets=_SECONDS,
            registry=own,
        )
        self.waiting = Gauge(
            *("recsys_queue_length", "Requests that wait for the model."),
            registry=own,
            multiprocess_mode="livesum",
        )
        self.reloads = Counter(
            "recsys_reloads_total", "Attempts to load a new bundle.", ["result"], registry=own
        )
        self.known = Counter(
            "recsys_state_cache_histories_total",
            "Histories by whether their encoded state was kept (hit) or had to be made (miss).",
            ["result"],
            registry=own,
        )
        self.kept = Gauge(
            *("recsys_state_cache_bytes", "Size of the kept states."),
            registry=own,
            multiprocess_mode="livesum",
        )
        self.model = Gauge(
            *("recsys_model_info", "1 for the model that answers."),
            ["name", "dataset", "weights", "recsys"],
            registry=own,
            multiprocess_mode="livemax",
        )
        self._served: tuple[str, ...] | None = None

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Take in an answered request."""
        self.requests.labels(path, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def batched(self, question: str, size: int, seconds: float, waited: float) -> None:
        """Take in a batch; of the thread of the model."""
        self.batches.labels(question).observe(size)
        self.model_seconds.labels(question).observe(seconds)
        self.waits.observe(waited)

    def looked_up(self, states: StateCache) -> None:
        """Take in the use of a cache since the last time; of the thread of the model."""
        self.known.labels("hit").inc(states.hits)
        self.known.labels("miss").inc(states.misses)
        states.hits = states.misses = 0
        self.kept.set(states.bytes)

    def serves(self, bundle: ModelBundle) -> None:
        """Take in the model that answers from now on."""
        manifest = bundle.manifest
        if self._served is not None:
            self.model.labels(*self._served).set(0)
        name, dataset = bundle.experiment.name, manifest.dataset_fingerprint
        self._served = (name, dataset, manifest.digest, manifest.recsys)
        self.model.labels(*self._served).set(1)

    def page(self) -> bytes:
        """Return all metrics in the text format of Prometheus; with workers, those of all."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


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


def write_json_lines() -> None:
    """Have all logs of this process written to the standard error, as lines of JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("recsys").setLevel(logging.INFO)
    # Answers say what was skipped or assumed; a warning of it for each request would be noise.
    logging.getLogger("recsys.serving").setLevel(logging.ERROR)
