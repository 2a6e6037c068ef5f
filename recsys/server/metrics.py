"""What a server counts and measures, for Prometheus."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.process_collector import ProcessCollector

from recsys.inference.model_scorer import StateCache
from recsys.server.model_thread import Batch
from recsys.serving.bundle import ModelBundle

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "recsys_requests_total",
            "Answered requests.",
            ["path", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "recsys_request_seconds",
            "Time from a complete request to its answer.",
            ["path"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.batches = Histogram(
            "recsys_batch_size",
            "Requests that were answered together.",
            ["question"],
            buckets=_SIZES,
            registry=self.registry,
        )
        self.model_seconds = Histogram(
            "recsys_model_seconds",
            "Time of the model for one batch.",
            ["question"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.waits = Histogram(
            "recsys_queue_seconds",
            "Wait of the oldest request of a batch.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.waiting = Gauge(
            "recsys_queue_length",
            "Requests that wait for the model.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.reloads = Counter(
            "recsys_reloads_total",
            "Attempts to load a new bundle.",
            ["result"],
            registry=self.registry,
        )
        self.known = Counter(
            "recsys_state_cache_histories_total",
            "Histories by whether their encoded state was kept (hit) or had to be made (miss).",
            ["result"],
            registry=self.registry,
        )
        self.kept = Gauge(
            "recsys_state_cache_bytes",
            "Size of the kept states.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.model = Gauge(
            "recsys_model_info",
            "1 for the model that answers.",
            ["name", "dataset", "weights", "recsys"],
            registry=self.registry,
            multiprocess_mode="livemax",
        )
        self._served: tuple[str, ...] | None = None

    def observe(self, batch: Batch) -> None:
        """Take in a batch; of any thread."""
        question = str(batch.key[0]) if isinstance(batch.key, tuple) else str(batch.key)
        self.batches.labels(question).observe(batch.size)
        self.model_seconds.labels(question).observe(batch.seconds)
        self.waits.observe(batch.waited)

    def looked_up(self, states: StateCache) -> None:
        """Take in the use of a cache since the last time; of the thread that uses it."""
        self.known.labels("hit").inc(states.hits)
        self.known.labels("miss").inc(states.misses)
        states.hits = states.misses = 0
        self.kept.set(states.bytes)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Take in an answered request."""
        self.requests.labels(path, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def serves(self, bundle: ModelBundle) -> None:
        """Take in the model that answers from now on."""
        manifest = bundle.manifest
        name, dataset = bundle.experiment.name, manifest.dataset_fingerprint
        if self._served is not None:
            self.model.labels(*self._served).set(0)
        self._served = (name, dataset, manifest.digest, manifest.recsys)
        self.model.labels(*self._served).set(1)

    def page(self) -> bytes:
        """Return all metrics in the text format of Prometheus; with workers, those of all."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
