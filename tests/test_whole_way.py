"""From a CSV to recommendations through the commands, as a user types them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from mlflow import MlflowClient

from recsys.baselines.tuned import BASELINES
from recsys.errors import InputError
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from recsys.shop.simulation import make_shop
from tests.helpers.terminal import Terminal

CONFIG = """
name: small
data: {source: purchases.csv, columns: {user_id: customer, item_id: sku, timestamp: bought_at}}
model:
  embedding_dim: 16
  feed_forward_dim: 16
  max_sequence_length: 20
  head: {kind: target_attention, num_heads: 2, head_dim: 8}
training: {max_epochs: 2, batch_tokens: 2000, learning_rate: 5e-3, refit: true}
evaluation: {seen: allow, cutoffs: [5, 10]}
"""
COLUMNS = ("--user", "customer", "--item", "sku", "--time", "bought_at")
USER = "C00007"
SHORT = ("--set", "training.max_epochs=1")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the tests share: a log, the histories of a user, and an experiment."""
    home = tmp_path_factory.mktemp("home")
    log = make_shop(seed=0, num_customers=150).interactions
    log = log.rename({"user_id": "customer", "item_id": "sku", "timestamp": "bought_at"})
    log.write_csv(home / "purchases.csv")
    log.filter(pl.col("customer") == USER).write_csv(home / "histories.csv")
    (home / "small.yaml").write_text(CONFIG)
    return home


