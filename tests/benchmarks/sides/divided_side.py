"""One of the processes that torchrun starts: a few steps of training over a divided item table.

Arguments: a folder, the number of items, the embedding's width, the loss, and whether the table is
divided.
Each process writes the memory that it holds after the steps, above what it held before.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from recsys.config import parse_experiment
from recsys.data.batches import TrainingBatches
from recsys.data.histories import Histories
from recsys.inference.catalogue import Catalogue
from recsys.process_memory import keep_freed_memory
from recsys.training import processes
from recsys.training.loop import division_of, new_module
from recsys.training.schedule import Schedule

LENGTH, USERS, STEPS = 20, 16, 3


def resident_mib() -> float:
    """Return the memory that the process holds now."""
    status = Path("/proc/self/status").read_text()
    lines = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(next(lines).split()[1]) / 1024


def main() -> None:
    folder, items, dim = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    kind, divided = sys.argv[4], sys.argv[5] == "divided"
    keep_freed_memory()
    if divided:
        processes.join()
    experiment = parse_experiment(
        {
            "model": {"embedding_dim": dim, "max_sequence_length": LENGTH},
            "training": {
                "divide_catalogue": divided,
                "precision": "float32",
                "loss": {"kind": kind},
            },
        }
    )
    catalogue = Catalogue(items)
    rng = np.random.default_rng(processes.index())
    drawn = rng.integers(1, items + 1, (USERS, LENGTH + 1)).tolist()
    histories = Histories.from_lists(drawn)
    before = resident_mib()
    division = division_of(experiment, catalogue)
    schedule = Schedule.plan(experiment.training, 1, STEPS)
    module = new_module(experiment, catalogue, histories, schedule, division=division)
    configured: Any = module.configure_optimizers()
    optimizer = configured["optimizer"]
    module.log = lambda *_, **__: None  # type: ignore[method-assign]
    batches = TrainingBatches(histories, LENGTH, USERS * LENGTH, seed=0)
    losses = []
    for _ in range(STEPS):
        (batch,) = batches
        loss = module.training_step(batch, 0)
        loss.backward()
        module.on_after_backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)  # the gradients count too
        losses.append(float(loss.detach()))
    found = {"mib": resident_mib() - before, "losses": losses}
    (folder / f"{processes.index()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
