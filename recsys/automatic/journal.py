"""The journal of a race: a run that is killed and started again resumes where it was."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from recsys.automatic.answer import Answer
from recsys.automatic.averaging import Averaging
from recsys.automatic.contender import Contender
from recsys.automatic.finish import Finished
from recsys.automatic.kept_training import KeptTraining, checkpoint_of
from recsys.automatic.speed import Speed
from recsys.automatic.tuned_baselines import MeasuredBaseline
from recsys.errors import InputError, first_line
from recsys.folders.atomic import new_file
from recsys.folders.digests import tree_sha256
from recsys.reports.run_page import RacePoint
from recsys.training.checkpoints import Checkpoint, CheckpointError, CheckpointFile, TrainingState

logger = logging.getLogger(__name__)

_FILE = "journal.json"
_INTERVAL = 60.0
"""Seconds between two saves of a contender at least."""
_NOTE_INTERVAL = 10.0
"""Seconds between two notes of the time spent at least."""


@dataclass
class Journal:
    """A folder with the tuned baselines, the state of every contender and the time spent."""

    folder: Path
    facts: Mapping[str, Any]
    """All that decides the race: a journal of other facts is not resumed."""
    targets: Sequence[int] | None = None
    """The numbers of histories of the samples of targets, see `Targets`; None before they are
    chosen. A run that resumes must choose the same ones."""
    speed: Speed | None = None
    """None before it is measured. A run that resumes has the same epochs."""
    baselines: list[MeasuredBaseline] = field(default_factory=list)
    """Those that were tuned so far."""
    has_all_baselines: bool = False
    """Whether they are all that will be tuned."""
    contenders: Sequence[Contender] = ()
    """Those of the race; empty before it."""
    raced: Sequence[str] = ()
    """The names of the contenders of an interrupted run; beside an answer the best one first."""
    training: KeptTraining | None = None
    """None before the training has ended, or if Ctrl-C ended it."""
    model: Checkpoint | None = field(default=None, repr=False)
    """The model of an interrupted run whose training has ended."""
    answer: Answer | None = None
    """None before its test has ended."""
    tested: dict[str, str] = field(default_factory=dict)
    """The ids of the MLflow runs of the baselines that were tested beside it, by name."""
    _last: dict[str, float] = field(default_factory=dict, repr=False)
    """When each contender was saved last."""
    _tree: dict[str, Any] = field(default_factory=dict, repr=False)
    """What was written last."""
    _written_at: float = field(default=0.0, repr=False)

    @classmethod
    def beside(cls, out: Path, facts: Mapping[str, Any]) -> Journal:
        """Return the journal of the run whose results are in a folder."""
        return cls(out.with_name(f".{out.name}.race"), facts)

    def seconds_spent(self) -> float:
        """Return the seconds that the interrupted run had spent; 0 if there is none to resume.

        A journal of other facts is deleted, and so is one whose answer is not there any more.

        Raises:
            InputError: there is an answer, and its store cannot be used.
        """
        tree = self._read_tree()
        if tree is None:
            return 0.0
        if tree.get("facts") != json.loads(json.dumps(self.facts)):
            logger.info("%s: of a run with other data or settings: it starts anew", self.folder)
            self.remove()
            return 0.0
        if not self._read_end(tree):
            logger.info("%s: its results are not there any more: it starts anew", self.folder)
            self.training, self.model, self.answer, self.tested = None, None, None, {}
            self.remove()
            return 0.0
        try:
            baselines = [MeasuredBaseline.parse(one) for one in tree["baselines"]]
            self.baselines, self.has_all_baselines = baselines, tree["has_all_baselines"]
        except LookupError:
            logger.info("%s: of another version: its baselines are tuned again", self.folder)
        self.targets, self.raced = tree["targets"], list(tree["contenders"])
        speed = tree.get("speed")  # that of another version has none
        self.speed = None if speed is None else Speed(**speed)
        return float(tree["seconds"])

    def _read_end(self, tree: Mapping[str, Any]) -> bool:
        """Read the end of the training, the answer and its tests; False if they are gone."""
        training, answer, tested = (tree.get(each) for each in ("training", "answer", "tested"))
        try:
            if answer is not None:
                self.answer, self.tested = Answer.parse(answer), tested or {}
                return self.answer.is_there(self.tested.values())
            if training is not None:
                self.training, self.model = KeptTraining.parse(training), self._model_file.read()
                return self.model is not None
        except (ValueError, CheckpointError) as error:
            logger.warning("%s: %s", self.folder, first_line(error))
            return False
        return True

    def restore(self, contenders: Sequence[Contender]) -> None:
        """Give the contenders the states that they had, and keep those that come."""
        self.contenders = contenders
        tree = self._read_tree()
        if tree is None:
            return
        self._tree = tree
        for one in contenders:
            known = tree["contenders"].get(one.candidate.name)
            if known is None:
                continue
            points = [RacePoint(**point) for point in known["points"]]
            one.failure = known.get("failure", "")
            one.ended_rising = known.get("ended_rising", False)
            if not known.get("is_known", True):  # its memory was freed
                one.dropped_in, one.points = known["dropped_in"], points
                one.interrupted = self.answer is not None and known["interrupted"]  # it has ended
                continue
            try:
                latest, best = self._read(one, "latest"), self._read(one, "best")
            except InputError as error:
                logger.warning("%s", error)
                continue
            one.dropped_in = known["dropped_in"]
            one.is_partner = known.get("is_partner", False)
            if latest is None or best is None:
                continue
            epochs = latest.curve.epochs
            one.points = [point for point in points if point.epochs <= len(epochs)]
            validating = [epoch.get("epoch/valid_seconds", 0.0) for epoch in epochs]
            seconds = [epoch["train/seconds"] for epoch in epochs]
            one.seconds, one.seconds_validating = sum(seconds) + sum(validating), sum(validating)
            one.seconds_of_first = seconds[0] + validating[0]
            one.rarely = known["rarely"]
            one.latest, one.best = latest, best
            if one.dropped_in is None:
                logger.info("resuming %s after %d epochs", one.candidate.name, len(epochs))

    def save(self, contender: Contender, spent: float) -> None:
        """Save the state of a contender if its last save is long ago, and the journal.

        Args:
            contender: one of the race.
            spent: the seconds of the whole run so far.
        """
        name, now = contender.candidate.name, time.monotonic()
        if now - self._last.get(name, -_INTERVAL) < _INTERVAL:
            return
        if contender.latest is None or contender.best is None:
            return
        self._last[name] = now
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file(contender, "latest").write(Checkpoint("", 0.0, contender.latest))
        self._file(contender, "best").write(Checkpoint("", 0.0, contender.best))
        self.write(spent)

    def write(self, spent: float) -> None:
        """Write the journal itself, without the states of the contenders."""
        self._tree = {
            "facts": self.facts,
            "targets": self.targets,
            "speed": None if self.speed is None else asdict(self.speed),
            "baselines": [one.plain() for one in self.baselines],
            "has_all_baselines": self.has_all_baselines,
            "contenders": {
                one.candidate.name: {
                    "points": [point._asdict() for point in one.points],
                    "rarely": one.rarely,
                    "dropped_in": one.dropped_in,
                    "is_partner": one.is_partner,
                    "is_known": one.latest is not None,
                    "failure": one.failure,
                    "ended_rising": one.ended_rising,
                    "interrupted": one.interrupted,
                }
                for one in self.contenders
            },
            "training": None if self.training is None else self.training.plain(),
            "answer": None if self.answer is None else self.answer.plain(),
            "tested": self.tested,
        }
        self._write_tree(spent)

    def keep_training(
        self,
        finished: Finished,
        averaging: Averaging | None,
        contenders: Sequence[Contender],
        spent: float,
    ) -> None:
        """Write the model of a training that has ended; no state of a contender is needed then.

        Args:
            finished: the training.
            averaging: what came of a mean.
            contenders: the best one first.
            spent: the seconds of the whole run so far.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._model_file.write(checkpoint_of(finished.fitted))
        for one in contenders:
            one.forget()
        self.training, self.contenders = KeptTraining.of(finished, averaging), contenders
        self.write(spent)

    def keep_answer(self, answer: Answer, contenders: Sequence[Contender], spent: float) -> None:
        """Write the answer, after its bundle and its test; no state of a contender is needed then.

        Args:
            answer: the answer.
            contenders: the best one first.
            spent: the seconds of the whole run so far.
        """
        for one in contenders:
            one.forget()
        self.answer, self.contenders = answer, contenders
        self.write(spent)

    def keep_test(self, baseline: str, run_id: str, spent: float) -> None:
        """Write the run of a baseline that was tested."""
        self.tested[baseline] = run_id
        self.write(spent)

    def note(self, spent: float) -> None:
        """Write the time spent, if it was written long ago; all else stays as it was written."""
        if self._tree and time.monotonic() - self._written_at >= _NOTE_INTERVAL:
            self._write_tree(spent)

    def _write_tree(self, spent: float) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        tree = self._tree | {"seconds": spent}
        tree["digest"] = tree_sha256(tree)
        with new_file(self.folder / _FILE) as file:
            file.write_text(json.dumps(tree), encoding="utf-8")
        self._written_at = time.monotonic()

    def remove(self) -> None:
        """Delete the journal, if there is one."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._last.clear()

    def _read_tree(self) -> dict[str, Any] | None:
        """Read the journal; None if there is none, or a damaged one."""
        file = self.folder / _FILE
        try:
            tree: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if tree["digest"] != tree_sha256(tree):
                raise ValueError
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, LookupError):
            logger.warning("%s: damaged: the race starts anew", file)
            return None
        return tree

    def _file(self, contender: Contender, which: str) -> CheckpointFile:
        name = contender.candidate.name
        return CheckpointFile(self.folder / f"{name}.{which}", {"contender": name, **self.facts})

    @property
    def _model_file(self) -> CheckpointFile:
        return CheckpointFile(self.folder / "model", dict(self.facts))

    def _read(self, contender: Contender, which: str) -> TrainingState | None:
        found = self._file(contender, which).read()
        return None if found is None else found.state
