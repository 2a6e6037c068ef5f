"""The state of a training, saved from time to time as one file, from which it resumes.

Lightning collects the state and restores it: weights, moments, the learning rate, the progress of
its loops and the batches. The file is safetensors with JSON in its header, never a pickle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning.plugins.io import CheckpointIO
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from recsys.errors import InputError
from recsys.folders import BLANK, check_seal, new_file, seal
from recsys.training.epochs import Curve

_HEADER, _SEAL, _TENSOR = "recsys.training", "recsys.seal", "recsys.tensor"


@dataclass(frozen=True)
class TrainingState:
    """A training, or a refit, between two steps; one that resumes from it has the same result."""

    checkpoint: Mapping[str, Any]
    """What Lightning restores: nested dictionaries and lists of tensors and plain values."""
    curve: Curve = field(default_factory=Curve)
    chosen: Curve | None = None
    """Curve of the first training if the refit is under way, else None."""
    run_id: str = ""
    seconds: float = 0.0
    """Those of the run so far, without what interruptions lost."""

    @property
    def epoch_has_ended(self) -> bool:
        """Whether no epoch is under way."""
        epochs = self.checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]
        return bool(epochs["processed"] == epochs["ready"])

    def copy(self) -> TrainingState:
        """Copy to the CPU what a training that goes on changes; it replaces its best weights."""
        on_cpu = partial(Tensor.to, device="cpu", copy=True)
        checkpoint = apply_to_collection(dict(self.checkpoint), Tensor, on_cpu)
        epochs = [dict(epoch) for epoch in self.curve.epochs]
        curve = replace(self.curve, epochs=epochs, interrupted=False)
        return replace(self, checkpoint=checkpoint, curve=curve)


class StateIO(CheckpointIO):
    """Gives Lightning the state to resume from; ``save`` gets those whose tensors will change."""

    def __init__(
        self,
        curve: Curve,
        start: TrainingState | None,
        save: Callable[[TrainingState], None] | None,
    ) -> None:
        self._curve, self._start, self._save = curve, start, save

    def save_checkpoint(self, checkpoint: dict[str, Any], *_: object, **__: object) -> None:
        if self._save is not None:
            self._save(TrainingState(checkpoint, self._curve))

    def load_checkpoint(self, *_: object, **__: object) -> dict[str, Any]:
        return {} if self._start is None else dict(self._start.checkpoint)

    def remove_checkpoint(self, path: object) -> None:
        pass  # a new state replaces the one before


class CheckpointError(InputError):
    """A checkpoint cannot be written or read, or belongs to another run; it is never deleted."""


@dataclass(frozen=True)
class CheckpointFile:
    """The checkpoint file of a run."""

    path: Path
    facts: Mapping[str, Any]
    """All that decides the result of the run, by dotted name; values are JSON."""

    def write(self, state: TrainingState) -> None:
        """Replace the checkpoint atomically, or raise a `CheckpointError`; it holds its SHA-256."""
        tensors = dict[str, Tensor]()

        def name_of(tensor: Tensor) -> dict[str, str]:
            tensors[name := str(len(tensors))] = tensor.detach().contiguous()
            return {_TENSOR: name}

        curves = {"curve": vars(state.curve), "chosen": state.chosen and vars(state.chosen)}
        tree = vars(state) | curves
        header = json.dumps({"facts": self.facts, **apply_to_collection(tree, Tensor, name_of)})
        try:
            with new_file(self.path) as part:
                save_file(tensors, part, metadata={_HEADER: header, _SEAL: BLANK})
                seal(part)
        except InputError as error:
            raise CheckpointError(str(error)) from error

    def read(self) -> TrainingState | None:
        """Return the state of an interrupted run, or None if there is none.

        Raises:
            CheckpointError: the file cannot be read, or belongs to a run with other facts.
        """
        if not self.path.exists():
            return None
        try:
            check_seal(self.path)
            with safe_open(self.path, framework="pt") as file:
                header = (file.metadata() or {})[_HEADER]
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"{self.path}: cannot be read as a checkpoint: delete it to start over ({error})"
            ) from error

        def restored(known: dict[str, Any]) -> Any:  # JSON makes texts of numbers that are keys
            if _TENSOR in known:
                return tensors[known[_TENSOR]]
            return {int(key) if key.isdecimal() else key: value for key, value in known.items()}

        written = header, json.dumps(self.facts)
        tree, current = (json.loads(text, object_hook=restored) for text in written)
        saved = tree.pop("facts")
        for name in sorted(saved.keys() | current.keys()):
            if saved.get(name) != current.get(name):
                raise CheckpointError(
                    f"{self.path}: belongs to an interrupted run with {name}={saved.get(name)}, "
                    f"not {current.get(name)}: resume that run, or delete the file to start over"
                )
        curves = {name: tree[name] and Curve(**tree[name]) for name in ("curve", "chosen")}
        return TrainingState(**tree | curves)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
