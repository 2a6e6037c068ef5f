"""The file that an interrupted run goes on from: one safetensors file, JSON in its header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from recsys.errors import InputError
from recsys.evaluation.tables.rank import RankProtocol, RankTable
from recsys.training.state import Curve, EarlyDecay, EpochSoFar, TrainingState

_HEADER = "recsys.checkpoint"


class CheckpointError(InputError):
    """A checkpoint that cannot be written or read, or is of another run: hours may be in it."""


@dataclass(frozen=True)
class Checkpoint:
    """A run between two steps of its training, or of its refit."""

    run_id: str
    """Of the MLflow run."""
    seconds: float
    """Since the run began, less those that interruptions have lost."""
    state: TrainingState
    """Of the training that is under way."""
    chosen: Curve | None = None
    """The first training's, where the refit is under way."""


@dataclass(frozen=True)
class CheckpointFile:
    """Where a run keeps its checkpoint."""

    path: Path
    facts: Mapping[str, Any]
    """All that decides the result of the run, by dotted names; what JSON knows."""

    def write(self, checkpoint: Checkpoint) -> None:
        """Put a checkpoint in place of the one before, whole or not at all.

        Raises:
            CheckpointError: the file cannot be written.
        """
        state = checkpoint.state
        header: dict[str, Any] = {
            "facts": self.facts,
            "run_id": checkpoint.run_id,
            "seconds": checkpoint.seconds,
            "step": state.step,
            "epoch": asdict(state.epoch),
        }
        tensors = {"random": state.random}
        tensors |= _prefixed("weights", state.weights) | _prefixed("moments", state.moments)
        for name, curve in (("curve", state.curve), ("chosen", checkpoint.chosen)):
            header[name], parts = _dismantle(curve)
            tensors |= _prefixed(name, parts)
        # Always the same name: what a killed process leaves behind, the next one overwrites.
        part = self.path.with_name(f".{self.path.name}.part")
        try:
            save_file(tensors, part, metadata={_HEADER: json.dumps(header)})
            part.replace(self.path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self.path}: cannot be written: {error}") from error

    def read(self) -> Checkpoint | None:
        """The checkpoint of a run that was interrupted; None if there is none.

        Raises:
            CheckpointError: the file cannot be read, or other facts decided that run.
        """
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                header = json.loads((file.metadata() or {})[_HEADER])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, KeyError) as error:
            raise CheckpointError(
                f"{self.path}: cannot be read as a checkpoint: delete it to start anew ({error})"
            ) from error
        self._compare(header["facts"])
        state = TrainingState(
            _without("weights/", tensors),
            _without("moments/", tensors),
            tensors["random"],
            header["step"],
            EpochSoFar(**header["epoch"]),
            _assemble(header["curve"], _without("curve/", tensors)),
        )
        chosen = None
        if header["chosen"] is not None:
            chosen = _assemble(header["chosen"], _without("chosen/", tensors))
        return Checkpoint(header["run_id"], header["seconds"], state, chosen)

    def remove(self) -> None:
        """The run is complete: nothing is left to go on with."""
        self.path.unlink(missing_ok=True)

    def _compare(self, there: Mapping[str, Any]) -> None:
        here = json.loads(json.dumps(self.facts))
        for name in sorted(there.keys() | here.keys()):
            if there.get(name) != here.get(name):
                raise CheckpointError(
                    f"{self.path}: is of an interrupted run with {name}={there.get(name)}, not "
                    f"{here.get(name)}: run that to go on with it, or delete it to start anew"
                )


def _dismantle(curve: Curve | None) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """What of a curve goes into the header, and its tensors."""
    if curve is None:
        return None, {}
    tree: dict[str, Any] = {
        "epochs": curve.epochs,
        "early_decay": curve.early_decay,
        "best_epoch": curve.best_epoch,
        "protocol": None,
    }
    tensors = _prefixed("best", curve.best_weights)
    if curve.best_ranks is not None:
        tree["protocol"] = asdict(curve.best_ranks.protocol)
        columns = curve.best_ranks.frame.get_columns()
        tensors |= {f"ranks/{column.name}": column.to_torch() for column in columns}
    return tree, tensors


def _assemble(tree: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Curve:
    """What `_dismantle` took apart."""
    ranks = None
    if tree["protocol"] is not None:
        columns = {name: part.numpy() for name, part in _without("ranks/", tensors).items()}
        order = ["user", "target", "rank", "history_length"]
        frame = pl.DataFrame({name: columns[name] for name in order})
        ranks = RankTable(frame, RankProtocol(**tree["protocol"]))
    early = tree.get("early_decay")  # checkpoints of before there was one
    fall = None if early is None else EarlyDecay(*early)
    return Curve(tree["epochs"], fall, tree["best_epoch"], _without("best/", tensors), ranks)


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": value.detach() for name, value in tensors.items()}


def _without(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
