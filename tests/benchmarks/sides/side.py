"""What all sides of a benchmark share: the problem, the settings, the stopwatch, the answer.

A side is a library in an environment of its own, which has numpy but need not have `recsys`:

    python rectools_side.py TASK FOLDER

FOLDER holds problem.npz and settings.json. Answers are lines of JSON on the standard output.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

K = 10
"""Items in a list of recommendations."""
GIB = 1 << 30


@dataclass(frozen=True)
class Problem:
    """Histories of U users, oldest item first, and what each of them chose next."""

    items: NDArray[np.int32]
    """Item tokens 1 to I, the histories end to end [N]."""
    offsets: NDArray[np.int64]
    """Where each history starts and the last one ends [U + 1]."""
    targets: NDArray[np.int32]
    """[U]; 0 for a user who is trained on alone."""
    num_items: int
    """I."""

    @property
    def users(self) -> NDArray[np.int64]:
        """Whose each of the items is, 0 to U - 1 [N]."""
        return np.repeat(np.arange(len(self.targets)), np.diff(self.offsets))

    def first(self, users: int) -> Problem:
        """The same of the first so many users, or of all if there are fewer."""
        offsets = self.offsets[: users + 1]
        return Problem(self.items[: offsets[-1]], offsets, self.targets[:users], self.num_items)

    def save(self, folder: Path) -> None:
        """Write problem.npz."""
        np.savez(folder / "problem.npz", allow_pickle=False, **asdict(self))

    @classmethod
    def load(cls, folder: Path) -> Problem:
        """Read problem.npz."""
        with np.load(folder / "problem.npz", allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("items", "offsets", "targets")}
            return cls(**arrays, num_items=int(file["num_items"]))


@dataclass(frozen=True)
class Settings:
    """What is asked of every side alike."""

    embedding_dim: int
    num_heads: int
    max_sequence_length: int
    dropout: float
    num_blocks: int = 2
    learning_rate: float = 1e-3
    batch_size: int = 128
    """Sequences; ours is batch_tokens of the config."""
    precision: str = ""
    """As Lightning names it; empty: what the library does by default."""
    config: str = ""
    """The experiment that ours takes everything from."""
    overrides: tuple[str, ...] = ()
    """Settings of that experiment, changed."""
    warm_up: float = 10
    """Seconds of training before the stopwatch starts, at least two batches."""
    seconds: float = 30
    """Of training with the stopwatch."""
    seen: str = "filter"
    """Whether items of the history are left out of the lists of a training (filter or allow)."""
    users: int = 0
    """Who recommendations are asked for: the first so many; 0: all."""
    candidates: int = 0
    """Items that are scored for every user: the tokens 1 to so many."""
    negatives: int = 0
    """Of a sampled softmax, in training; 0: the softmax over the catalogue. Ours reads `overrides`,
    RecBole has none."""
    fast: bool = False
    """Of RecTools: the net of `rectools.fast_transformers` in place of `SASRecModel`."""
    memory_gib: float = 16
    """Of address space that a side may take."""

    @property
    def trainer(self) -> dict[str, Any]:
        """What a Lightning trainer is told beside its defaults: no files, no bars."""
        quiet = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
        precision = {"precision": self.precision} if self.precision else {}
        return {"accelerator": "auto", **precision, **dict.fromkeys(quiet, False)}


class TimeUp(Exception):  # noqa: N818  (no error)
    """The stopwatch has run for long enough."""


class Stopwatch:
    """Counts what is trained on, after a warm-up, until the time is up."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._begun: float | None = None
        self._started: float | None = None
        self._cpu = 0.0
        self._seconds = 0.0
        self._tokens = self._batches = 0
        self._losses: list[float] = []
        self._made: dict[str, object] = {}

    def describe(self, model: Any, optimizer: Any, shape: object) -> None:
        """Note what is trained, from the torch objects and the shape of a batch of items."""
        shown = ("lr", "betas", "weight_decay")
        self._made = {
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "dropout": sorted({part.p for part in model.modules() if hasattr(part, "p")}),
            "optimizer": type(optimizer).__name__,
            **{name: optimizer.param_groups[0][name] for name in shown},
            "batch": str(shape),
        }

    def batch(self, tokens: int, loss: float) -> None:
        """A batch is done, which had so many targets.

        Raises:
            TimeUp: it was the last one.
        """
        now = time.perf_counter()
        self._losses.append(loss)
        if self._started is None:
            self._begun = self._begun or now
            if len(self._losses) >= 2 and now - self._begun >= self._settings.warm_up:
                self._started, self._cpu = now, time.process_time()
            return
        self._tokens += tokens
        self._batches += 1
        self._seconds = now - self._started
        if self._seconds >= self._settings.seconds:
            raise TimeUp

    @property
    def tokens_per_second(self) -> float:
        """Tokens with a target, after the warm-up."""
        return self._tokens / self._seconds

    def answer(self) -> dict[str, object]:
        """Speed, memory, the losses of the first and the last tenth of the batches."""
        tenth = -(-len(self._losses) // 10)
        return {
            "tokens_per_second": self.tokens_per_second,
            "seconds_per_batch": self._seconds / self._batches,
            "tokens_per_batch": self._tokens / self._batches,
            "batches": self._batches,
            "cores": (time.process_time() - self._cpu) / self._seconds,
            "peak_mib": peak_mib(),
            "first_loss": float(np.mean(self._losses[:tenth])),
            "last_loss": float(np.mean(self._losses[-tenth:])),
            "made": self._made,
        }


def peak_mib() -> float:
    """The most memory that the process has held, in MiB.

    Not `ru_maxrss`, which a process inherits from the one that started it.
    """
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def emit(answer: Mapping[str, object]) -> None:
    """Print an answer for the process that asked."""
    print(json.dumps(answer), flush=True)


def emit_timed(
    ask: Callable[[Problem], Callable[[], NDArray[np.int64]]], problem: Problem, settings: Settings
) -> None:
    """Time a side that recommends: for a few users, to warm up, then for all that are asked for.

    What `ask` does is not timed, what it returns is.
    """
    ask(problem.first(256))()
    recommend = ask(problem.first(settings.users or len(problem.targets)))
    started = time.perf_counter()
    lists = recommend()
    emit({"seconds": time.perf_counter() - started, "peak_mib": peak_mib(), **save_lists(lists)})


def save_lists(lists: NDArray[np.int64]) -> dict[str, str]:
    """Write lists of item tokens [U, K], best first, 0 for none, and say where."""
    path = Path(sys.argv[2]) / "lists.npy"
    np.save(path, lists, allow_pickle=False)
    return {"lists": str(path)}


def main(*tasks: Callable[[Problem, Settings], None]) -> None:
    """Do the task that the command line names: a function of this name."""
    task, folder = sys.argv[1], Path(sys.argv[2])
    fields = json.loads((folder / "settings.json").read_text())
    settings = Settings(**{**fields, "overrides": tuple(fields["overrides"])})
    import torch  # noqa: PLC0415 - the benchmarks import this module for its settings

    if not torch.cuda.is_available():  # CUDA reserves addresses for all memories
        limit = int(settings.memory_gib * GIB)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        {one.__name__: one for one in tasks}[task](Problem.load(folder), settings)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        emit({"failed": f"out of memory ({settings.memory_gib:g} GiB): {error}"})
