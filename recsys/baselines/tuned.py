"""All baselines and their tuning grids; the same rule tunes each of them on validation."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from recsys.baselines.counts import PersonalFrequency, Popularity, RepeatLast, latest_histories
from recsys.baselines.neighbours import (
    EASE,
    EASESettings,
    ItemKNN,
    ItemKNNSettings,
    MatrixFactorisation,
    MatrixFactorisationSettings,
)
from recsys.baselines.transitions import (
    LAST_ITEM,
    MARKOV_CHAIN,
    PCTM,
    PUBLISHED_PCTM,
    PUBLISHED_RULES,
    PCTMSettings,
    SequentialRules,
    counted,
)
from recsys.config.data import DataConfig
from recsys.data.prepared import Part, PreparedDataset
from recsys.data.splits import Holdout
from recsys.evaluation.tables import evaluate
from recsys.inference.scorer import Scorer, Seen

_NEWEST = 0.02
"""The share of the interactions whose popularity joins transitions and repeats."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings that were tried on validation."""

    settings: Any
    ndcg_at_10: float
    seconds: float
    """Of fitting it, and ranking the validation targets."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A function that fits a scorer, and the settings that validation chooses from."""

    fit: Callable[[PreparedDataset, Part, Any], Scorer]
    """Fits a scorer on all interactions before a part of the split."""
    kind: type[Any]
    grid: Sequence[Any]
    """The settings to try; ties go to the first."""
    published: Mapping[str, Any] = field(default_factory=dict)
    """Settings of published results, by named dataset; under the published protocol they are used
    without tuning."""

    def choose(self, dataset: PreparedDataset, seen: Seen) -> Any:
        """Return the settings with the best validation NDCG@10, fitted on the training part."""
        candidates, holdout = self._candidates(dataset, seen), dataset.holdout("valid")
        if len(candidates) == 1 or not len(holdout.targets):
            return candidates[0]
        return self.measure(dataset, holdout, seen).settings

    def measure(
        self,
        dataset: PreparedDataset,
        holdout: Holdout,
        seen: Seen,
        enough: Callable[[], bool] = lambda: False,
    ) -> Trial:
        """Return the best settings for these targets, of those tried until there are ``enough``."""
        trials: list[Trial] = []
        for settings in self._candidates(dataset, seen):
            if trials and enough():
                break
            started = time.perf_counter()
            scorer = self.fit(dataset, "valid", settings)
            ndcg = float(evaluate(scorer, holdout, "valid", seen).values("ndcg_at_10").mean())
            trials.append(Trial(settings, ndcg, time.perf_counter() - started))
        return max(trials, key=lambda trial: trial.ndcg_at_10)

    def _candidates(self, dataset: PreparedDataset, seen: Seen) -> Sequence[Any]:
        """Return the settings to choose from: the published ones under the published protocol."""
        published, location = dataset.manifest.origin, {"source", "columns"}
        settings = dataset.config.model_dump(exclude=location)
        usual = seen == "filter" and settings == DataConfig().model_dump(exclude=location)
        return [self.published[published]] if usual and published in self.published else self.grid


@dataclass(frozen=True, slots=True)
class RecentWindow:
    """What counts as recent; of little use where the log has sequence numbers instead of times."""

    share: float


def _recent_popularity(dataset: PreparedDataset, before: Part, window: RecentWindow) -> Scorer:
    return Popularity.fit(latest_histories(dataset, before, window.share), dataset.num_items)


def _counted(
    kind: type[Any], grid: Sequence[Any] = (None,), published: Mapping[str, Any] | None = None
) -> Baseline:
    """Return the baseline of a class, which is fitted on histories; without a grid no settings."""

    def fit(data: PreparedDataset, before: Part, settings: Any) -> Scorer:
        words = data.histories(before), data.num_items
        return kind.fit(*words) if settings is None else kind.fit(*words, settings)

    return Baseline(fit, kind, grid, published or {})


BASELINES: dict[str, Baseline] = {
    "popularity": _counted(Popularity),
    "recent_popularity": Baseline(
        _recent_popularity, Popularity, [*map(RecentWindow, (0.2, 0.5, 0.1, 0.05, 0.02))]
    ),
    "repeat_last": _counted(RepeatLast),
    "personal_frequency": _counted(PersonalFrequency),
    "markov": _counted(SequentialRules, [MARKOV_CHAIN]),
    "sequential_rules": _counted(SequentialRules, list(PUBLISHED_RULES.values()), PUBLISHED_RULES),
    "pctm": _counted(PCTM, [PCTMSettings(), *PUBLISHED_PCTM.values()], PUBLISHED_PCTM),
    # Where users repeat items: the count ensemble without a model.
    "transitions_and_repeats": Baseline(
        lambda data, before, settings: counted(data, before, settings, _NEWEST),
        PCTM,
        [
            replace(counted, popularity=recent * weight, repeats=weight)
            for recent, counted, weight in product(
                (0.25, 0.0),
                (PCTMSettings(), PUBLISHED_PCTM["ml-1m"], LAST_ITEM),
                (1.0, 4.0, 16.0, 0.25),
            )
        ],
    ),
    "item_knn": _counted(
        ItemKNN, [ItemKNNSettings(*pair) for pair in product((100, 500), (0.5, 0.8, 1.0))]
    ),
    "ease": _counted(EASE, [EASESettings(l2) for l2 in (300, 100, 1_000)]),
    "matrix_factorisation": _counted(
        MatrixFactorisation,
        [MatrixFactorisationSettings(decay=decay) for decay in (0.75, 0.9, 0.5)],
    ),
}
"""Every baseline by its name, the simplest first."""
