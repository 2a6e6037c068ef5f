"""The answer of an automatic run, as its journal keeps it until the page is written."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from recsys.automatic.averaging import Averaging
from recsys.automatic.tuned_baselines import MeasuredBaseline
from recsys.config import Experiment
from recsys.data.files import file_sha256
from recsys.data.manifest import MANIFEST
from recsys.experiments.results import Run
from recsys.tracking.runs import are_finished, nest_run


@dataclass(frozen=True, slots=True)
class Answer:
    """The model or the baseline that was chosen, after its test."""

    run: Run
    sentence: str
    """What was chosen, and why."""
    baseline: str | None
    """The name of the baseline, if that is the answer."""
    beaten: list[str]
    """The id of the run of the model, if a baseline is better; else empty."""
    averaging: Averaging | None
    """What came of a mean with another kind of model; None if it was not to be tried."""
    digest: str
    """The SHA-256 of the manifest of the bundle."""

    @classmethod
    def of(
        cls,
        run: Run,
        sentence: str,
        baseline: str | None = None,
        beaten: Collection[str] = (),
        averaging: Averaging | None = None,
    ) -> Answer:
        """Return the answer whose bundle was just written."""
        digest = file_sha256(run.bundle / MANIFEST)
        return cls(run, sentence, baseline, list(beaten), averaging, digest)

    @classmethod
    def of_baseline(
        cls,
        run: Run,
        best: MeasuredBaseline,
        ours: str,
        model: Run | None,
        averaging: Averaging | None,
    ) -> Answer:
        """Return the answer that is a baseline, and rename the run of the model that it beats.

        Args:
            run: that of the baseline, whose bundle was just written.
            best: the baseline.
            ours: what is said of the models.
            model: the run of the best model, if there is one.
            averaging: see `Answer`.
        """
        beaten = [] if model is None else [model.run_id]
        for run_id in beaten:  # else both have the name of the answer
            nest_run(run_id, f"{run.bundle.parent.name}-model", run.run_id, run.tracking)
        sentence = (
            f"The answer is a baseline, {best.name}: validation NDCG@10 {best.ndcg_at_10:.4f}, "
            f"and {ours}."
        )
        return cls.of(run, sentence, best.name, beaten, averaging)

    def plain(self) -> dict[str, Any]:
        """Return it as a journal writes it; see `parse`."""
        plain: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return plain

    @classmethod
    def parse(cls, fields: object) -> Answer:
        """Return what `plain` wrote.

        Raises:
            ValueError: another version wrote it.
        """
        return _ADAPTER.validate_python(fields)

    def is_there(self, others: Collection[str] = ()) -> bool:
        """Return whether its bundle and its run are where they were written.

        Args:
            others: ids of other runs that must be there.

        Raises:
            InputError: the store cannot be used.
        """
        try:
            if file_sha256(self.run.bundle / MANIFEST) != self.digest:
                return False  # another command has written its results there
        except OSError:
            return False
        return are_finished([self.run.run_id, *self.beaten, *others], self.run.tracking)


_ADAPTER = TypeAdapter(Answer)


def baseline_experiment(name: str, protocol: Experiment) -> Experiment:
    """Return the settings of a baseline under the protocol of a model."""
    kept = protocol.model_dump(include={"name", "seed", "data", "evaluation", "tracking"})
    return Experiment.model_validate({**kept, "baseline": name, "training": {"refit": True}})
