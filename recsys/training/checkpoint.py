"""Checkpoints of interrupted runs: one safetensors file each, with JSON in its header."""

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
from recsys.evaluation.tables import RankProtocol, RankTable
from recsys.folders.atomic import new_file
from recsys.folders.seal import BLANK, DamagedError, check_seal, seal
from recsys.training.state import Curve, EarlyDecay, PartialEpoch, TrainingState

_HEADER, _SEAL = "recsys.checkpoint", "recsys.seal"


class CheckpointError(InputError):
    """A checkpoint cannot be written or read, or belongs to another run.

    It may hold hours of training, so that no command deletes or ignores it.
    """


@dataclass(frozen=True)
class Checkpoint:
    """A run between two steps of its training, or of its refit."""

    run_id: str
    """Id of the MLflow run."""
    seconds: float
    """Seconds of the run so far, without what interruptions lost."""
    state: TrainingState
    """State of the training that is under way."""
    chosen: Curve | None = None
    """Curve of the first training if the refit is under way, else None."""


@dataclass(frozen=True)
class CheckpointFile:
    """The checkpoint file of a run."""

    path: Path
    facts: Mapping[str, Any]
    """All that decides the result of the run, by dotted name; values are JSON."""

    def write(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint atomically; it holds its own SHA-256.

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
        tensors |= _prefixed("average", state.average)
        for name, curve in (("curve", state.curve), ("chosen", checkpoint.chosen)):
            header[name], parts = _dismantle(curve)
            tensors |= _prefixed(name, parts)
        try:
            with new_file(self.path) as part:
                save_file(tensors, part, metadata={_HEADER: json.dumps(header), _SEAL: BLANK})
                seal(part)
        except InputError as error:
            raise CheckpointError(str(error)) from error

    def read(self) -> Checkpoint | None:
        """Return the checkpoint of an interrupted run, or None if there is none.

        Raises:
            CheckpointError: the file cannot be read, or belongs to a run with other facts.
        """
        if not self.path.exists():
            return None
        try:
            if not check_seal(self.path):
                raise KeyError("it has no checksum")
            with safe_open(self.path, framework="pt") as file:
                header = json.loads((file.metadata() or {})[_HEADER])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, DamagedError) as error:
            raise CheckpointError(
                f"{self.path}: cannot be read as a checkpoint: delete it to start over ({error})"
            ) from error
        self._check_facts(header["facts"])
        state = TrainingState(
            _without("weights/", tensors),
            _without("moments/", tensors),
            tensors["random"],
            header["step"],
            PartialEpoch(**header["epoch"]),
            _assemble(header["curve"], _without("curve/", tensors)),
            _without("average/", tensors),
        )
        chosen = None
        if header["chosen"] is not None:
            chosen = _assemble(header["chosen"], _without("chosen/", tensors))
        return Checkpoint(header["run_id"], header["seconds"], state, chosen)

    def remove(self) -> None:
        """Delete the checkpoint of a complete run."""
        self.path.unlink(missing_ok=True)

    def _check_facts(self, saved: Mapping[str, Any]) -> None:
        current = json.loads(json.dumps(self.facts))
        for name in sorted(saved.keys() | current.keys()):
            if saved.get(name) != current.get(name):
                raise CheckpointError(
                    f"{self.path}: belongs to an interrupted run with {name}={saved.get(name)}, "
                    f"not {current.get(name)}: resume that run, or delete the file to start over"
                )


def _dismantle(curve: Curve | None) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """Split a curve into its JSON and its tensors."""
    if curve is None:
        return None, {}
    tree: dict[str, Any] = {
        "epochs": curve.epochs,
        "early_decay": curve.early_decay,
        "best_epoch": curve.best_epoch,
        "precision": curve.precision,
        "start": curve.start,
        "protocol": None,
    }
    tensors = _prefixed("best", curve.best_weights)
    if curve.best_ranks is not None:
        tree["protocol"] = asdict(curve.best_ranks.protocol)
        columns = curve.best_ranks.frame.get_columns()
        tensors |= {f"ranks/{column.name}": column.to_torch() for column in columns}
    return tree, tensors


def _assemble(tree: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Curve:
    """Rebuild a curve that `_dismantle` split."""
    ranks = None
    if tree["protocol"] is not None:
        columns = {name: part.numpy() for name, part in _without("ranks/", tensors).items()}
        order = ["user", "target", "rank", "history_length"]
        frame = pl.DataFrame({name: columns[name] for name in order})
        ranks = RankTable(frame, RankProtocol(**tree["protocol"]))
    early = None if tree["early_decay"] is None else EarlyDecay(*tree["early_decay"])
    best = _without("best/", tensors)
    precision = tree.get("precision")  # checkpoints of earlier versions have none
    curve = Curve(tree["epochs"], early, tree["best_epoch"], best, ranks, precision)
    curve.start = tree.get("start", {})  # older checkpoints have none
    return curve


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": value.detach() for name, value in tensors.items()}


def _without(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
