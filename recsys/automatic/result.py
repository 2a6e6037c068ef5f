"""The result of an automatic run."""

from __future__ import annotations

from dataclasses import dataclass

from recsys.automatic.averaging import Averaging
from recsys.automatic.contender import Contender
from recsys.automatic.tuned_baselines import MeasuredBaseline
from recsys.experiments.results import Run
from recsys.reports.run_page import Choice


@dataclass(frozen=True, slots=True)
class AutomaticRun:
    """What an automatic run tried, and what it chose."""

    run: Run
    """The answer: the model, or the baseline that no model beats."""
    other_runs: list[str]
    """Ids of the other MLflow runs: of the model that the answer, a baseline, beat, if there is
    one, and of the other baselines, best on validation first."""
    choices: list[Choice]
    """The settings that follow from the log, with their reasons."""
    baselines: list[MeasuredBaseline]
    """Best first."""
    contenders: list[Contender]
    """The models that were to be raced, best first; none if Ctrl-C came before a validation."""
    answer: str
    """One sentence on what was chosen, and why."""
    answer_is_model: bool
    """Whether a model is the answer, and not a baseline."""
    averaging: Averaging | None = None
    """What came of a mean with another kind of model; None if it was not to be tried."""

    @property
    def winner(self) -> Contender | None:
        """The contender that is the answer, or the better one of a mean; None if a baseline is."""
        return self.contenders[0] if self.answer_is_model else None

    @property
    def chosen(self) -> list[Contender]:
        """The contenders that the answer is made of: two of a mean; none if a baseline is."""
        mean = self.averaging is not None and self.averaging.chosen
        return self.contenders[: 2 if mean else 1] if self.answer_is_model else []
