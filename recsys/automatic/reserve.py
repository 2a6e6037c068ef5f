"""The time that is kept for the evaluation at the end of an automatic run, by what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from recsys.automatic.contender import Contender
from recsys.automatic.targets import Targets
from recsys.automatic.tuned_baselines import STORE_SECONDS, MeasuredBaseline
from recsys.experiments.final_scorer import CALIBRATING

_COUNT_TRIALS = 45
"""Rankings of a validation target to weight the counts, in units of a ranking by popularity."""
_COUNT_PASSES = 2
"""Rankings of a validation target by the model for that."""
_MODEL_TESTS = 3.0
"""Rankings of a test target to test the model: once, with the counts, and for the lists."""
_TEMPERATURES = 8
"""Scorings of a sample of validation histories to fit the temperature of probabilities."""
_COMPARED = 3
"""Models that counts are added to before it is known whether a mean of two is better."""
_MODEL_COST = 2.0
"""A ranking by a model that is not timed yet, in units of a ranking by popularity."""
_BASELINE_TESTS = 2.0
"""Rankings of a test target to test a baseline: for the table and for the lists."""
_REFIT_COST = 1.2
"""A fit of a baseline on the validation part too, in fits on the training part."""
_OTHER_SECONDS = 10.0
"""Seconds for the bundle, the page and the audit."""
_MARGIN = 1.3


def reserve(targets: Targets, baselines: Sequence[MeasuredBaseline], *models: Contender) -> float:
    """Estimate the seconds from the end of the training to the end of the run.

    Args:
        targets: those of both parts.
        baselines: all of them are fitted again and tested.
        *models: the one that is tested, if it is known; of two, their mean is tested, if it is
            better on validation than the first.
    """
    valid, test = (len(part.histories) for part in (targets.held_out.valid, targets.held_out.test))
    known = [one.rank_seconds for one in baselines if one.name == "popularity"]
    unit = known[0] / valid if known else targets.unit
    timed = [one.seconds_validating / len(one.points) / valid for one in models if one.points]
    per_history = sum(timed) if timed else _MODEL_COST * unit
    compared = _COMPARED if len(models) > 1 else 0
    weighed = compared * valid + len(targets.held_out.weighed_on.histories)
    counts = weighed * (_COUNT_TRIALS * unit + _COUNT_PASSES * per_history)
    tests = per_history * (_MODEL_TESTS * test + _TEMPERATURES * min(CALIBRATING, valid))
    others = sum(
        _REFIT_COST * one.fit_seconds
        + _BASELINE_TESTS * one.rank_seconds / valid * test
        + STORE_SECONDS
        for one in baselines
    )
    return _MARGIN * (counts + tests + others + _OTHER_SECONDS)
