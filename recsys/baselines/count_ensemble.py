"""Counted evidence beside a trained model: what followed what, and what the user had already.

A Transformer with tens of thousands of users to learn from forgets what counts know: which item
followed which, how often; and, where purchases repeat, how often the user had each. Their sum ranks
better than either. The counts of what followed what are those of `PCTM`; all weights are chosen on
validation once the model is trained, so nothing leaks into the training.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from scipy.sparse import csr_array
from torch import Tensor

from recsys.baselines.counts import give_scores, weighted_histories
from recsys.baselines.pctm import PCTM, PCTMSettings
from recsys.data.histories import Histories
from recsys.errors import InputError
from recsys.inference.scorer import Scorer


@dataclass(frozen=True, slots=True, eq=False)
class CountEnsemble:
    """Counts and their weight."""

    counts: PCTM
    weight: float
    repeat_weight: float = 0.0
    """Of log(1 + how often the user had the candidate)."""

    def beside(self, model: Scorer) -> Scorer:
        """The model's scores plus those of the counts, each times its weight."""
        own = RepeatCounts(model.num_items)
        return beside(model, [(own, self.repeat_weight), (self.counts, self.weight)])

    def over(self, num_items: int) -> CountEnsemble:
        """For a catalogue that goes on behind the items counted: nothing followed those."""
        matrix, popularity = self.counts.log_counts, self.counts.log_popularity
        more = num_items + 1 - len(popularity)
        offsets = np.pad(matrix.indptr, (0, more), mode="edge")
        matrix = csr_array(
            (matrix.data, matrix.indices, offsets), shape=(num_items + 1, num_items + 1)
        )
        popularity = np.append(popularity, np.full(more, popularity.min()))
        return replace(
            self, counts=replace(self.counts, log_counts=matrix, log_popularity=popularity)
        )

    def contributions(self, items: NDArray[np.int32], candidate: int) -> NDArray[np.float64]:
        """What each item of a history [L] adds to the score of a candidate [L]."""
        own = items == candidate
        share = math.log1p(own.sum()) / max(own.sum(), 1)
        followed = self.counts.contributions(items, candidate)
        both: NDArray[np.float64] = self.weight * followed + self.repeat_weight * share * own
        return both

    def items_read(self, model: int) -> int | None:
        """How many of the newest items the counts and a model that reads so many say anything of.

        None: all.
        """
        return None if self.repeat_weight else max(model, self.counts.settings.history_length)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file, with the settings as its metadata."""
        matrix = self.counts.log_counts
        tensors: dict[str, NDArray[Any]] = {
            "offsets": matrix.indptr.astype(np.int64),
            "columns": matrix.indices.astype(np.int32),
            "values": matrix.data,
            "log_popularity": self.counts.log_popularity,
        }
        facts = {
            "weight": self.weight,
            "repeat_weight": self.repeat_weight,
            "settings": asdict(self.counts.settings),
        }
        save_file(tensors, path, {"count_ensemble": json.dumps(facts, sort_keys=True)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CountEnsemble:
        """Read what `save` wrote.

        Raises:
            InputError: the file cannot be read, or is no count ensemble.
        """
        try:
            with safe_open(path, framework="numpy") as file:
                facts = json.loads(file.metadata()["count_ensemble"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            popularity = tensors["log_popularity"]
            matrix = csr_array(
                (tensors["values"], tensors["columns"], tensors["offsets"]),
                shape=(len(popularity), len(popularity)),
            )
            settings = PCTMSettings(**facts["settings"])
            counts = PCTM(matrix, popularity, settings)
            return cls(counts, float(facts["weight"]), float(facts.get("repeat_weight", 0)))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path}: cannot be read as counted count_ensemble: {error}"
            ) from error


def beside(model: Scorer, terms: Sequence[tuple[Scorer, float]]) -> Scorer:
    """The model's scores plus those of each term, times its weight.

    Where validation found that a term does not help, its weight is 0.
    """
    helping = tuple((term, weight) for term, weight in terms if weight)
    return _Sum(model, helping) if helping else model


@dataclass(frozen=True, slots=True)
class RepeatCounts:
    """Scores a candidate log(1 + n), n how often the user had it. A `Scorer`."""

    num_items: int
    """Size of the catalogue, I."""

    def score(self, histories: Histories, candidates: NDArray[np.int32] | None = None) -> Tensor:
        """See `Scorer.score`."""
        return give_scores(self._catalogue, self.num_items, histories, candidates)

    def _catalogue(self, histories: Histories) -> NDArray[np.float64]:
        ones = np.ones(len(histories.items))
        return np.log1p(weighted_histories(histories, ones, self.num_items).toarray())  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, eq=False)
class _Sum:
    """A `Scorer`."""

    model: Scorer
    terms: tuple[tuple[Scorer, float], ...]
    """Each with its weight."""

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return self.model.num_items

    def score(self, histories: Histories, candidates: NDArray[np.int32] | None = None) -> Tensor:
        """See `Scorer.score`."""
        scores = self.model.score(histories, candidates)
        for term, weight in self.terms:
            counted = term.score(histories, candidates).to(scores.device)
            scores = scores.add(counted, alpha=weight)
        return scores
