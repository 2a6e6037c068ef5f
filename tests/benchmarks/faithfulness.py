"""What the best recommendation loses without the purchase that explains it most.

    python tests/benchmarks/faithfulness.py BUNDLE DATA [USERS]

For users of the dataset, 1,000 drawn at random by default, the best recommendation is explained. It
is scored and ranked among all items again without the purchase of the largest contribution, and
without another one drawn at random. Users of fewer than two purchases are left out. For target
attention, of models that read nothing but items. Prints means with 95% bootstrap intervals.
"""

from __future__ import annotations

import sys

import numpy as np

from recsys import Recommender, load
from recsys.evaluation.metrics import bootstrap_means

MEASURES = ("score, top", "score, random", "rank, top", "rank, random", "top lowers score more")


def losses(model: Recommender, users: int, generator: np.random.Generator) -> list[list[float]]:
    """The measures of each user [N, 5]."""
    dataset, ids = model.dataset, model.bundle.vocabulary.ids
    assert dataset is not None
    # Without terms of single purchases the losses would be the explanations.
    if model.bundle.baseline is not None or not model.bundle.model.head.explains:
        raise SystemExit(f"{model.bundle.path}: has no target attention")
    everyone = dataset.user_ids
    drawn = np.sort(generator.choice(len(everyone), min(users, len(everyone)), replace=False))
    best = model.recommend(users=everyone.gather(drawn), k=1)
    rows = []
    for user, item in best.filter(source="model").select("user_id", "item_id").iter_rows():
        parts = model.explain(user=user, item=item).sort("position")
        if len(parts) < 2:
            continue
        top = int(parts["contribution"].to_numpy().argmax())
        other = int(generator.integers(len(parts) - 1))
        tokens = model.read_histories(users=[user]).histories.items
        first = len(tokens) - len(parts)  # the model reads the latest ones
        fewer = [np.delete(tokens, first + part) for part in (top, other + (other >= top))]
        lists = {name: ids.gather(kept - 1).to_list() for name, kept in enumerate([tokens, *fewer])}
        ranked = model.recommend(lists, k=model.bundle.num_items, seen="allow").filter(item_id=item)
        score, by_top, by_other = ranked["score"].to_list()
        rank, after_top, after_other = ranked["rank"].to_list()
        lost = [score - by_top, score - by_other, after_top - rank, after_other - rank]
        rows.append([*lost, float(lost[0] > lost[1])])
    return rows


if __name__ == "__main__":
    generator = np.random.default_rng(0)
    found = losses(load(*sys.argv[1:3]), int([*sys.argv, "1000"][3]), generator)
    counts = np.ones(len(found), dtype=np.int64)
    means = bootstrap_means(np.array(found).T, counts, generator)
    for measure, (mean, low, high) in zip(MEASURES, means, strict=True):
        print(f"{measure}: {mean:.3f} [{low:.3f}, {high:.3f}]")
    print(f"{len(found)} users")
