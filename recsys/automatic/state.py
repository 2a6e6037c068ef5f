"""The memory of an automatic run: a run that is killed and started again resumes where it was.

Beside the results, ``.NAME.race`` has ``state.json`` with the finished steps, the states of each
racer's training, and the trained model until it is tested. The page is written from it, too.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from recsys.automatic.clock import Speed
from recsys.baselines.tuned import BASELINES
from recsys.config import Experiment
from recsys.data.prepared import TrainedOn
from recsys.errors import first_line
from recsys.experiments.baselines import Tuned
from recsys.experiments.results import Run
from recsys.folders.atomic import new_file
from recsys.folders.digests import file_sha256, tree_sha256
from recsys.folders.manifest import MANIFEST
from recsys.reports.run_page import Choice, RacePoint
from recsys.tracking.runs import are_finished
from recsys.training.checkpoints import Checkpoint, CheckpointError, CheckpointFile, TrainingState

logger = logging.getLogger(__name__)

_SAVE_SECONDS, _NOTE_SECONDS = 60.0, 10.0
"""Seconds between two saves of a racer, and between two notes of the time spent, at least."""


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
    fit_seconds: float
    rank_seconds: float
    """Of ranking the validation targets."""

    @property
    def tuned(self) -> Tuned:
        """The settings themselves."""
        baseline = BASELINES[self.name]
        grid = (*baseline.grid, *baseline.published.values())
        return Tuned(next(known for known in grid if repr(known) == self.settings), self.seconds)


@dataclass(eq=False)
class Entry:
    """What is remembered of a racer beside its training, and shown on the page."""

    name: str
    description: str
    points: list[RacePoint] = field(default_factory=list)
    """Its validations."""
    rung: int | None = None
    """The rung of the race after which it was dropped, 0 if it was not raced; else None."""
    is_again: bool = False
    """Whether it is the winner's kind with another seed, trained for a mean."""
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


@dataclass(frozen=True, slots=True)
class Trained:
    """The model of a training that has ended; its weights are in the folder until it is tested."""

    name: str
    """Its kind, or those of a mean."""
    experiment: Experiment
    """The settings that repeat it from the beginning."""
    trained_on: TrainedOn
    rising: bool
    """Whether time ended its training, and not a lack of gains."""
    averaging: Choice | None = None
    """What came of a mean with another model; None if it was not to be tried."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The model or the baseline that was chosen, after its test."""

    run: Run
    sentence: str
    """What was chosen, and why."""
    digest: str
    """The SHA-256 of the manifest of the bundle."""
    baseline: str | None = None
    """The name of the baseline, if that is the answer."""
    beaten: str | None = None
    """The id of the run of the model, if a baseline is better."""


