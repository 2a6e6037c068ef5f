"""What a server counts and measures, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.process_collector import ProcessCollector

from recsys.server.model_thread import Batch
from recsys.server.served_model import ServedModel

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
            "recsys_queue_length", "Requests that wait for the model.", registry=self.registry
        )
        self.reloads = Counter(
            "recsys_reloads_total",
            "Attempts to load a new bundle.",
            ["result"],
            registry=self.registry,
        )
        self.model = Info("recsys_model", "The model that answers.", registry=self.registry)

    def observe(self, batch: Batch) -> None:
        """Take in a batch; of any thread."""
        question = str(batch.key[0]) if isinstance(batch.key, tuple) else str(batch.key)
        self.batches.labels(question).observe(batch.size)
        self.model_seconds.labels(question).observe(batch.seconds)
        self.waits.observe(batch.waited)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Take in an answered request."""
        self.requests.labels(path, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def serves(self, model: ServedModel) -> None:
        """Take in the model that answers from now on."""
        manifest = model.bundle.manifest
        self.model.info(
            {
                "name": model.bundle.experiment.name,
                "dataset": manifest.dataset_fingerprint,
                "weights": manifest.digest,
                "recsys": manifest.recsys,
            }
        )

    def page(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
