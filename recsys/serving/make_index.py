"""Make an index of the items of a bundle, and measure what it finds and whether it is faster."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from recsys.data.prepared import Part, PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.held_out import find_holdout
from recsys.evaluation.search_metrics import SearchTime, choose_probes, recall_of, search_times
from recsys.inference.item_index import IndexedScorer, ItemIndex
from recsys.inference.model_scorer import StateCache
from recsys.serving.bundle import ModelBundle
from recsys.serving.bundle_index import STATES, BundleIndex, IndexManifest, query_encoder
from recsys.serving.held_out import for_evaluation

_MOST_HISTORIES = 1000
_USERS_TOGETHER = (1, 8, 64)
_K, _K_OF_TWO_STAGES = 10, 200
_ADVICE = {
    "index": "Use it for {} at a time",
    "exact": "Use exact search (no --index) for {} at a time",
}


@dataclass(frozen=True, slots=True, eq=False)
class MadeIndex:
    """An index that was written, and what was measured of it."""

    index: BundleIndex
    histories: int
    """The number of histories whose recall was measured; others decided how many lists are read."""
    build_seconds: float
    device: str
    """Where the model was timed: cpu, or cuda. The index is searched on the CPU."""
    times: list[SearchTime]

    @property
    def facts(self) -> dict[str, Any]:
        """What was measured, by name."""
        items, manifest = self.index.items, self.index.manifest
        return {
            "items": items.num_items,
            "lists": len(items.directions),
            "probes": items.probes,
            "items_read": round(items.items_read),
            "k": manifest.k,
            "recall": manifest.recall,
            "histories": self.histories,
            "device": self.device,
            "build_seconds": self.build_seconds,
            "mib": items.num_items * items.directions.shape[1] * 4 / 2**20,
        }

    @property
    def advice(self) -> str:
        """What was found, and which search to use, in two sentences or three."""
        facts = self.facts
        found = (
            f"The index reads {facts['probes']:,} of {facts['lists']:,} lists, about "
            f"{facts['items_read']:,} of {facts['items']:,} items, and finds {facts['recall']:.3f} "
            f"of the {facts['k']} best items ({facts['histories']:,} histories)."
        )
        by_use = {use: [row.users for row in self.times if row.use == use] for use in _ADVICE}
        where = "on the CPU" if self.device == "cpu" else "on the GPU"
        chosen = [
            f"{_ADVICE[use].format(_joined(users))} {where}."
            for use, users in by_use.items()
            if users
        ]
        even = self.times[0].break_even_items
        if even is not None:
            chosen.append(
                f"One user at a time, exact search is as fast up to about {even:,} items."
            )
        return " ".join([found, *chosen])


def make_index(
    bundle: ModelBundle,
    dataset: PreparedDataset,
    out: str | os.PathLike[str],
    *,
    wanted: float = 0.98,
    k: int | None = None,
    part: Part = "test",
    seed: int = 0,
) -> MadeIndex:
    """Write an index of the items of a bundle, and time it beside exact search.

    The model is timed where it is, on the CPU or on a GPU. With target attention, what the index
    replaces is the first stage, which is measured alone.

    Args:
        bundle: the model.
        dataset: its dataset, or a later one: the histories before its held-out targets are searched
            for.
        out: the folder; an earlier index there is replaced.
        wanted: the recall, 0 to 1, that decides how many lists a search reads.
        k: the items to find per user; 10 if None, or 200 for target attention.
        part: the part of the held-out targets.
        seed: of the draw of the histories.

    Raises:
        InputError: the scores of the model are no dot products, or it is evaluated on what it was
            trained on; k is larger than the catalogue; the folder cannot be written; or faiss is
            not installed.
    """
    exact = query_encoder(bundle)  # with target attention, of the first stage
    stages = bundle.model.head.kv_source is not None
    length = min(bundle.num_items, _K_OF_TWO_STAGES if stages else _K) if k is None else k
    if not 1 <= length <= bundle.num_items:
        raise InputError(f"k={k}: must be from 1 to {bundle.num_items}, the size of the catalogue")
    IndexManifest.previous(Path(out))  # before the work
    evaluated = for_evaluation(bundle, dataset, part)
    config = bundle.experiment.evaluation
    histories = find_holdout(evaluated, part, config.request_time).histories
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(histories.lengths))
    rows = rows[:_MOST_HISTORIES]
    half = max(1, len(rows) // 2)
    first, second = histories.take(rows[:half]), histories.take(rows[half:])
    second = second if len(second) else first

    started = time.perf_counter()
    vectors = exact.vectors()
    items = ItemIndex.build(vectors.float().cpu().numpy())
    built = time.perf_counter() - started

    seen = bundle.manifest.protocol.seen

    def scorer(searched: ItemIndex) -> IndexedScorer:
        """Return a scorer that knows no history yet."""
        encoder = query_encoder(bundle, StateCache(STATES))
        return IndexedScorer(exact, encoder, encoder, searched)

    chosen = choose_probes(scorer(items), first, length, seen, wanted).index
    found = recall_of(scorer(chosen), second, length, seen)
    times = search_times(partial(scorer, chosen), second, length, seen, _USERS_TOGETHER)
    index = BundleIndex.write(out, bundle, chosen, length, found)
    return MadeIndex(index, len(second), built, vectors.device.type, times)


def _joined(numbers: Sequence[int]) -> str:
    """Return numbers of users as text.

    >>> _joined([1]), _joined([1, 8, 64])
    ('1 user', '1, 8 and 64 users')
    """
    *most, last = map(str, numbers)
    text = f"{', '.join(most)} and {last}" if most else last
    return f"{text} user{'' if text == '1' else 's'}"
