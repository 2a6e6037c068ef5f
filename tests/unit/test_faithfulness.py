"""Whether explanations are true: a score falls without the purchase that explains it most."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from recsys.cli import app
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.serving.bundle import ModelBundle
from recsys.serving.faithfulness import MEASURES, measure_faithfulness
from recsys.serving.recommender import Recommender


def test_the_measures_are_those_of_deleted_purchases(tiny_bundle: ModelBundle) -> None:
    recommender = Recommender(tiny_bundle)
    # Of two purchases, the other one is no draw.
    histories = [["boots", "hat"], ["socks", "jacket"], ["hat", "gloves"], ["boots", "socks"]]
    lost, ranks = [], []
    for history in histories:
        best = recommender.recommend([history], k=1)["item_id"][0]
        parts = recommender.explain(history, best).sort("position")
        top = int(np.argmax(parts["contribution"]))
        tables = [
            recommender.recommend([left], k=5, seen="allow").filter(item_id=best)
            for left in (history, [history[1 - top]], [history[top]])
        ]
        score, *without = (table["score"][0] for table in tables)
        lost.append([score - other for other in without])
        rank, *later = (table["rank"][0] for table in tables)
        ranks.append([other - rank for other in later])
    found = measure_faithfulness(recommender, [*histories, ["hat"], []], seed=3)
    assert found.histories == len(histories)
    means = [found.score_drop_top.mean, found.score_drop_random.mean]
    assert means == pytest.approx(np.mean(lost, axis=0), abs=1e-5)
    means = [found.rank_drop_top.mean, found.rank_drop_random.mean]
    assert means == pytest.approx(np.mean(ranks, axis=0))
    share = np.mean([one > other for one, other in lost])
    assert found.top_lowers_more.mean == share
    assert found.top_lowers_more.low <= share <= found.top_lowers_more.high


def test_only_purchases_that_the_model_reads_are_taken_away(tiny_bundle: ModelBundle) -> None:
    recommender = Recommender(tiny_bundle)
    history = ["jacket", "socks", "hat", "boots", "hat"]  # it reads the latest three
    best = recommender.recommend([history], k=1)["item_id"][0]
    position = recommender.explain(history, best)["position"][0]
    assert position >= 2
    less = [*history[:position], *history[position + 1 :]]
    scores = [recommender.score([given], [best])["score"][0] for given in (history, less)]
    found = measure_faithfulness(recommender, [history])
    assert found.score_drop_top.mean == pytest.approx(scores[0] - scores[1], abs=1e-5)


def test_the_command_reports_all_measures_and_repeats_them(
    tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset
) -> None:
    known = ["faithfulness", str(tiny_bundle.path), "--data", str(tiny_dataset.path), "--json"]
    shown = [CliRunner().invoke(app, [*known, "--seed", seed]).stdout for seed in "110"]
    assert shown[0] == shown[1]
    rows = json.loads(shown[0])
    assert [row["measure"] for row in rows] == list(MEASURES)
    assert {row["seed"] for row in rows} == {1}
    assert all(row["low"] <= row["mean"] <= row["high"] for row in rows)
    found = measure_faithfulness(Recommender(tiny_bundle, tiny_dataset), sample=3, seed=1)
    assert found.histories <= 3


def test_a_model_without_parts_is_refused(
    tiny_dot_bundle: ModelBundle, tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset
) -> None:
    with pytest.raises(InputError, match="explained by taking purchases away"):
        measure_faithfulness(Recommender(tiny_dot_bundle, tiny_dataset))
    with pytest.raises(InputError, match="give either histories or users"):
        measure_faithfulness(Recommender(tiny_bundle))