@dataclass
class State:
    """The finished steps of a run."""

    folder: Path
    facts: str
    """The digest of all that decides the race: a state of other facts is not resumed."""
    seconds: float = 0.0
    """Spent so far, by the whole run."""
    began: dict[str, float] = field(default_factory=dict)
    """The moments when steps began."""
    speed: Speed | None = None
    sizes: tuple[int, int, int] | None = None
    """The histories of the samples of targets; see `Speed.sample_sizes`."""
    baselines: list[MeasuredBaseline] = field(default_factory=list)
    """Best first."""
    racers: list[Entry] = field(default_factory=list)
    """Best first once the race has ended."""
    trained: Trained | None = None
    answer: Answer | None = None
    stopped: bool = False
    """Whether Ctrl-C ended the training of an answer."""
    tested: dict[str, str] = field(default_factory=dict)
    """The ids of the MLflow runs of the baselines that were tested, by name."""
    choices: list[Choice] = field(default_factory=list)
    """The settings that follow from the log, with their reasons."""
    written: dict[str, float] = field(default_factory=dict, repr=False)
    """When the state, and each racer, was written last by this process."""

    @classmethod
    def open(cls, out: Path, facts: Mapping[str, Any], *, fresh: bool) -> State:
        """Return the state of the interrupted run whose results would be in a folder, or a new one.

        One of other facts is deleted, and so is one whose answer is not there any more.

        Raises:
            InputError: there is an answer, and its store cannot be used.
        """
        new = cls(out.with_name(f".{out.name}.race"), tree_sha256(facts))
        try:
            tree = json.loads((new.folder / "state.json").read_text(encoding="utf-8"))
            if tree.pop("digest") != tree_sha256(tree):
                raise ValueError("damaged")
            state = _ADAPTER.validate_python(tree | {"folder": new.folder})
        except FileNotFoundError:
            state, fresh = new, True
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            logger.warning("%s: damaged: the race starts anew", new.folder)
            state, fresh = new, True
        if not fresh and state.facts != new.facts:
            logger.info("%s: of a run with other data or settings: it starts anew", new.folder)
        elif not fresh and not state.is_there():
            logger.info("%s: its results are not there any more: it starts anew", new.folder)
        elif not fresh:
            return state
        new.remove()
        return new

    def is_there(self) -> bool:
        """Return whether the answer and its runs are where they were written, if there is one."""
        if self.answer is None:
            return True
        try:
            if file_sha256(self.answer.run.bundle / MANIFEST) != self.answer.digest:
                return False  # another command has written its results there
        except OSError:
            return False
        return are_finished([self.answer.run.run_id, *self.other_runs], self.answer.run.tracking)

    @property
    def chosen_answer(self) -> Answer:
        """The answer, which must be there."""
        if self.answer is None:
            raise ValueError("the run has no answer yet")
        return self.answer

    @property
    def other_runs(self) -> list[str]:
        """The runs beside the answer: of the model that it beat, and of baselines, best first."""
        beaten = [self.answer.beaten] if self.answer and self.answer.beaten else []
        return beaten + [self.tested[b.name] for b in self.baselines if b.name in self.tested]

    def add(self, *racers: Entry) -> None:
        """Put racers in the place of what an interrupted run has left of them."""
        names = {racer.name for racer in racers}
        self.racers = [*(entry for entry in self.racers if entry.name not in names), *racers]

    def begin(self, step: str, spent: float) -> float:
        """Return the moment when a step began: now, unless an interrupted run has begun it."""
        return self.began.setdefault(step, spent)

    def write(self, spent: float) -> None:
        """Write what has ended, and the seconds of the whole run so far."""
        self.seconds, self.written[""] = spent, time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        tree = _ADAPTER.dump_python(self, mode="json", exclude={"folder", "written"})
        tree["digest"] = tree_sha256(tree)
        with new_file(self.folder / "state.json") as file:
            file.write_text(json.dumps(tree), encoding="utf-8")

    def note(self, spent: float) -> None:
        """Write the time spent, if it was written long ago."""
        if self.folder.exists() and self._is_due("", _NOTE_SECONDS):
            self.write(spent)

    def save(self, name: str, latest: TrainingState, best: TrainingState, spent: float) -> None:
        """Save the latest and the best state of a racer, if it was saved long ago."""
        if self._is_due(name, _SAVE_SECONDS):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.file(f"{name}.latest").write(Checkpoint("", 0.0, latest))
            self.file(f"{name}.best").write(Checkpoint("", 0.0, best))
            self.written[name] = time.monotonic()
            self.write(spent)

    def _is_due(self, name: str, interval: float) -> bool:
        return time.monotonic() - self.written.get(name, -interval) >= interval

    def read(self, name: str) -> tuple[TrainingState | None, TrainingState | None]:
        """Return the latest and the best state of a racer; two times None without both."""
        try:
            latest, best = (self.file(f"{name}.{which}").read() for which in ("latest", "best"))
        except CheckpointError as error:
            logger.warning("%s", first_line(error))
            return None, None
        return (latest.state, best.state) if latest and best else (None, None)

    def file(self, name: str) -> CheckpointFile:
        """Return a checkpoint file of the folder."""
        return CheckpointFile(self.folder / name, {"facts": self.facts, "name": name})

    def remove(self) -> None:
        """Delete the folder, if there is one."""
        shutil.rmtree(self.folder, ignore_errors=True)


_ADAPTER = TypeAdapter(State)
