"""Splits, appends, comparisons, refits and answers in which faults once went unnoticed."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from numpy.typing import NDArray
from polars.testing import assert_frame_equal
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax

import recsys
from recsys import PreparedDataset, Recommender
from recsys.config.experiment import Experiment, StartConfig, TrackingConfig
from recsys.data.entity_tables import converted
from recsys.data.where import keep_where
from recsys.errors import InputError, undivided
from recsys.experiments.baselines import fit_baseline
from recsys.experiments.suite import backtest
from recsys.experiments.tune import Range, Search, tune
from recsys.reports.statistics import paired_difference
from recsys.tracking.store import find_runs
from tests.helpers.commands import run_json
from tests.helpers.logs import log_of_histories
from tests.helpers.server_process import Process, process
from tests.small_models import ACTIONS, HISTORIES, ITEMS, LOG, WINDOW, train

if TYPE_CHECKING:
    from recsys.experiments.results import Run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return recsys.prepare(LOG, out=tmp_path_factory.mktemp("unseen") / "data")


# --- Reading -------------------------------------------------------------------------------------


def test_each_file_of_a_pattern_is_read_once_and_by_its_own_name(tmp_path: Path) -> None:
    """A folder of parts is called as they are; a name may be a pattern itself."""
    logs = [log_of_histories({user: "abcd"}) for user in "xyz"]
    (tmp_path / "days" / "day.parquet").mkdir(parents=True)
    logs[0].write_parquet(tmp_path / "days" / "day.parquet" / "part.parquet")
    data = recsys.prepare(f"{tmp_path}/days/**/*.parquet", out=tmp_path / "once")
    assert len(data.items) == 4
    for log, name in zip(logs, ("a1.csv", "a[1].csv", "other.csv"), strict=True):
        log.write_csv(tmp_path / name)
    (tmp_path / "a[2].csv").symlink_to(tmp_path / "other.csv")
    data = recsys.prepare(f"{tmp_path}/a*", out=tmp_path / "named[1]")
    assert data.user_ids.to_list() == ["x", "y", "z"]


def test_a_signal_is_not_lost_where_the_block_that_it_waits_for_fails() -> None:
    @undivided()
    def fail() -> None:
        signal.raise_signal(signal.SIGINT)
        raise InputError("a fault")

    with pytest.raises(KeyboardInterrupt):
        fail()


@pytest.mark.parametrize("more", [{"where": "rowid > 0"}, {"keep": ["rowid"]}])
def test_a_column_that_hides_the_numbers_of_rows_is_refused(
    more: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="rename.*rowid.*as which DuckDB numbers rows"):
        recsys.prepare(LOG.with_columns(rowid=1), out=tmp_path / "data", **more)


@pytest.mark.parametrize("where", ["1+" * 900 + "1 = 2", "item_id = '\ud800'"])
def test_a_condition_that_no_parser_holds_is_refused(where: str) -> None:
    with pytest.raises(InputError, match="is too long, or has characters that are none"):
        keep_where(LOG, where, "log")


def test_integers_beside_missing_ones_stay_exact() -> None:
    large = converted(pl.Series(["9007199254740993", None]), pl.Int64())
    assert large is not None
    assert large.to_list() == [9_007_199_254_740_993, None]


# --- Splits --------------------------------------------------------------------------------------


def test_the_cuts_in_time_are_those_of_all_users(tmp_path: Path) -> None:
    """Early users come first, and there are more interactions than are read at a time."""
    users, length = 2_300, 500
    numbers = np.arange(users * length)
    log = pl.DataFrame({"user_id": numbers // length, "item_id": numbers % 7, "timestamp": numbers})
    split = {"kind": "global_time", "test_fraction": 0.2, "valid_fraction": 0.1}
    data = recsys.prepare(log, out=tmp_path / "data", split=split)
    first_test, first_valid = round(0.8 * len(log)), round(0.7 * len(log))
    ends = np.clip(np.array([first_valid, first_test]) - data.offsets[:-1, None], 0, length)
    np.testing.assert_array_equal(data.cuts[:, :2], ends)


@pytest.mark.parametrize("kind", ["global_time", "user_holdout"])
def test_both_fractions_are_of_the_whole_log(tmp_path: Path, kind: str) -> None:
    numbers = np.arange(1_000)
    log = pl.DataFrame({"user_id": numbers % 100, "item_id": numbers % 7, "timestamp": numbers})
    split = {"kind": kind, "test_fraction": 0.4, "valid_fraction": 0.3}
    data = recsys.prepare(log, out=tmp_path / "data", split=split)
    counts = data.manifest.counts
    assert [counts[part] for part in ("train", "valid", "test")] == [300, 300, 400]


def test_lists_are_those_of_the_test_targets_that_are_sampled(tmp_path: Path) -> None:
    split = {"kind": "leave_last_out", "targets": 2}
    data = recsys.prepare(LOG, out=tmp_path / "data", split=split)
    where = TrackingConfig(uri=f"sqlite:///{tmp_path}/mlflow.db")
    few = Experiment(name="few", baseline="popularity", tracking=where)
    fit_baseline(few, data, test=data.holdout("test").sample(5, 0))
    (run,) = find_runs(["few"], where, "test", ["next_lists"])
    assert run.lists is not None
    assert len(run.lists.frame) == 5


# --- Growth --------------------------------------------------------------------------------------


def items_of(data: PreparedDataset) -> dict[str, list[str | None]]:
    """The items of each user, oldest first; None for those outside the catalogue."""
    table = data.interaction_table.group_by("user_id", maintain_order=True).agg("item_id")
    return dict(table.sort("user_id").iter_rows())


def test_items_outside_the_catalogue_keep_their_ids_when_logs_are_appended(tmp_path: Path) -> None:
    """Capital letters are test targets alone at first. New users sort before known ones."""
    logs = [
        log_of_histories({"dan": "abcZ", "eve": "bcaX", "fay": "cabY"}, start=0),
        log_of_histories({"ann": "abT", "dan": "aS", "fay": "bW"}, start=10),
        log_of_histories({"ann": "ca", "bob": "acR", "dan": "bc", "fay": "cQ"}, start=20),
    ]
    data = recsys.prepare(logs[0], out=tmp_path / "grown")
    assert items_of(data) == {"dan": [*"abc", None], "eve": [*"bca", None], "fay": [*"cab", None]}
    for count, log in enumerate(logs[1:], 2):
        data = recsys.append(log, data.path)
        whole = recsys.prepare(pl.concat(logs[:count]), out=tmp_path / f"whole-{count}")
        assert items_of(data) == items_of(whole)
    assert items_of(data) == {
        "ann": [*"abTca"],
        "bob": [*"ac", None],
        "dan": [*"abcZaSbc"],
        "eve": [*"bca", None],
        "fay": [*"cabYbWc", None],
    }


def test_a_log_of_early_dates_grows(tmp_path: Path) -> None:
    """Their numbers alone could be anything."""
    log = LOG.with_columns(pl.date(1971, 1, 1 + pl.col("timestamp")).alias("timestamp"))
    later = log.with_columns(pl.col("timestamp").dt.offset_by("1y"))
    data = recsys.prepare(log, out=tmp_path / "data", since="1970-06-01")
    assert len(recsys.append(later, data.path).items) == 2 * len(log)


# --- Comparisons ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(data: PreparedDataset) -> dict[str, Run]:
    changes = {
        "first": [],
        "second": ["seed=1"],
        "faster": ["training.learning_rate=0.2"],
        "counting": ["count_ensemble={}"],
    }
    return {name: train(data, name, *change) for name, change in changes.items()}


def ndcg(run: Run) -> NDArray[np.float64]:
    ranks = pl.read_parquet(run.bundle.parent / "ranks_test.parquet")["rank"].to_numpy()
    return np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0)


def test_pooled_runs_are_tested_by_the_means_of_their_seeds(runs: dict[str, Run]) -> None:
    seeds = [runs["first"], runs["second"], runs["faster"]]
    compared = recsys.compare(seeds, pooled=True).rows[1].differences["ndcg_at_10"]
    pooled = (ndcg(runs["first"]) + ndcg(runs["second"])) / 2
    assert compared == paired_difference(ndcg(runs["faster"]), pooled)


def test_an_item_bought_for_validation_is_a_repeat_in_the_test(runs: dict[str, Run]) -> None:
    ranks = pl.read_parquet(runs["first"].bundle.parent / "ranks_test.parquet")
    repeats = [items[-1] in items[:-1] for items in HISTORIES.values()]
    assert repeats != [items[-1] in items[:-2] for items in HISTORIES.values()]
    assert (ranks["purchase"] == "repeat").to_list() == repeats


@pytest.fixture(scope="module")
def attention(data: PreparedDataset) -> Run:
    return train(data, "attention")


def scores_of(bundle: Path, histories: dict[str, list[str]] = HISTORIES) -> NDArray[np.float64]:
    """The scores of all items for each user [B, I]."""
    scores = recsys.load(bundle).score(histories, ITEMS)["score"].to_list()
    return np.array(scores, dtype=np.float64).reshape(len(histories), len(ITEMS))


def before(held_out: int) -> tuple[dict[str, list[str]], list[int]]:
    """The histories before the target of a part, and the number of each target among the items."""
    histories = {user: items[:-held_out] for user, items in HISTORIES.items()}
    return histories, [ITEMS.index(items[-held_out]) for items in HISTORIES.values()]


# --- Refits --------------------------------------------------------------------------------------


def test_the_refit_of_a_warm_start_begins_with_its_model_too(data: PreparedDataset) -> None:
    """At a rate of next to nothing, the refitted model is the one that it started from."""
    first = train(data, "refitted", "training.refit=true")
    later = LOG.tail(1).with_columns(pl.col("timestamp") + 100)
    grown = recsys.prepare(pl.concat([LOG, later]), out=data.path.parent / "grown")
    again = train(grown, "again", "training.learning_rate=1e-9", start=first.bundle)
    assert recsys.compare([again]).rows[0].trained_on == "train, valid"
    np.testing.assert_allclose(scores_of(again.bundle), scores_of(first.bundle), atol=1e-5)


def test_a_mean_is_validated_without_the_refit_of_its_members(data: PreparedDataset) -> None:
    heads = [{"kind": "dot_product"}, {"kind": "target_attention", "num_heads": 1}]
    sizes = {"embedding_dim": 8, "num_blocks": 1, "num_heads": 1, "max_sequence_length": WINDOW}
    members = [{"model": {**sizes, "head": head}} for head in heads]
    model = f"model={json.dumps({'kind': 'averaged', 'members': members})}"
    mean, refitted = (
        train(data, f"mean-{refit}", model, f"training.refit={refit}")
        for refit in ("false", "true")
    )
    assert refitted.valid == mean.valid
    measured = run_json("evaluate", mean.bundle, "--data", data.path, "--part", "valid")
    by_name = {row["metric"]: row["mean"] for row in measured}
    assert mean.valid["ndcg_at_10"].mean == pytest.approx(by_name["ndcg_at_10"])
    assert np.abs(scores_of(refitted.bundle) - scores_of(mean.bundle)).max() > 1e-3


# --- Probabilities -------------------------------------------------------------------------------


def temperature_by_hand(scores: NDArray[np.float64], targets: list[int]) -> float:
    """The temperature with the least log loss; items of -inf are as good as absent."""

    def log_loss(logarithm: float) -> float:
        scaled = scores / np.exp(logarithm)
        return float((logsumexp(scaled, axis=1) - scaled[np.arange(len(targets)), targets]).mean())

    return float(np.exp(minimize_scalar(log_loss, (-3.0, 3.0)).x))


def test_the_temperature_is_that_of_the_validation_targets(attention: Run) -> None:
    histories, targets = before(2)
    expected = temperature_by_hand(scores_of(attention.bundle, histories), targets)
    fitted = recsys.load(attention.bundle).bundle.manifest.temperature
    assert fitted == pytest.approx(expected, rel=1e-2)


def test_probabilities_are_those_among_all_items(attention: Run) -> None:
    model = recsys.load(attention.bundle)
    temperature = json.loads((attention.bundle / "manifest.json").read_text())["temperature"]
    probabilities = softmax(scores_of(attention.bundle) / temperature, axis=1)
    best = model.recommend(HISTORIES, k=3, probabilities=True)["probability"].to_numpy()
    expected = -np.sort(-probabilities, axis=1)[:, :3]
    np.testing.assert_allclose(best.reshape(-1, 3), expected, rtol=1e-4)
    some = model.score(HISTORIES, ITEMS[4:6], probabilities=True)["probability"].to_numpy()
    np.testing.assert_allclose(some.reshape(-1, 2), probabilities[:, 4:6], rtol=1e-4)
    allowed = model.recommend(HISTORIES, k=1, allow=ITEMS[4:5], probabilities=True)["probability"]
    np.testing.assert_allclose(allowed, probabilities[:, 4], rtol=1e-4)


# --- Answers in Python and over HTTP -------------------------------------------------------------

USERS = list(HISTORIES)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    folder = tmp_path_factory.mktemp("answers")
    return recsys.prepare(LOG, out=folder / "data", keep=["action"])


@pytest.fixture(scope="module")
def other_data(kept: PreparedDataset) -> PreparedDataset:
    """The same purchases, and earlier in the order of the ids some items that the model lacks."""
    rows = [(f"visitor-{n}", f"a-{n}", 0, "view") for n in range(3)]
    log = pl.concat([LOG, pl.DataFrame(rows, schema=LOG.schema, orient="row")])
    return recsys.prepare(log, out=kept.path.parent / "other", keep=["action"])


@pytest.fixture(scope="module")
def bundle(kept: PreparedDataset) -> Path:
    """A model that reads what users did with the items, with counts of transitions and repeats."""
    features = "model.interaction_features=[action]"
    return train(kept, "counting", features, "count_ensemble={weights: [0.5, 1.0]}").bundle


@pytest.fixture(scope="module")
def model(bundle: Path, other_data: PreparedDataset) -> Recommender:
    return recsys.load(bundle, other_data)


@pytest.fixture(scope="module")
def server(bundle: Path, other_data: PreparedDataset) -> Iterator[Process]:
    with process(bundle, "--data", other_data.path, "--gather-ms", 200) as started:
        yield started


def log_of(items: list[str], actions: list[str] = ACTIONS) -> pl.DataFrame:
    done = [actions[place % len(actions)] for place in range(len(items))]
    columns = {"user_id": "user", "item_id": items, "timestamp": range(len(items)), "action": done}
    return pl.DataFrame(columns)


def ask(server: Process, path: str, **body: Any) -> Any:
    status, answer = server.answer(f"/v1/{path}", body)
    assert status == 200, answer
    return answer


def rows_of(log: pl.DataFrame) -> list[dict[str, Any]]:
    return log.drop("user_id").to_dicts()


def by_item(answer: Any) -> dict[str, float]:
    rows = answer.to_dicts() if isinstance(answer, pl.DataFrame) else answer["items"]
    return {row["item_id"]: row["score"] for row in rows}


def close(scores: dict[str, float]) -> Any:
    return pytest.approx(scores, abs=1e-5)


def test_a_kept_state_is_of_one_history_with_its_features(
    server: Process, model: Recommender
) -> None:
    answers = []
    for actions in (["view"], ["buy"], ["view", "buy"], ["view"]):
        log = log_of(ITEMS[:4], actions)
        answers.append(by_item(ask(server, "recommend", log=rows_of(log), k=12)))
        assert answers[-1] == close(by_item(model.recommend(log, k=12)))
    assert answers[0] != close(answers[1])


def test_repeats_are_counted_in_the_whole_history(server: Process, model: Recommender) -> None:
    """Beyond what the model and the counts of transitions read, log(1 + n) alone grows."""
    item, tail = ITEMS[0], ITEMS[1:6]
    scores = []
    for count in (400, 800, 1600):
        log = log_of([item] * count + tail, ["view"])
        (score,) = model.score(log, [item])["score"]
        assert by_item(model.recommend(log, k=12))[item] == pytest.approx(score, abs=1e-5)
        answer = ask(server, "score", log=rows_of(log), candidates=[item])
        assert by_item(answer) == close({item: score})
        why = model.explain(log, item)
        assert why["contribution"].sum() + why["rest"][0] == pytest.approx(score, abs=1e-4)
        scores.append(score)
    growth = (scores[1] - scores[0]) / math.log(801 / 401)
    assert growth > 0.1
    assert (scores[2] - scores[1]) / math.log(1601 / 801) == pytest.approx(growth, rel=1e-3)


def test_users_of_another_dataset_have_the_items_of_their_ids(
    server: Process, model: Recommender
) -> None:
    logs = {user: LOG.filter(user_id=user) for user in USERS[:5]}
    best = model.recommend(users=USERS[:5], k=12).partition_by("user_id", maintain_order=True)
    for (user, log), own in zip(logs.items(), best, strict=True):
        expected = close(by_item(model.recommend(log, k=12)))
        assert by_item(own) == expected
        assert by_item(model.score(users=[user], candidates=ITEMS)) == expected
        assert by_item(ask(server, "recommend", user_id=user, k=12)) == expected
        assert by_item(ask(server, "score", user_id=user, candidates=ITEMS)) == expected
        why, theirs = model.explain(log, ITEMS[0]), model.explain(user=user, item=ITEMS[0])
        assert_frame_equal(why, theirs)


def test_items_outside_the_catalogue_of_a_dataset_count_where_the_model_has_them(
    attention: Run, tmp_path: Path
) -> None:
    history = ITEMS[:4]  # the last one is a test target alone
    held = recsys.prepare(log_of_histories({"ann": history, "bob": ITEMS[:3]}), out=tmp_path / "x")
    model = recsys.load(attention.bundle, held)
    best = model.recommend(users=["ann"], k=8, seen="filter")
    expected = model.recommend([history], k=8, seen="filter")
    assert held.num_items < 4
    assert by_item(best) == close(by_item(expected))


def test_a_job_of_slurm_with_several_tasks_trains(
    data: PreparedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "training"}.items():
        monkeypatch.setenv(name, value)
    assert train(data, "slurm").test


def test_a_baseline_is_recorded_once_the_store_is_back(
    data: PreparedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails, send = iter([True]), MlflowClient.log_artifact

    def log_artifact(*words: Any) -> None:
        if next(fails, False):
            raise MlflowException("the store is away")
        send(*words)

    monkeypatch.setattr(MlflowClient, "log_artifact", log_artifact)
    where = TrackingConfig(uri=f"sqlite:///{data.path.parent}/mlflow.db")
    fit_baseline(Experiment(name="late", baseline="popularity", tracking=where), data)
    (run,) = find_runs(["late"], where, "test")
    assert len(run.ranks.frame)


def test_what_cannot_be_compared_is_refused_before_it_is_trained(tmp_path: Path) -> None:
    started = Experiment(start=StartConfig(bundle="bundle"))
    with pytest.raises(InputError, match="backtest: .*leave start out"):
        backtest("model", started, [])
    split = {"kind": "leave_last_out", "targets": 5}
    log = log_of_histories(dict.fromkeys("xyz", ITEMS[:8]))
    data = recsys.prepare(log, out=tmp_path / "data", split=split)
    search = Search(trials=1, space={"model.dropout": Range(low=0.1, high=0.2)})
    with pytest.raises(InputError, match="leaves no valid targets"):
        tune(Experiment(tracking={"uri": f"sqlite:///{tmp_path}/m.db"}), data, search)  # type: ignore[arg-type]
