"""The memory of an automatic run: a run that is killed and started again resumes where it was.

Beside the results, ``.NAME.race`` has ``state.json`` with the finished steps, and the checkpoints
of each racer.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from recsys.automatic.clock import Speed
from recsys.baselines.tuned import BASELINES
from recsys.errors import first_line
from recsys.experiments.baselines import Tuned
from recsys.folders.atomic import new_file
from recsys.folders.digests import tree_sha256
from recsys.reports.run_page import RacePoint
from recsys.training.checkpoints import Checkpoint, CheckpointError, CheckpointFile, TrainingState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MeasuredBaseline:
    """A baseline with the settings that validation chose."""

    name: str
    settings: str
    """Those of its grid that Python prints so."""
    seconds: float
    """What choosing them took."""
    ndcg_at_10: float
    """On the validation targets."""
    trial_seconds: float
    """Of fitting it once, and ranking the validation targets."""

    @property
    def tuned(self) -> Tuned:
        """The settings themselves."""
        baseline = BASELINES[self.name]
        grid = (*baseline.grid, *baseline.published.values())
        return Tuned(next(known for known in grid if repr(known) == self.settings), self.seconds)


@dataclass(eq=False)
class Entry:
    """What is remembered of a racer beside its checkpoints, and shown on the page."""

    name: str
    description: str
    points: list[RacePoint] = field(default_factory=list)
    """Its validations."""
    seconds: float = 0.0
    """Of its training."""
    validating: float = 0.0
    """Those of them in which it was validated."""
    rung: int | None = None
    """The rung after which it was dropped, 0 if it was not raced; None if it is in the race."""
    failure: str = ""
    """Why its training cannot go on: it diverged, or does not fit into the memory."""
    outcome: str = ""
    """What became of it, once the training has ended."""
    chosen: bool = False
    """Whether it is the answer, or a member of it."""

    @property
    def quality(self) -> float:
        """Best validation NDCG@10 so far; -1 before the first."""
        return max((point.ndcg for point in self.points), default=-1.0)


@dataclass
class State:
    """The finished steps of a run."""

    folder: Path
    facts: str
    """The digest of all that decides the race: a state of other facts is not resumed."""
    seconds: float = 0.0
    """Spent until the last save."""
    race_began: float | None = None
    speed: Speed | None = None
    baselines: list[MeasuredBaseline] = field(default_factory=list)
    """Best first."""
    racers: list[Entry] = field(default_factory=list)

    @classmethod
    def open(cls, out: Path, facts: Mapping[str, Any], *, fresh: bool) -> State:
        """Return the state of the interrupted run whose results would be in a folder, or a new one.

        One of other facts, or a damaged one, is deleted.
        """
        new = cls(out.with_name(f".{out.name}.race"), tree_sha256(facts))
        try:
            tree = json.loads((new.folder / "state.json").read_text(encoding="utf-8"))
            if tree.pop("digest") != tree_sha256(tree):
                raise ValueError("damaged")
            state = _ADAPTER.validate_python(tree | {"folder": new.folder})
            if state.facts == new.facts and not fresh:
                return state
            logger.info("%s: of a run with other data or settings: it starts anew", new.folder)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            logger.warning("%s: damaged: the race starts anew", new.folder)
        new.remove()
        return new

    def add(self, *racers: Entry) -> None:
        """Put racers in the place of what an interrupted run has left of them."""
        names = {racer.name for racer in racers}
        self.racers = [*(entry for entry in self.racers if entry.name not in names), *racers]

    def write(self, spent: float) -> None:
        """Write what has ended, and the seconds of the whole run so far."""
        self.seconds = spent
        self.folder.mkdir(parents=True, exist_ok=True)
        tree = _ADAPTER.dump_python(self, mode="json", exclude={"folder"})
        tree["digest"] = tree_sha256(tree)
        with new_file(self.folder / "state.json") as file:
            file.write_text(json.dumps(tree), encoding="utf-8")

    def save(self, name: str, training: TrainingState) -> None:
        """Write a checkpoint."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file(name).write(Checkpoint("", 0.0, training))

    def read(self, name: str) -> TrainingState | None:
        """Return what `save` wrote; None if there is none, or it is damaged."""
        try:
            checkpoint = self._file(name).read()
        except CheckpointError as error:
            logger.warning("%s", first_line(error))
            return None
        return None if checkpoint is None else checkpoint.state

    def _file(self, name: str) -> CheckpointFile:
        return CheckpointFile(self.folder / name, {"facts": self.facts, "name": name})

    def remove(self) -> None:
        """Delete the folder, if there is one."""
        shutil.rmtree(self.folder, ignore_errors=True)


_ADAPTER = TypeAdapter(State)
