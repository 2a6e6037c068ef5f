"""The scorer that a run ends with: the trained model, and its count ensemble if it has one."""

from __future__ import annotations

from typing import NamedTuple

from rich.progress import Progress

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.config import Experiment
from recsys.data.prepared import Part, PreparedDataset
from recsys.evaluation.candidates import Candidates
from recsys.evaluation.held_out import HeldOutParts
from recsys.evaluation.tables.rank import RankTable, evaluate
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

    scorer: Scorer
    count_ensemble: CountEnsemble | None
    valid: RankTable
    """Ranks of the validation targets by the model of the best epoch, with any count ensemble."""
    alone: dict[Part, RankTable]
    """Ranks without the count ensemble, by part; empty if there is none."""
    temperature: float | None
    """That of its probabilities, fitted on validation with the model of the best epoch."""


def final_scorer(
    experiment: Experiment,
    dataset: PreparedDataset,
    held_out: HeldOutParts,
    fitted: Fitted,
    candidates: Candidates | None,
    progress: Progress | None,
) -> FinalScorer:
    """Return the trained model, with its count ensemble weighed on validation if it has one.

    A refit has seen the validation targets: the temperature is that of the model before it.
    """
    _, valid = fitted.curve.validated()
    scorer, evaluation = model_scorer(fitted.model, experiment), experiment.evaluation
    some = held_out.valid.sample(CALIBRATING, experiment.seed)
    if experiment.count_ensemble is None:
        validated = model_scorer(fitted.validated_model(experiment, dataset), experiment)
        return FinalScorer(scorer, None, valid, {}, temperature_of(validated, some))
    with stage(f"weighing counts of {experiment.name}", None, progress):
        test = evaluate(scorer, held_out.test, "test", evaluation.seen, candidates=candidates)
        weighed = fit_count_ensemble(
            experiment.count_ensemble, experiment, dataset, held_out.valid, fitted
        )
    return FinalScorer(
        weighed.count_ensemble.added_to(scorer),
        weighed.count_ensemble,
        weighed.ranks,
        {"valid": valid, "test": test},
        temperature_of(weighed.validated, some),
    )
