"""Another system's scores under our protocol: ranked, tracked and compared as a model's."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from recsys.config.experiment import Experiment
from recsys.config.files import parse_experiment
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.evaluation.held_out import find_holdout
from recsys.experiments.baselines import fit_baseline
from recsys.experiments.predictions import evaluate_predictions, read_scores
from recsys.reports.comparison import compare
from recsys.reports.statistics import PairedResult
from recsys.serving.recommender import Recommender
from recsys.tracking.store import find_runs
from tests.helpers.commands import refused, run_json


def make_experiment(tmp_path: Path, name: str, seen: str) -> Experiment:
    store = {"uri": f"sqlite:///{tmp_path}/mlflow.db"}
    return parse_experiment({"name": name, "evaluation": {"seen": seen}, "tracking": store})


@pytest.mark.parametrize("seen", ["filter", "allow"])
def test_our_own_scores_as_a_file_have_our_own_ranks(
    tiny_dataset: PreparedDataset, tmp_path: Path, seen: str
) -> None:
    experiment = make_experiment(tmp_path, "ours", seen)
    ours = experiment.model_copy(update={"baseline": "markov"})
    run = fit_baseline(ours, tiny_dataset, tmp_path / "ours")
    holdout = find_holdout(tiny_dataset, "test", "unknown")
    vocabulary = tiny_dataset.vocabulary
    histories = {
        tiny_dataset.user_ids[int(user)]: vocabulary.decode(holdout.histories[row : row + 1].items)
        for user, row in zip(holdout.users, holdout.history_rows, strict=True)
    }
    scored = Recommender.load(run.bundle).score(
        {user: items.to_list() for user, items in histories.items()}, vocabulary.ids.to_list()
    )
    file = tmp_path / "theirs.parquet"
    # Shuffled, on another scale, with a user and an item that the dataset lacks.
    more = pl.DataFrame({"user_id": ["zoe", "ann"], "item_id": ["hat", "tent"], "score": [9.0, 9]})
    table = scored.select("user_id", "item_id", pl.col("score").cast(pl.Float64) * 1e9 - 5)
    pl.concat([table, more]).sample(fraction=1, shuffle=True, seed=1).write_parquet(file)
    theirs = evaluate_predictions(file, make_experiment(tmp_path, "theirs", seen), tiny_dataset)
    assert (theirs["targets"], theirs["without_score"]) == (len(holdout.targets), 0)
    assert {name: theirs[name] for name in run.test} == {n: i.mean for n, i in run.test.items()}
    mine, other = find_runs(["ours", "theirs"], experiment.tracking, "test")
    assert mine.ranks.frame.equals(other.ranks.frame)
    first, second = compare(["ours", "theirs"], experiment.tracking).rows
    assert second.model == "predictions"
    assert second.differences["ndcg_at_10"] == PairedResult(0, 0, 0, 1)
    assert first.metrics == second.metrics


def test_items_without_a_score_tie_below_all_with_one(
    tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    """ann's jacket is scored between two others, dan's not, the others have no list at all."""
    pairs = [("ann", "jacket", 0.0), ("ann", "socks", 1.0), ("ann", "boots", -5.0)]
    pairs += [("dan", "boots", -1e30), ("dan", "jacket", float("-inf"))]
    table = pl.DataFrame(pairs, schema=["user_id", "item_id", "score"], orient="row")
    experiment = make_experiment(tmp_path, "theirs", "filter")
    found = evaluate_predictions(table, experiment, tiny_dataset)
    (run,) = find_runs(["theirs"], experiment.tracking, "test")
    users = tiny_dataset.user_ids.gather(run.ranks.frame["user"]).to_list()
    ranks = dict(zip(users, run.ranks.frame["rank"].to_list(), strict=True))
    lengths = dict(zip(users, run.ranks.frame["history_length"].to_list(), strict=True))
    assert ranks["ann"] == 2
    assert all(ranks[user] >= 5 - lengths[user] for user in users if user != "ann")
    assert found["without_score"] == found["targets"] - 1
    assert run.run.data.metrics["targets_unscored"] == found["without_score"]
    coverage = run.run.data.metrics["test/coverage_at_5"]
    assert coverage == pytest.approx(3 / 5), "what has no score is in no list"


def test_whole_floats_are_ids(tmp_path: Path) -> None:
    """As pandas has them after a merge."""
    log = pl.DataFrame({"user_id": [1] * 4, "item_id": [5, 6, 7, 5], "timestamp": range(4)})
    table = pl.DataFrame({"user_id": [1.0], "item_id": ["5.0"], "score": [1]})
    assert read_scores(table, prepare(log, out=tmp_path / "data")).nnz == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("ann", "hat", "much")], "row 1: score 'much' is no number"),
        ([("ann", "hat", 1.0), ("ann", "hat", 2.0)], "user_id 'ann' has item_id 'hat' twice"),
        ([("ann", "hat", float("nan"))], "is no number"),
        ([(1, 2, 0.5)], r"no row is of a user and an item of the dataset; row 1: \(1, 2, 0.5\)"),
    ],
)
def test_wrong_predictions_are_one_line(
    tiny_dataset: PreparedDataset, tmp_path: Path, rows: list[tuple[object, ...]], message: str
) -> None:
    table = pl.DataFrame(rows, schema=["user_id", "item_id", "score"], orient="row")
    with pytest.raises(InputError, match=message):
        evaluate_predictions(table, make_experiment(tmp_path, "x", "filter"), tiny_dataset)
    assert not (tmp_path / "mlflow.db").exists()


def test_the_command_tracks_a_file(
    tiny_dataset: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("als.csv").write_text("user_id,item_id,score\nann,jacket,3\ndan,jacket,0.5\n")
    data, predictions = ("--data", tiny_dataset.path), ("--predictions", "als.csv")
    (row,) = run_json("evaluate", *predictions, *data, "--set", "evaluation.seen=allow")
    assert row["without_score"] == row["targets"] - 2
    assert compare([], Experiment().tracking).rows[0].name == "als"
    assert refused("evaluate", "runs/mine", *predictions, *data)
    assert refused("evaluate", *data)
    assert "own settings" in refused("evaluate", *predictions, *data, "--set", "data.k_core=true")