@pytest.fixture
def terminal(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Terminal:
    monkeypatch.chdir(home)
    return Terminal(monkeypatch, capsys)


@pytest.fixture
def trained(terminal: Terminal) -> dict[str, Any]:
    """What the training of the experiment on data/mine printed; it is trained once."""
    if not Path("data/mine").exists():
        (prepared,) = terminal.json("prepare", "purchases.csv", *COLUMNS, "--out", "data/mine")
        assert prepared["users"] == 150
        (row,) = terminal.json("train", "small.yaml", "--data", "data/mine")
        TRAINED.update(row)
    return TRAINED


TRAINED: dict[str, Any] = {}


def test_from_a_csv_to_recommendations(terminal: Terminal, trained: dict[str, Any]) -> None:
    for name in ("bundle/weights.safetensors", "ranks_test.parquet"):
        assert Path("runs/small", name).is_file()
    bundle, data = trained["bundle"], ("--data", "data/mine")
    best = terminal.json("recommend", bundle, "--user", USER, *data, "-k", "3")
    assert [row["rank"] for row in best] == [1, 2, 3]

    item = ("--item", best[0]["item_id"])
    why = terminal.json("explain", bundle, "--user", USER, *item, *data)
    total = sum(row["contribution"] for row in why) + why[0]["rest"]
    assert total == pytest.approx(best[0]["score"], abs=1e-4)

    items = [row["item_id"] for row in best]
    pl.DataFrame({"user_id": [USER] * 3, "item_id": items}).write_csv("candidates.csv")
    words = ("histories.csv", "candidates.csv", "--out", "scores.parquet")
    assert terminal("score", bundle, *words)[0] == 0
    scores = pl.read_parquet("scores.parquet")["score"].to_list()
    assert scores == pytest.approx([row["score"] for row in best], abs=1e-5)


def test_held_out_targets_are_ranked_as_in_training(
    terminal: Terminal, trained: dict[str, Any]
) -> None:
    words = ("evaluate", trained["bundle"], "--data", "data/mine")
    figures = {row["metric"]: row["mean"] for row in terminal.json(*words)}
    assert figures["ndcg_at_10"] == pytest.approx(trained["ndcg_at_10"])
    bought = pl.read_csv("purchases.csv").select(user_id="customer", item_id="sku")
    bought.write_csv("among.csv")
    few = terminal.json(*words, "--candidates", "among.csv")
    assert {row["metric"]: row["mean"] for row in few}["mrr"] > figures["mrr"]
    bought.head(1).write_csv("among.csv")
    assert "error: among.csv: item_id " in terminal.refused(*words, "--candidates", "among.csv")
    assert "was trained on the validation targets" in terminal.refused(*words, "--part", "valid")


def test_trainings_show_their_metrics_and_are_compared(
    terminal: Terminal, trained: dict[str, Any]
) -> None:
    other = ("--set", "name=other", "--set", "model.head={kind: dot_product}")
    _, out, _ = terminal("train", "small.yaml", "--data", "data/mine", *other)
    assert "ndcg@10" in out
    assert out.splitlines()[-1].startswith("http://127.0.0.1:5000/#/exp")
    compared = terminal.json("compare", "small", "other")
    assert [row["model"] for row in compared] == ["target_attention", "dot_product"]
    assert compared[0]["ndcg_at_10"] == pytest.approx(trained["ndcg_at_10"])
    status, out, _ = terminal("compare")
    assert (status, "small" in out, "NDCG@10" in out) == (0, True, True)


@pytest.mark.slow
def test_two_stages_and_the_targets_they_miss(terminal: Terminal, trained: dict[str, Any]) -> None:
    data = ("--data", "data/mine")
    query = ("recommend", trained["bundle"], "--user", USER, *data, "-k", "3")
    one, two = terminal.json(*query), terminal.json(*query, "--retrieve", "9999")
    assert [row["item_id"] for row in two] == [row["item_id"] for row in one]
    words = ("evaluate", trained["bundle"], *data)
    few, whole = (
        {row["metric"]: row["mean"] for row in terminal.json(*words, "--retrieve", size)}
        for size in ("5", "9999")
    )
    assert few["recall_at_10"] == few["recall_at_5"] <= whole["recall_at_10"]
    assert whole["ndcg_at_10"] == pytest.approx(trained["ndcg_at_10"])
    assert "retrieve=2: must be at least 3" in terminal.refused(*query, "--retrieve", "2")


def test_two_stages_need_target_attention(tiny_dot_bundle: ModelBundle) -> None:
    with pytest.raises(InputError, match="two stages need target attention, and dot_prod"):
        Recommender(tiny_dot_bundle).recommend([["hat"]], k=1, retrieve=2)


@pytest.mark.slow
def test_generate_writes_lists(terminal: Terminal) -> None:
    model = "model={kind: sequence_to_sequence, embedding_dim: 16, max_generated: 6}"
    split = "data.split={kind: leave_last_out, targets: 3}"
    changes = ("--set", model, "--set", split, "--set", "name=lists")
    (trained,) = terminal.json("train", "small.yaml", *changes)
    assert 0 <= trained["next_recall_at_3"] <= 1
    words = ("generate", trained["bundle"], "histories.csv", "-n", "4")
    greedy, beam = terminal.json(*words), terminal.json(*words, "--beam", "3")
    assert [row["step"] for row in greedy] == [1, 2, 3, 4]
    assert beam[0]["log_probability"] >= greedy[0]["log_probability"] - 1e-5
    sample = ("--sample", "--top-p", "0.9", "--temperature", "0.7", "--seed", "3")
    assert terminal.json(*words, *sample) == terminal.json(*words, *sample)
    few = pl.read_csv("histories.csv").head(3).select(item_id="sku")
    few.write_csv("few.csv")
    rows = terminal.json(*words, "--candidates", "few.csv", "--repeats")
    assert {row["item_id"] for row in rows} <= {*few["item_id"]}
    for wrong, message in (
        (("--beam", "2", "--sample"), "--beam or --sample, not both"),
        (("--top-p", "0.5"), "need --sample"),
        (("-n", "7"), "this model generates 1 to 6 purchases"),
    ):
        assert message in terminal.refused(*words, *wrong)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train absent.yaml", "absent.yaml: neither a config file nor a preset"),
        ("train small.yaml --set modle.dropout=1", "did you mean 'model'"),
        ("train small.yaml --data nowhere", "nowhere: no such folder"),
        ("run small.yaml --set data.source=nothing.csv", "nothing.csv: neither"),
        ("recommend nowhere --user C1", "nowhere"),
        ("demo small.yaml --set 'model={kind: sequence_to_sequence}'", "the demo needs a model wi"),
        ("prepare purchases.csv --user buyer --out out", "no column 'buyer'"),
        ("train small.yaml --data x --set data.k_core=true", "--data has its own settings"),
        ("train small.yaml --set model.num_heads=3", "must divide embedding_dim"),
        ("compare nope --tracking-uri sqlite:///other.db", "other.db does not exist"),
        ("run small.yaml --set data.min_user_interactions=9999", "no row is left by the rules"),
    ],
)
def test_mistakes_get_one_line_and_leave_nothing(
    terminal: Terminal, line: str, message: str
) -> None:
    before = sorted(path.name for path in Path().iterdir())
    assert message in terminal.refused(*shlex.split(line))
    after = sorted(path.name for path in Path().iterdir())
    assert {*after} - {"mlflow.db", "data"} == {*before} - {"mlflow.db", "data"}


