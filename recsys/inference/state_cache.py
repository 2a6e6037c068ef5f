"""Encoded histories that are kept for the next request with the same history."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from recsys.data.histories import Histories
from recsys.inference.model_inputs import model_inputs
from recsys.model.protocols import LastRepresentation, Model

_Key = tuple[bytes, ...]


class StateCache:
    """What one model made of the latest histories, in bounded memory.

    A history is known by everything that the model reads of it: its items, and their times and
    features where the model reads them. The least recently used one is dropped first. The weights
    of the model must stay as they are. One thread may use it at a time.

    A history that grew by an item is another history: positions count from the end, and the oldest
    item leaves the window, so that every state changes.

    Args:
        most_bytes: the size of all that is kept, keys included.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[_Key, LastRepresentation] = OrderedDict()
        self.bytes = 0
        """The size of what is kept."""
        self.hits = 0
        """The number of histories that were known; whoever reports it may set it to 0."""
        self.misses = 0
        """The number of histories that were encoded; as `hits`."""

    def encode_last(self, model: Model, histories: Histories) -> LastRepresentation:
        """Return `Model.encode_last` of B histories, none empty; unknown ones are encoded."""
        keys = [_key(model, histories[row : row + 1]) for row in range(len(histories))]
        rows = {key: row for row, key in enumerate(keys) if key not in self._kept}
        self.hits += len(keys) - len(rows)
        self.misses += len(rows)
        found = {key: self._kept[key] for key in keys if key not in rows}
        for key in found:
            self._kept.move_to_end(key)
        if rows:
            new = np.fromiter(rows.values(), np.int64, len(rows))
            encoded = model.encode_last(model_inputs(model, histories.take(new)))
            for place, key in enumerate(rows):
                found[key] = tuple(part[place : place + 1] for part in encoded)
                self._keep(key, found[key])
            if len(rows) == len(keys):
                return encoded
        return joined([found[key] for key in keys])

    def _keep(self, key: _Key, state: LastRepresentation) -> None:
        size = _size(key, state)
        if size > self._most_bytes:
            return
        while self.bytes + size > self._most_bytes:
            self.bytes -= _size(*self._kept.popitem(last=False))
        self._kept[key] = tuple(part.clone() for part in state)  # not the memory of the batch
        self.bytes += size


def _key(model: Model, history: Histories) -> _Key:
    """Return what the model reads of one history."""
    parts = [history.items.tobytes()]
    if model.times != "none" and (times := history.padded_times()) is not None:
        parts.append(times.tobytes())
    parts += [part.tobytes() for part in history.padded_features() or ()]
    return tuple(parts)


def _size(key: _Key, state: LastRepresentation) -> int:
    return sum(map(len, key)) + sum(map(_bytes, state))


def _bytes(part: Tensor) -> int:
    """Return the memory of a tensor; torch gives that of a GPU in pieces of 512 bytes."""
    return -(-part.nbytes // 512) * 512 if part.device.type == "cuda" else part.nbytes


def joined(states: Sequence[LastRepresentation]) -> LastRepresentation:
    """Join the representations of histories, right-padded to the longest."""
    if len(states) == 1:
        return states[0]
    return tuple(torch.cat(_of_one_width(parts)) for parts in zip(*states, strict=True))


def _of_one_width(parts: Sequence[Tensor]) -> list[Tensor]:
    """Pad what has positions, as the second-last dimension, to the longest."""
    if parts[0].dim() < 3:
        return list(parts)
    width = max(part.shape[-2] for part in parts)
    return [F.pad(part, (0, 0, 0, width - part.shape[-2])) for part in parts]
