"""One of two processes that torchrun starts; see `test_several_processes.py`.

Its argument is a file, into which the first process writes what it found.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from recsys.config import Experiment, parse_experiment
from recsys.data.batches import SequenceBatch, TrainingBatches
from recsys.data.histories import Histories
from recsys.inference.catalogue import Catalogue
from recsys.training import processes
from recsys.training.checkpoints import Checkpoint, CheckpointFile, TrainingState
from recsys.training.loop import new_module, train
from recsys.training.module import Schedule, TrainingModule

ITEMS = 38
HEADS: dict[str, dict[str, Any]] = {
    "dot_product": {"kind": "dot_product"},
    "target_attention": {"kind": "target_attention", "head_dim": 4},
}
LOSSES = {
    "all items": {"kind": "cross_entropy"},
    "all items, each drawn once": {"kind": "sampled_softmax", "num_negatives": ITEMS},
    "some items": {"kind": "sampled_softmax", "num_negatives": 5},
}
ROWS = [
    [[1, 2, 3, 4, 5, 6, 7, 37, 38], [20, 21, 22, 20, 1], [30, 2, 19, 18]],
    [[9, 38, 20], [5, 4]],
]
"""The histories of the two processes: other numbers of them, and other lengths."""


def experiment_of(head: str, loss: str) -> Experiment:
    model = {
        "embedding_dim": 8,
        "num_heads": 2,
        "feed_forward_dim": 8,
        "max_sequence_length": 10,
        "dropout": 0.0,
        "head": HEADS[head],
    }
    training = {
        "max_epochs": 3,
        "batch_tokens": 40,
        "checkpoint_minutes": 0,
        "precision": "float32",
        "loss": LOSSES[loss],
    }
    return parse_experiment(
        {"model": model, "training": training, "evaluation": {"seen": "filter"}}
    )


def batch_of(rows: list[list[int]], *, targets: bool) -> SequenceBatch:
    (batch,) = TrainingBatches(Histories.from_lists(rows), 10, 1000, seed=0)
    kept = batch.targets if targets else torch.zeros_like(batch.targets)
    return SequenceBatch(batch.items, batch.lengths, kept)


def module_of(experiment: Experiment) -> TrainingModule:
    torch.manual_seed(3)
    histories = Histories.from_lists([row for rows in ROWS for row in rows])
    schedule = Schedule.plan(experiment.training, 1, 1)
    module = new_module(experiment, Catalogue(ITEMS), histories, schedule)
    with torch.no_grad():  # target attention starts at zero, where half of its gradients are too
        for name, weight in module.model.named_parameters():
            if name.startswith("head."):
                weight.add_(0.1 * torch.randn(weight.shape))
    module.log = lambda *_, **__: None  # type: ignore[method-assign]
    return module


def step_differences(head: str, loss: str, *, targets: bool) -> dict[str, float]:
    """Return how far the loss and the gradients of two processes are from those of one."""
    experiment = experiment_of(head, loss)
    batches = [batch_of(ROWS[0], targets=True), batch_of(ROWS[1], targets=targets)]
    counts = [int((batch.targets > 0).sum()) for batch in batches]
    single = module_of(experiment)
    total = torch.zeros(())
    for batch, count in zip(batches, counts, strict=True):
        history, seen = single.teacher_forced(batch)
        total = total + single.loss(history, batch.targets, seen) * count / sum(counts)
    total.backward()

    module = module_of(experiment)
    module.training_step(batches[processes.index()], 0).backward()
    module.on_after_backward()
    sums = processes.all_reduce_sum(module.sums)
    differences = {"loss": abs(float(sums[0] / sums[1]) - total.item()), "gradient": 0.0}
    for weight, other in zip(module.model.parameters(), single.model.parameters(), strict=True):
        assert weight.grad is not None
        assert other.grad is not None
        gradient = weight.grad
        if gradient.is_sparse:  # averaged already
            gradient = gradient.to_dense()
        else:  # what DistributedDataParallel does
            gradient = processes.all_reduce_sum(gradient) / 2
        difference = float((gradient - other.grad.to_dense()).abs().max())
        differences["gradient"] = max(differences["gradient"], difference)
    return differences


def training(head: str, loss: str, folder: Path) -> dict[str, float]:
    """Train, and train again from a state in the midst of the second epoch."""
    experiment = experiment_of(head, loss)
    histories = Histories.from_lists(
        [[1 + (i * 7 + j) % ITEMS for j in range(9)] for i in range(9)]
    )
    file = CheckpointFile(folder / f"{head}.checkpoint", {})

    def run(start: TrainingState | None, save: Any) -> dict[str, Tensor]:
        catalogue, report = Catalogue(ITEMS), lambda *_: None
        model, _ = train(experiment, catalogue, histories, None, 3, report, start=start, save=save)
        return dict(model.state_dict())

    def save(state: TrainingState) -> None:
        if len(state.curve.epochs) == 1 and not state.epoch_has_ended and not file.path.exists():
            file.write(Checkpoint("run", 0.0, state))

    with patch.object(DistributedDataParallel, "_sync_buffers") as send_buffers:
        weights = run(None, save)
    halfway = file.read()
    assert halfway is not None
    resumed = run(halfway.state, lambda _: None)
    difference = max(float((weights[name] - resumed[name]).abs().max()) for name in weights)
    return {"buffers_sent": send_buffers.call_count, "resumed": difference}


def leaving() -> dict[str, int]:
    """Return what the processes count when each is alone, and when they have joined again."""
    index = processes.index()
    processes.leave()
    processes.leave()  # there is nothing to leave
    counts = {"alone": processes.count(), "first": int(processes.is_first())}
    processes.join()
    indices = processes.all_reduce_sum(torch.tensor([index + 1]))
    return counts | {"again": processes.count(), "sum": int(indices)}


def main(out: Path) -> None:
    processes.join()
    found = {
        "steps": {
            f"{head}, {loss}, targets {targets}": step_differences(head, loss, targets=targets)
            for head in HEADS
            for loss in ("all items", "all items, each drawn once")  # chance has no part in these
            for targets in (True, False)
        },
        "trainings": [
            training("dot_product", "some items", out.parent),
            training("target_attention", "all items", out.parent),
        ],
        "left": leaving(),
    }
    if processes.is_first():
        out.write_text(json.dumps(found))
    processes.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
