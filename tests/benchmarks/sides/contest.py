"""Sides take turns at a problem, each in an interpreter of its own.

The environment chooses:

- ``PEERS``: the folder that peers.sh filled (peers); who is not there is left out;
- ``BENCH_SIDES``: names of sides, separated by commas (all);
- ``BENCH_THREADS``: of each side (2); ``BENCH_ROUNDS``: in turn (3);
- ``BENCH_WARM_UP``, ``BENCH_SECONDS``: of a training (10, 30);
- ``BENCH_BUDGET``: seconds after which a side is given up (3,600);
- ``BENCH_USERS``, ``BENCH_ITEMS``, ``BENCH_MEMORY_GIB``: size and limit, for some tests.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from side import Problem, Settings

from recsys.evaluation.metrics import metric_values
from recsys.inference.ranking import NEVER

HERE = Path(__file__).resolve().parent
Answer = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """A library, and how its settings differ from those of the others."""

    name: str
    library: str
    """ours, or the peer whose environment peers.sh made."""
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def python(self) -> Path:
        """Its interpreter."""
        if self.library == "ours":
            return Path(sys.executable)
        return Path(os.environ.get("PEERS", "peers")).absolute() / self.library / "bin" / "python"


def from_environment(name: str, default: float) -> float:
    """BENCH_name, or the default."""
    return float(os.environ.get(f"BENCH_{name}", default))


def chosen(sides: Sequence[Side]) -> list[Side]:
    """Those that can run, and that BENCH_SIDES names (separated by commas) if it is set."""
    wanted = os.environ.get("BENCH_SIDES")
    some = [side for side in sides if wanted is None or side.name in wanted.split(",")]
    for side in some:
        if not side.python.is_file():
            print(f"\n{side.name}: left out, for PEERS has no {side.library} (see peers.sh)")
    return [side for side in some if side.python.is_file()]


@dataclass(frozen=True)
class Contest:
    """A problem for all sides."""

    folder: Path
    problem: Problem
    settings: Settings

    def answers(self, side: Side, task: str) -> Generator[Answer]:
        """What a side answers to a task, as it comes; closing the iterator ends the side.

        After BENCH_BUDGET seconds it is killed, and its last answer says so.
        """
        folder = self.folder / side.name.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        self.problem.save(folder)
        settings = replace(self.settings, **dict(side.changes))
        (folder / "settings.json").write_text(json.dumps(asdict(settings)))
        script = HERE / f"{side.library}_side.py"
        command = [str(part) for part in (side.python, "-W", "ignore", script, task, folder)]
        threads = os.environ.get("BENCH_THREADS", "2")
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        if side.library == "ours":
            environment["THP_MEM_ALLOC_ENABLE"] = "1"  # as our command does before it loads torch
        budget = from_environment("BUDGET", 3600)
        with (
            (folder / "errors.txt").open("w+") as errors,
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=folder,  # RecBole and Lightning leave files where they run
                env=environment,
            ) as process,
        ):
            timer = threading.Timer(budget, process.kill)
            timer.start()
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith("{"):
                        yield json.loads(line)
                if process.wait() == -signal.SIGKILL:
                    yield {"failed": f"killed: not done in {budget:,.0f} s, or out of memory"}
                elif process.returncode:
                    errors.seek(0)
                    raise RuntimeError(f"{side.name}: {errors.read()[-2000:]}")
            finally:
                timer.cancel()
                process.kill()

    def in_turn(self, sides: Sequence[Side], task: str) -> dict[str, list[Answer]]:
        """BENCH_ROUNDS answers of each side, one after another; no more of one that failed."""
        found: dict[str, list[Answer]] = {side.name: [] for side in sides}
        for _ in range(round(from_environment("ROUNDS", 3))):
            for side in sides:
                if not any("failed" in answer for answer in found[side.name]):
                    with closing(self.answers(side, task)) as answers:
                        found[side.name].append(next(answers))
        return found


def medians(answers: Sequence[Answer]) -> dict[str, float]:
    """Of each figure."""
    names = [name for name, value in answers[0].items() if isinstance(value, int | float)]
    return {name: statistics.median(answer[name] for answer in answers) for name in names}


def ndcg_of_lists(lists: NDArray[np.int64], targets: NDArray[np.int32]) -> float:
    """NDCG@10 by our definition of lists of ten items [U, 10]."""
    hits = lists == targets[:, None]
    ranks = np.where(hits.any(axis=1), hits.argmax(axis=1) + 1, NEVER)
    return float(metric_values(ranks, "ndcg_at_10").mean())
