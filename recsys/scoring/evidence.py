"""Counted evidence beside a trained model: what followed what, weighed against what was learned.

A Transformer with tens of thousands of users to learn from forgets what counts know: which item
followed which, how often. Their sum ranks better than either. The counts are those of `PCTM`; their
weight is chosen on validation once the model is trained, so nothing leaks into the training.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from scipy.sparse import csr_array
from torch import Tensor

from recsys.baselines.pctm import PCTM, PCTMSettings
from recsys.data.histories import Histories
from recsys.errors import InputError
from recsys.evaluation.scorer import Scorer


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Counts and their weight."""

    counts: PCTM
    weight: float

    def beside(self, model: Scorer) -> Scorer:
        """The model's scores plus ``weight`` times those of the counts."""
        if self.weight == 0:  # validation found that they do not help
            return model
        return _Sum(model, self.counts, self.weight)

    def over(self, num_items: int) -> Evidence:
        """For a catalogue that goes on behind the items counted: nothing followed those."""
        matrix, popularity = self.counts.evidence, self.counts.log_popularity
        more = num_items + 1 - len(popularity)
        offsets = np.pad(matrix.indptr, (0, more), mode="edge")
        matrix = csr_array(
            (matrix.data, matrix.indices, offsets), shape=(num_items + 1, num_items + 1)
        )
        popularity = np.append(popularity, np.full(more, popularity.min()))
        return replace(
            self, counts=replace(self.counts, evidence=matrix, log_popularity=popularity)
        )

    def contributions(self, items: NDArray[np.int32], candidate: int) -> NDArray[np.float64]:
        """What each item of a history [L] adds to the score of a candidate [L]."""
        return self.weight * self.counts.contributions(items, candidate)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file, with the settings as its metadata."""
        matrix = self.counts.evidence
        tensors: dict[str, NDArray[Any]] = {
            "offsets": matrix.indptr.astype(np.int64),
            "columns": matrix.indices.astype(np.int32),
            "values": matrix.data,
            "log_popularity": self.counts.log_popularity,
        }
        facts = {"weight": self.weight, "settings": asdict(self.counts.settings)}
        save_file(tensors, path, {"evidence": json.dumps(facts, sort_keys=True)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Evidence:
        """Read what `save` wrote.

        Raises:
            InputError: the file cannot be read, or is no evidence.
        """
        try:
            with safe_open(path, framework="numpy") as file:
                facts = json.loads(file.metadata()["evidence"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            popularity = tensors["log_popularity"]
            matrix = csr_array(
                (tensors["values"], tensors["columns"], tensors["offsets"]),
                shape=(len(popularity), len(popularity)),
            )
            settings = PCTMSettings(**facts["settings"])
            return cls(PCTM(matrix, popularity, settings), float(facts["weight"]))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: cannot be read as counted evidence: {error}") from error


@dataclass(frozen=True, slots=True, eq=False)
class _Sum:
    """A `Scorer`."""

    model: Scorer
    counts: PCTM
    weight: float

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return self.model.num_items

    def score(self, histories: Histories, candidates: NDArray[np.int32] | None = None) -> Tensor:
        """See `Scorer.score`."""
        scores = self.model.score(histories, candidates)
        counted = self.counts.score(histories, candidates).to(scores.device)
        return scores.add(counted, alpha=self.weight)
