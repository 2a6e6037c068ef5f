"""The state of a training, saved from time to time as one file, from which it resumes.

Lightning collects the state and restores it: weights, moments, the learning rate, the progress of
its loops and the batches. The file is safetensors with JSON in its header, never a pickle.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning.plugins.io import CheckpointIO
from pytorch_lightning.utilities.exceptions import SIGTERMException
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from recsys.errors import InputError
from recsys.folders.atomic import new_file
from recsys.folders.digests import BLANK, check_seal, seal
from recsys.training.epochs import Curve, EpochRecorder

_HEADER, _SEAL, _TENSOR = "recsys.state", "recsys.seal", "recsys.tensor"


@dataclass(frozen=True)
class TrainingState:
    """A training between two steps; one that resumes from it has the same result."""

    checkpoint: Mapping[str, Any]
    """What Lightning restores: nested dictionaries and lists of tensors and plain values."""
    curve: Curve = field(default_factory=Curve)

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
        return TrainingState(checkpoint, replace(self.curve, epochs=epochs, interrupted=False))


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


class SaveState(pl.Callback):
    """Saves the state of the training from time to time, after each epoch, and at a SIGTERM.

    The recorder precedes this callback; ``interval`` is in seconds.
    """

    def __init__(self, recorder: EpochRecorder, interval: float) -> None:
        self._recorder, self._interval = recorder, interval
        self._last = time.monotonic()

    def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
        due = time.monotonic() - self._last >= self._interval
        if not trainer.is_last_batch and trainer.strategy.broadcast(due):
            self._save(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: object) -> None:
        self._save(trainer)

    def on_exception(self, trainer: pl.Trainer, _: object, exception: BaseException) -> None:
        # Several processes may handle a SIGTERM at different steps, and would wait for each other.
        if isinstance(exception, SIGTERMException) and trainer.world_size == 1:
            self._save(trainer)

    def _save(self, trainer: pl.Trainer) -> None:
        self._recorder.check_finite()
        trainer.save_checkpoint("state")
        self._last = time.monotonic()


class CheckpointError(InputError):
    """A checkpoint cannot be written or read, or belongs to another run; it is never deleted."""


@dataclass(frozen=True)
class Checkpoint:
    """A run between two steps of its training, or of its refit."""

    run_id: str
    seconds: float
    """Those of the run so far, without what interruptions lost."""
    state: TrainingState
    chosen: Curve | None = None
    """Curve of the first training if the refit is under way, else None."""


@dataclass(frozen=True)
class CheckpointFile:
    """The checkpoint file of a run."""

    path: Path
    facts: Mapping[str, Any]
    """All that decides the result of the run, by dotted name; values are JSON."""

    def write(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint atomically, or raise a `CheckpointError`; it holds its SHA-256."""
        chosen, tensors = checkpoint.chosen, dict[str, Tensor]()

        def name_of(tensor: Tensor) -> dict[str, str]:
            tensors[name := str(len(tensors))] = tensor.detach().contiguous()
            return {_TENSOR: name}

        tree = {
            "run_id": checkpoint.run_id,
            "seconds": checkpoint.seconds,
            "state": checkpoint.state.checkpoint,
            "curve": vars(checkpoint.state.curve),
            "chosen": None if chosen is None else vars(chosen),
        }
        header = json.dumps({"facts": self.facts, **apply_to_collection(tree, Tensor, name_of)})
        try:
            with new_file(self.path) as part:
                save_file(tensors, part, metadata={_HEADER: header, _SEAL: BLANK})
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
        saved = tree["facts"]
        for name in sorted(saved.keys() | current.keys()):
            if saved.get(name) != current.get(name):
                raise CheckpointError(
                    f"{self.path}: belongs to an interrupted run with {name}={saved.get(name)}, "
                    f"not {current.get(name)}: resume that run, or delete the file to start over"
                )
        state = TrainingState(tree["state"], Curve(**tree["curve"]))
        chosen = None if tree["chosen"] is None else Curve(**tree["chosen"])
        return Checkpoint(tree["run_id"], tree["seconds"], state, chosen)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
