"""The scorer that a run ends with: the trained model, and its count ensemble if it has one."""

from __future__ import annotations

from typing import NamedTuple

from rich.progress import Progress

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.config import Experiment
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.held_out import HeldOutParts
from recsys.evaluation.tables import RankTable
from recsys.experiments.count_weights import fit_count_ensemble
from recsys.inference.scorer import Scorer
from recsys.progress import stage
from recsys.serving.calibration import temperature_of
from recsys.serving.trained_scorer import model_scorer
from recsys.training.refit import Fitted

CALIBRATING = 500
"""Histories that the temperature is fitted on; `recsys calibrate` takes more."""


class FinalScorer(NamedTuple):
    """The scorer of a run and its validation ranks, with the count ensemble if there is one."""

    model: Scorer
    """The scorer of the model alone."""
    count_ensemble: CountEnsemble | None
    valid: RankTable
    """Ranks of the validation targets by the model of the best epoch, with any count ensemble."""
    valid_alone: RankTable
    """Ranks of the validation targets by the model of the best epoch, without it."""
    temperature: float | None
    """That of its probabilities, fitted on validation with the model of the best epoch."""

    @property
    def scorer(self) -> Scorer:
        """The scorer of the run."""
        return (
            self.model if self.count_ensemble is None else self.count_ensemble.added_to(self.model)
        )


def final_scorer(
    experiment: Experiment,
    dataset: PreparedDataset,
    held_out: HeldOutParts,
    fitted: Fitted,
    progress: Progress | None,
) -> FinalScorer:
    """Return the trained model, with its count ensemble weighed on validation if it has one.

    A refit has seen the validation targets: the temperature is that of the model before it.
    """
    _, valid = fitted.curve.validated()
    model = model_scorer(fitted.model, experiment)
    some = held_out.valid.sample(CALIBRATING, experiment.seed)
    if experiment.count_ensemble is None:
        validated = model_scorer(fitted.validated_model(experiment, dataset), experiment)
        return FinalScorer(model, None, valid, valid, temperature_of(validated, some))
    with stage(f"weighing counts of {experiment.name}", None, progress):
        weighed = fit_count_ensemble(
            experiment.count_ensemble, experiment, dataset, held_out, fitted
        )
    temperature = temperature_of(weighed.validated, some)
    return FinalScorer(model, weighed.count_ensemble, weighed.ranks, valid, temperature)
