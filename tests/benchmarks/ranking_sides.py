"""One side of `test_ranking.py`, in an interpreter of its own: prints seconds, memory, figures.

    python ranking_sides.py SIDE USERS ITEMS

All sides have the same scores: item vectors of 64 numbers, a user's vector the sum of those of the
50 items of the history, which are left out of the ranking. One target per user.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import numpy as np

DIM, LENGTH, K, BATCH = 64, 50, 10, 256


def data(users: int, items: int) -> tuple[Any, Any, Any]:
    """Item vectors [I + 1, D] (row 0 is no item), histories [U, 50] and targets [U] of item numbers
    from 1."""
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((items + 1, DIM), dtype=np.float32)
    vectors[0] = 0
    histories = generator.integers(1, items + 1, (users, LENGTH), dtype=np.int32)
    # Half of the targets are near the history's sum, so that recall is neither 0 nor 1.
    near = histories[:, 0] % items + 1
    vectors[near] += 2 * vectors[histories[:, 0]]
    return vectors, histories, near.astype(np.int32)


def ours(vectors: Any, histories: Any, targets: Any, lists: bool) -> dict[str, float]:
    """Exact ranks, metrics and their intervals; with the ten best items too if asked, in one pass
    as `evaluate_held_out` makes it."""
    import torch

    from recsys.data.histories import Histories
    from recsys.evaluation.metrics import summarise
    from recsys.inference.ranking import rank_targets, top_k
    from recsys.inference.scorer import Scored, user_batches

    class Sum:
        num_items = len(vectors) - 1

        def score(self, histories: Histories, candidates: Any = None) -> torch.Tensor:
            assert candidates is None
            items = torch.from_numpy(histories.items.astype(np.int64))
            offsets = torch.from_numpy(histories.offsets[:-1] - histories.offsets[0])
            weights = torch.from_numpy(vectors)
            users = torch.nn.functional.embedding_bag(items, weights, offsets, mode="sum")
            return users @ weights.T

    log, scorer = Histories.from_lists(histories.tolist()), Sum()
    ranks = np.empty(len(targets), dtype=np.int64)
    for batch in user_batches(len(log), scorer.num_items):
        some = log[batch]
        scored = Scored(scorer.score(some))
        ranks[batch] = rank_targets(scored, some, targets[batch], "filter")
        if lists:
            top_k(scored, some, K, "filter")
    names = [f"recall_at_{K}", f"ndcg_at_{K}"]
    found = summarise(ranks, np.arange(len(ranks)), names)
    return {name.split("_")[0]: found[name].mean for name in names}


def rectools(vectors: Any, histories: Any, targets: Any) -> dict[str, float]:
    """RecTools: its ranker over implicit, then its metrics."""
    import pandas as pd
    from rectools.metrics import NDCG, Recall, calc_metrics
    from rectools.models.rank import Distance, ImplicitRanker
    from scipy.sparse import csr_matrix

    users = np.arange(len(histories))
    factors = vectors[histories].sum(axis=1)
    pairs = (np.repeat(users, LENGTH), histories.ravel() - 1)
    shape = (len(users), len(vectors) - 1)
    seen = csr_matrix((np.ones(histories.size, dtype=np.float32), pairs), shape=shape)
    ranker = ImplicitRanker(Distance.DOT, factors, np.ascontiguousarray(vectors[1:]))
    rows, items, scores = ranker.rank(users, k=K, filter_pairs_csr=seen)
    reco = pd.DataFrame({"user_id": rows, "item_id": items, "score": scores})
    reco["rank"] = reco.groupby("user_id").cumcount() + 1
    truth = pd.DataFrame({"user_id": users, "item_id": targets - 1})
    # log_base 2 and one target: the same NDCG as ours once divided by what is achievable.
    metrics = {"recall": Recall(k=K), "ndcg": NDCG(k=K, divide_by_achievable=True)}
    return dict(calc_metrics(metrics, reco, truth))


def replay(vectors: Any, histories: Any, targets: Any) -> dict[str, float]:
    """RePlay: best items by torch.topk and its metrics on tensors, as its callbacks have them."""
    import torch
    from replay.metrics.torch_metrics_builder import TorchMetricsBuilder

    items = torch.from_numpy(vectors[1:])
    builder = TorchMetricsBuilder(["recall", "ndcg"], top_k=[K], item_count=len(items))
    builder.reset()
    for start in range(0, len(histories), BATCH):
        seen = torch.from_numpy(histories[start : start + BATCH].astype(np.int64)) - 1
        logits = items[seen].sum(dim=1) @ items.T
        logits.scatter_(1, seen, -torch.inf)
        best = logits.topk(K).indices
        truth = torch.from_numpy(targets[start : start + BATCH].astype(np.int64))[:, None] - 1
        builder.add_prediction(best, truth)
    found = builder.get_metrics()
    return {name: found[f"{name}@{K}"] for name in ("recall", "ndcg")}


def run(side: str, vectors: Any, histories: Any, targets: Any) -> dict[str, float]:
    """The figures that a side finds."""
    if side == "rectools":
        return rectools(vectors, histories, targets)
    if side == "replay":
        return replay(vectors, histories, targets)
    return ours(vectors, histories, targets, lists=side == "ours, with lists")


def main() -> None:
    """Run the side that is named, once for its imports and once for the clock."""
    side, users, items = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    run(side, *data(64, 256))
    everything = data(users, items)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    figures = run(side, *everything)
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "mib": (after - before) / 1024, **figures}))


if __name__ == "__main__":
    main()