def test_prepare_counts_warnings_and_audit_names_them(
    terminal: Terminal, caplog: pytest.LogCaptureFixture
) -> None:
    (prepared,) = terminal.json("prepare", "small.yaml", "--out", "data/audited")
    assert prepared["warnings"] > 0
    assert "the audit warns of " in caplog.text
    assert "recsys audit data/audited" in caplog.text
    findings = terminal.json("audit", "data/audited", "--seen", "allow")
    found = {finding["name"]: finding["severity"] for finding in findings}
    assert found["future_training"] == "info"
    assert list(found.values()).count("warn") == prepared["warnings"]


@pytest.mark.slow
def test_a_backtest_has_a_run_for_each_fold(terminal: Terminal) -> None:
    split = ("--set", "data.split={kind: backtest, folds: 2, targets: every}")
    words = ("backtest", "small.yaml", *split, *SHORT, "--set", "name=folds")
    rows = terminal.json(*words, "--of", "popularity", "--of", "model")
    assert [(row["model"], row["fold"]) for row in rows] == [
        (model, fold) for model in ("popularity", "model") for fold in ("1", "2", "pooled")
    ]
    for first, second, pooled in (rows[:3], rows[3:]):
        assert first["targets"] + second["targets"] == pooled["targets"]
        assert max(first["users"], second["users"]) <= pooled["users"] <= 150
        assert pooled["ndcg_at_10_low"] <= pooled["ndcg_at_10"] <= pooled["ndcg_at_10_high"]
    assert terminal.json(*words, "--of", "popularity", "--of", "model") == rows  # nothing is fitted
    made = MlflowClient(f"sqlite:///{Path('mlflow.db').resolve()}").search_runs(["1"])
    assert sum(run.info.run_name.startswith("folds-fold-") for run in made) == 4
    counted = terminal.json(*words, "--set", "count_ensemble={}", "--set", "name=counted")
    assert [row["fold"] for row in counted] == ["1", "2", "pooled"]
    compared = terminal.json("compare", "folds-fold-1", "folds-fold-1-popularity")
    assert [row["model"] for row in compared] == ["target_attention", "popularity"]
    assert compared[0]["ndcg_at_10"] == pytest.approx(rows[3]["ndcg_at_10"])
    for wrong, message in (
        (("backtest", "small.yaml"), "must be of kind backtest, not leave_last_out"),
        ((*words, "--of", "magic"), "--of magic: must be one of model, popularity"),
        (("train", "small.yaml", *split), "see recsys backtest"),
    ):
        assert message in terminal.refused(*wrong)


@pytest.mark.slow
@pytest.mark.parametrize(
    "split",
    [
        "{kind: leave_last_out}",
        "{kind: global_time, targets: every, history: advancing}",
        "{kind: user_holdout, valid_fraction: 0.2, test_fraction: 0.2}",
    ],
)
def test_run_trains_on_every_split_and_compares_with_the_baselines(
    split: str, terminal: Terminal
) -> None:
    changes = ("--set", f"data.split={split}", "--set", "name=split")
    rows = terminal.json("run", "small.yaml", *changes, *SHORT)
    assert all(0 < row["ndcg_at_10"] < 1 for row in rows)
    assert {row["model"] for row in rows} == {"target_attention", *BASELINES}
