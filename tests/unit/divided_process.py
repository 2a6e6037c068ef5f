"""One of two processes that torchrun starts: a divided catalogue beside an undivided one.

Its argument is a folder, into which the first process writes what it found.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from recsys.config import Experiment, parse_experiment
from recsys.data.batches import TrainingBatches
from recsys.data.histories import Histories
from recsys.data.holdout import Holdout
from recsys.data.sequence_batch import SequenceBatch
from recsys.evaluation.tables import evaluate
from recsys.inference.catalogue import Catalogue
from recsys.inference.model_scorer import ModelScorer
from recsys.model.division import Division
from recsys.model.protocols import Model
from recsys.training import processes
from recsys.training.checkpoint import Checkpoint, CheckpointFile
from recsys.training.loop import new_module, train
from recsys.training.module import TrainingModule
from recsys.training.schedule import Schedule
from recsys.training.state import TrainingState

ITEMS = 38
HEADS: dict[str, dict[str, Any]] = {
    "dot_product": {"kind": "dot_product"},
    "target_attention": {"kind": "target_attention", "head_dim": 4},
    "target_attention of states": {
        "kind": "target_attention",
        "head_dim": 4,
        "kv_source": "both",
        "pooling": "sum",
    },
}
SAMPLED = "training.loss={{kind: sampled_softmax, num_negatives: {}}}"
ALL_ITEMS, SOME_ITEMS = SAMPLED.format(ITEMS), SAMPLED.format(5)
"""All items are drawn once each: a loss that chance has no part in. Some are drawn in each process
for itself."""
ROWS = [
    [[1, 2, 3, 4, 5, 6, 7, 37, 38], [20, 21, 22, 20, 1], [30, 2, 19, 18]],
    [[9, 38, 20], [5, 4]],
]
"""The histories of the two processes: other numbers of them, and other lengths."""


def make_experiment(head: str, *overrides: str) -> Experiment:
    tree = {
        "model": {
            "embedding_dim": 8,
            "num_heads": 2,
            "feed_forward_dim": 8,
            "max_sequence_length": 10,
            "dropout": 0.0,
            "head": HEADS[head],
        },
        "training": {
            "max_epochs": 3,
            "learning_rate": 5e-3,
            "batch_tokens": 100,
            "precision": "float32",
            "divide_catalogue": True,
        },
        "evaluation": {"seen": "filter"},
    }
    return parse_experiment(tree, overrides)


def batch_of(rows: list[list[int]], *, targets: bool = True) -> SequenceBatch:
    (batch,) = TrainingBatches(Histories.from_lists(rows), 10, 1000, seed=0)
    kept = batch.targets if targets else torch.zeros_like(batch.targets)
    return SequenceBatch(batch.items, batch.lengths, kept)


def dense(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient.to_dense() if gradient.is_sparse else gradient


def module_of(experiment: Experiment, division: Division | None) -> TrainingModule:
    torch.manual_seed(3)
    histories = Histories.from_lists([row for rows in ROWS for row in rows])
    schedule = Schedule.plan(experiment.training, 1, 1)
    module = new_module(experiment, Catalogue(ITEMS), histories, schedule, division=division)
    with torch.no_grad():  # target attention starts at zero, where half of its gradients are too
        for name, weight in module.model.named_parameters():
            if name.startswith("head."):
                weight.add_(0.1 * torch.randn(weight.shape))
    return module


def step_differences(
    head: str, *overrides: str, targets: bool = True, divide: bool = True
) -> dict[str, float]:
    """Return how far the loss and each gradient of two processes are from those of one."""
    experiment = make_experiment(head, *overrides)
    mine, batches = processes.index(), [batch_of(ROWS[0]), batch_of(ROWS[1], targets=targets)]
    counts = [int((batch.targets > 0).sum()) for batch in batches]
    undivided = module_of(experiment, None)
    total = torch.zeros(())
    for batch, count in zip(batches, counts, strict=True):
        history, seen = undivided.teacher_forced(batch)
        total = total + undivided.loss(history, batch.targets, seen) * count / sum(counts)
    total.backward()
    expected = {name: dense(weight.grad) for name, weight in undivided.model.named_parameters()}

    division = Division(ITEMS, mine, 2) if divide else None
    module = module_of(experiment, division)
    whole = (lambda part: part) if division is None else division.joined
    start = undivided.model.state_dict()["items.weight"]
    found = {"start": float((whole(module.model.items.weight) - start).abs().max())}
    module.log = lambda *_, **__: None  # type: ignore[method-assign]
    module.training_step(batches[mine], 0).backward()
    module.on_after_backward()
    loss = processes.all_reduce_sum(module.sums)
    found["loss"] = abs(float(loss[0] / loss[1]) - total.item())
    for name, weight in module.model.named_parameters():
        gradient = dense(weight.grad)
        if name == "items.weight":  # with sampled negatives averaged already, else divided
            gradient = whole(gradient)
        else:  # what DistributedDataParallel does
            gradient = processes.all_reduce_sum(gradient) / 2
        difference = float((gradient - expected[name]).abs().max())
        found["gradient"] = max(found.get("gradient", 0.0), difference)
    return found


def walks(users: int) -> tuple[Histories, Holdout]:
    """Histories in which each item decides the next, and their last items."""
    rng = np.random.default_rng(1)
    follower = np.random.default_rng(0).permutation(ITEMS)
    rows = []
    for _ in range(users):
        row = [int(rng.integers(ITEMS))]
        while len(row) < rng.integers(4, 10):
            row.append(int(follower[row[-1]]))
        rows.append([item + 1 for item in row])
    full, before = Histories.from_lists(rows), Histories.from_lists([row[:-1] for row in rows])
    targets = np.array([row[-1] for row in rows], dtype=np.int32)
    each = np.arange(users)
    return before, Holdout(each, targets, full.offsets[1:] - 1, each, before, dropped=0)


def distance(one: Model, other: Model) -> float:
    """Return the largest difference of two weights of the same name."""
    weights, others = one.state_dict(), other.state_dict()
    return max(float((weights[name] - others[name]).abs().max()) for name in weights)


def training(head: str, folder: Path, *overrides: str) -> dict[str, Any]:
    """Train divided and undivided, and resume the divided one from a state in its midst."""
    experiment = make_experiment(head, "training.checkpoint_minutes=0", *overrides)
    undivided = make_experiment(head, "training.divide_catalogue=false", *overrides)
    histories, holdout = walks(60)
    file = CheckpointFile(folder / f"{head}.checkpoint", {})
    bytes_of: dict[str, int] = {}

    def run(
        experiment: Experiment, start: TrainingState | None = None, save: Any = lambda _: None
    ) -> tuple[Any, Any]:
        return train(
            experiment,
            Catalogue(ITEMS),
            histories,
            holdout,
            3,
            lambda *_: None,
            start=start,
            save=save,
        )

    def measured(self: TrainingModule, *args: Any, **kwargs: Any) -> None:
        step(self, *args, **kwargs)
        table = self.model.items.weight
        held = [table, table.grad, *self.trainer.optimizers[0].state[table].values()]
        key = "divided" if self._division is not None else "undivided"
        rows = [part for part in held if part is not None and part.dim() and not part.is_sparse]
        bytes_of[key] = sum(part.nbytes for part in rows)

    def save(state: TrainingState) -> None:
        if len(state.curve.epochs) == 1 and state.epoch.batches == 1:
            file.write(Checkpoint("run", 0.0, state))

    step = TrainingModule.optimizer_step
    with (
        patch.object(TrainingModule, "optimizer_step", measured),
        patch.object(DistributedDataParallel, "_sync_buffers") as send_buffers,
    ):
        model, curve = run(experiment, save=save)
        plain, expected = run(undivided)
    found = {
        "epochs": curve.epochs,
        "expected": expected.epochs,
        "bytes": bytes_of,
        "buffers_sent": send_buffers.call_count,
    }
    for name, settings in (("resumed", experiment), ("resumed undivided", undivided)):
        halfway = file.read()
        assert halfway is not None
        assert halfway.state.epoch.batches > 0
        resumed, again = run(settings, start=halfway.state)
        found[name] = {"epochs": again.epochs}
        if processes.is_first():
            found[name]["weights"] = distance(resumed, model)
    if processes.is_first():
        found["weights"] = distance(model, plain)
        table = evaluate(ModelScorer(model, 10), holdout, "valid", "filter")
        found["alone"] = float(table.values("ndcg_at_10").mean())
        found["best"] = curve.best
    return found


def leaving() -> dict[str, int]:
    """Return what the processes count when each is alone, and when they have joined again."""
    index = processes.index()
    processes.leave()
    processes.leave()  # there is nothing to leave
    found = {"alone": processes.count(), "first": int(processes.is_first())}
    processes.join()
    indices = processes.all_reduce_sum(torch.tensor([index + 1]))
    return found | {"again": processes.count(), "sum": int(indices)}


def main(out: Path) -> None:
    processes.join()
    steps = {}
    for head in HEADS:
        for targets in (True, False):
            case = f"{head}, targets {targets}"
            steps[case] = step_differences(head, targets=targets)
            for divide in (True, False):
                steps[f"{case}, sampled, divided {divide}"] = step_differences(
                    head, ALL_ITEMS, targets=targets, divide=divide
                )
    found = {
        "steps": steps,
        "trainings": {
            "dot_product": training("dot_product", out.parent),
            "target_attention": training("target_attention", out.parent),
            "sampled": training("dot_product", out.parent, SOME_ITEMS),
        },
        "left": leaving(),
    }
    if processes.is_first():
        out.write_text(json.dumps(found))
    processes.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
