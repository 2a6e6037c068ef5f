"""The scorer of a trained model, whose weights stay as they are."""

from __future__ import annotations

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.config import Experiment
from recsys.inference.model_scorer import ModelScorer, StateCache
from recsys.inference.scorer import Scorer
from recsys.model.heads import Head
from recsys.model.models import Model
from recsys.process_memory import keep_freed_memory


def model_scorer(
    model: Model,
    experiment: Experiment,
    count_ensemble: CountEnsemble | None = None,
    head: Head | None = None,
    states: StateCache | None = None,
) -> Scorer:
    """Return the scorer of a trained model, with another head or a count ensemble if given."""
    keep_freed_memory()
    longest = experiment.model.max_sequence_length
    scorer = ModelScorer(model, longest, head, trained=True, states=states)
    return scorer if count_ensemble is None else count_ensemble.added_to(scorer)
