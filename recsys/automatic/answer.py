"""The answer of an automatic run, as its journal keeps it until the page is written."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from recsys.automatic.averaging import Averaging
from recsys.automatic.tuned_baselines import MeasuredBaseline
from recsys.baselines.tuned import BASELINES
from recsys.config import Experiment
from recsys.data.holdout import Holdout
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.tables import RankTable, evaluate
from recsys.experiments.fit import FinalScorer
from recsys.experiments.results import Run
from recsys.folders.digests import file_sha256
from recsys.folders.manifest import MANIFEST
from recsys.reports.statistics import ALPHA, paired_test
from recsys.tracking.runs import are_finished


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


@dataclass(slots=True)
class Naming:
    """Decides on validation whether a model or the best baseline is the answer, and its name."""

    model: str
    """The kind of model."""
    had_time: bool
    """Whether its training ended because it gained nothing more."""
    best: MeasuredBaseline | None
    """The best baseline, if one was tuned."""
    dataset: PreparedDataset
    valid: Holdout
    figures: str = ""
    """What the model and its parts reached, once it is named."""

    def __call__(self, final: FinalScorer) -> str | None:
        """Return the name of the answer; None if the model does not beat the best baseline.

        With its counts it must be better by more than chance (a paired test over users): else the
        baseline, which is cheaper to keep, is the answer. If the model alone is worse than the
        baseline, the answer is named after the counts first.
        """
        quality, alone = (_ndcg(ranks) for ranks in (final.valid, final.valid_alone))
        counts = final.count_ensemble
        is_blend = counts is not None and bool(counts.weight or counts.repeat_weight)
        self.figures = f"{quality:.4f} of {self.model}"
        if is_blend:
            self.figures = f"{quality:.4f} of {self.model} with counts, {alone:.4f} of it alone"
        if self.best is None:
            return self.model
        scorer = BASELINES[self.best.name].fit(self.dataset, "valid", self.best.tuned.settings)
        seen = final.valid.protocol.seen
        ranks = evaluate(scorer, self.valid, "valid", seen)
        test = paired_test(final.valid, ranks, "ndcg_at_10")
        if test.difference <= 0 or test.p_value >= ALPHA:
            if test.difference > 0:
                self.figures += f", no more than chance may add (p = {test.p_value:.2f})"
            return None
        if not is_blend or alone >= self.best.ndcg_at_10:
            return self.model
        of_counts = "transitions_and_repeats" if seen == "allow" else "pctm"
        name = f"{words_for(of_counts)} with {self.model}"
        return name if self.had_time else f"{name} that had no time to learn"


def words_for(baseline: str) -> str:
    """Return a baseline's name for people.

    >>> words_for("pctm"), words_for("item_knn")
    ('PCTM', 'item knn')
    """
    return "PCTM" if baseline == "pctm" else baseline.replace("_", " ")


def _ndcg(ranks: RankTable) -> float:
    return float(ranks.values("ndcg_at_10").mean())


def baseline_experiment(name: str, protocol: Experiment) -> Experiment:
    """Return the settings of a baseline under the protocol of a model."""
    kept = protocol.model_dump(include={"name", "seed", "data", "evaluation", "tracking"})
    return Experiment.model_validate({**kept, "baseline": name, "training": {"refit": True}})
