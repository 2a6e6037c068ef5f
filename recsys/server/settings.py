"""The settings of a server: what it serves, where, and how much it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from recsys.errors import InputError


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a server takes; what exceeds it is refused in one line."""

    history: int = 10_000
    """Items of a history that one request gives (422)."""
    candidates: int = 10_000
    """Candidates, allowed or denied items, or items to return, of one request (422)."""
    body_bytes: int = 1 << 20
    """Size of a request's body (413)."""
    body_seconds: float = 30.0
    """Time until a body has arrived (408)."""
    queue: int = 1024
    """Requests that wait for the model (429)."""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model by its name in a registry; the name may move on to another model."""

    stored_at: str
    """Where the model that the server begins with is stored."""
    find: Callable[[], str]
    """Returns where the model of the moment is stored."""
    folder: Callable[[], Path]
    """Returns its folder, downloaded if it is stored elsewhere."""
    seconds: float = 30.0
    """How often the registry is asked."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What a server serves, and how."""

    bundle: Path
    """The folder of a trained model, or of the run that has it."""
    data: Path | None = None
    """The prepared dataset in which users are looked up by id."""
    gather_ms: float = 4.0
    """How long a batch waits at most for as many requests as the batch before it had."""
    batch: int = 64
    """The largest number of requests that are answered together."""
    retrieve: int | None = None
    """How many items per user target attention ranks (see `Recommender.recommend`); all if None."""
    index: Path | None = None
    """The folder of an index of the items, which finds the best; all items are scored if None."""
    gpu: bool = False
    """Whether the model answers on the GPU."""
    cache_bytes: int = 256 << 20
    """The memory of encoded histories that are kept for requests with the same one; 0 for none."""
    named: NamedModel | None = None
    """The name by which a registry knows the model of the bundle, to follow it; None if none."""
    reload_seconds: float = 2.0
    """How often the folders are looked at, to load them again once they were replaced."""
    api_key: str | None = field(default=None, repr=False)
    """The key that requests must bring; no key if None."""
    limits: Limits = Limits()


def threads_of(threads: int | None, available: int, workers: int = 1) -> int:
    """Return the threads of torch of each worker; by default the workers divide all cores.

    Raises:
        InputError: more threads than cores: they would wait for each other.

    >>> threads_of(None, available=8), threads_of(4, 8), threads_of(None, 8, workers=3)
    (8, 4, 2)
    """
    if not 1 <= workers <= available:
        raise InputError(f"--workers {workers}: must be from 1 to {available}, the cores there are")
    most = available // workers
    if threads is not None and not 1 <= threads <= most:
        raise InputError(f"--threads {threads}: must be from 1 to {most}, the cores of a worker")
    return threads or most
