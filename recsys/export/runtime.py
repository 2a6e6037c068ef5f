"""An export run by onnxruntime, as a `Scorer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from recsys.data.histories import PAD, Histories
from recsys.inference.scorer import batches_of_similar_length

_ELEMENTS = 1 << 22
"""The elements that the head holds at once, about."""
_TOKENS = 1 << 12
ENCODER, HEAD = "encoder.onnx", "head.onnx"

Arrays = Sequence[NDArray[np.generic]]


class OnnxScorer:
    """Scores of the two graphs of an export.

    Args:
        folder: the export.
        num_items: I.
        max_sequence_length: the number of latest items of a history that are read.
    """

    def __init__(self, folder: Path, num_items: int, max_sequence_length: int) -> None:
        self._encoder, self._head = session(folder / ENCODER), session(folder / HEAD)
        self.num_items = num_items
        self._max_sequence_length = max_sequence_length

    def score(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> torch.Tensor:
        """See `Scorer.score`."""
        recent = histories.latest(self._max_sequence_length)
        lengths = recent.lengths
        everything = np.arange(self.num_items + 1, dtype=np.int64)
        width = self.num_items + 1 if candidates is None else candidates.shape[1]
        scores = np.empty((len(histories), width), dtype=np.float32)
        for rows in batches_of_similar_length(lengths, _TOKENS, _TOKENS):
            batch = recent.take(rows)
            given = {"items": batch.padded().astype(np.int64), "lengths": batch.lengths}
            if (times := batch.padded_times()) is not None:
                given["times"] = times
            last = self.encode(given)
            step = max(1, _ELEMENTS // (len(rows) * sum(part[0].size for part in last)))
            for start in range(0, width, step):
                columns = slice(start, start + step)
                if candidates is None:
                    tokens = np.broadcast_to(
                        everything[columns], (len(rows), len(everything[columns]))
                    )
                else:
                    tokens = candidates[rows, columns].astype(np.int64)
                found = self.score_encoded(tokens, batch.lengths, last)
                scores[rows, columns] = np.where(tokens == PAD, -np.inf, found)
        return torch.from_numpy(scores)

    def encode(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run the encoder."""
        return run(self._encoder, inputs)

    def score_encoded(
        self, candidates: NDArray[np.generic], lengths: NDArray[np.generic], last: Arrays
    ) -> NDArray[np.float32]:
        """Run the head: scores [B, C] of candidates [B, C]."""
        names = [value.name for value in self._head.get_inputs()]
        states = [name for name in names if name not in ("candidates", "lengths")]
        inputs = {
            "candidates": candidates,
            "lengths": lengths,
            **dict(zip(states, last, strict=True)),
        }
        (scores,) = run(self._head, inputs)
        return scores  # type: ignore[return-value]


def session(path: Path) -> onnxruntime.InferenceSession:
    """Open a graph, on the CPU."""
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def run(graph: onnxruntime.InferenceSession, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
    """Run a graph with those of the inputs that it takes."""
    names = [value.name for value in graph.get_inputs()]
    return graph.run(None, {name: np.ascontiguousarray(inputs[name]) for name in names})  # type: ignore[no-any-return]
