"""Every baseline, and the settings it is tuned over: the same rule for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Generic, TypeVar

from recsys.baselines import pctm, sequential_rules
from recsys.baselines.ease import EASE, EASESettings
from recsys.baselines.frequency import PersonalFrequency
from recsys.baselines.item_knn import ItemKNN, ItemKNNSettings
from recsys.baselines.markov import MarkovChain
from recsys.baselines.matrix_factorisation import MatrixFactorisation, MatrixFactorisationSettings
from recsys.baselines.pctm import PCTM, PCTMSettings
from recsys.baselines.popularity import Popularity, latest_histories
from recsys.baselines.repeat import RepeatLast
from recsys.baselines.sequential_rules import SequentialRules
from recsys.config import DataConfig
from recsys.data.histories import Histories
from recsys.data.prepared import Part, PreparedDataset
from recsys.evaluation.tables.rank import evaluate
from recsys.inference.ranking import Seen
from recsys.inference.scorer import Scorer

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Baseline(Generic[S]):
    """A way to fit a scorer, and the settings among which validation chooses."""

    fit: Callable[[PreparedDataset, Part, S], Scorer]
    """Fits to all that is known before a part of the split."""
    grid: Sequence[S]
    """The first of equally good ones is chosen."""
    published: Mapping[str, S] = field(default_factory=dict)
    """Settings of published figures, by named dataset: under the protocol they were published for
    nothing is chosen."""

    def choose(self, dataset: PreparedDataset, seen: Seen) -> S:
        """The settings with the highest validation NDCG@10, fitted on the training part alone."""
        candidates = self.grid
        if _is_published_protocol(dataset.config, seen):
            published = self.published.get(dataset.manifest.origin)
            candidates = self.grid if published is None else [published]
        holdout = dataset.holdout("valid")
        if len(candidates) == 1 or not len(holdout.targets):
            return candidates[0]

        def quality(settings: S) -> float:
            ranks = evaluate(self.fit(dataset, "valid", settings), holdout, "valid", seen)
            return float(ranks.values("ndcg_at_10").mean())

        return max(candidates, key=quality)


def _is_published_protocol(config: DataConfig, seen: Seen) -> bool:
    """Leave-last-out of the log as it is, seen items left out."""
    where = {"source", "mirror", "columns"}
    return seen == "filter" and config.model_dump(exclude=where) == DataConfig().model_dump(
        exclude=where
    )


@dataclass(frozen=True, slots=True)
class RecentWindow:
    """What counts as recent: nothing much where a log has no times but mere sequence numbers."""

    share: float
    """The newest so large a part of all interactions."""


def _recent_popularity(dataset: PreparedDataset, before: Part, window: RecentWindow) -> Scorer:
    return Popularity.fit(latest_histories(dataset, before, window.share), dataset.num_items)


def _plain(fit: Callable[[Histories, int], Scorer]) -> Baseline[None]:
    """One without settings."""
    return Baseline(lambda data, before, _: fit(data.histories(before), data.num_items), [None])


def _tuned(
    fit: Callable[[Histories, int, S], Scorer],
    grid: Sequence[S],
    published: Mapping[str, S] | None = None,
) -> Baseline[S]:
    def on_dataset(data: PreparedDataset, before: Part, settings: S) -> Scorer:
        return fit(data.histories(before), data.num_items, settings)

    return Baseline(on_dataset, grid, published or {})


BASELINES: dict[str, Baseline[Any]] = {
    "popularity": _plain(Popularity.fit),
    "recent_popularity": Baseline(
        _recent_popularity, [RecentWindow(share) for share in (0.2, 0.5, 0.1, 0.05, 0.02)]
    ),
    "repeat_last": _plain(RepeatLast.fit),
    "personal_frequency": _plain(PersonalFrequency.fit),
    "markov": _plain(MarkovChain.fit),
    "sequential_rules": _tuned(
        SequentialRules.fit,
        list(sequential_rules.PUBLISHED.values()),
        sequential_rules.PUBLISHED,
    ),
    "pctm": _tuned(PCTM.fit, [PCTMSettings(), *pctm.PUBLISHED.values()], pctm.PUBLISHED),
    "item_knn": _tuned(
        ItemKNN.fit,
        [
            ItemKNNSettings(neighbours, decay)
            for neighbours, decay in product((100, 500), (0.5, 0.8, 1.0))
        ],
    ),
    "ease": _tuned(EASE.fit, [EASESettings(l2) for l2 in (300, 100, 1_000)]),
    "matrix_factorisation": _tuned(
        MatrixFactorisation.fit,
        [MatrixFactorisationSettings(decay=decay) for decay in (0.75, 0.9, 0.5)],
    ),
}
"""Every baseline by its name, from the simplest on."""
