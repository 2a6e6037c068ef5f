"""From a CSV to recommendations through the commands, as a user types them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import recsys
from recsys.baselines.tuned import BASELINES
from recsys.cli.options import PANELS
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


@pytest.fixture
def terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Terminal:
    monkeypatch.chdir(tmp_path)
    log = make_shop(seed=0, num_customers=150).interactions
    log.rename({"user_id": "customer", "item_id": "sku", "timestamp": "bought_at"}).write_csv(
        "purchases.csv"
    )
    Path("small.yaml").write_text(CONFIG)
    return Terminal(monkeypatch, capsys)


def test_from_a_csv_to_recommendations(terminal: Terminal) -> None:
    (prepared,) = terminal.json(
        "prepare", "purchases.csv", "--user", "customer", "--item", "sku", "--time", "bought_at",
        "--out", "data/mine",
    )  # fmt: skip
    assert prepared["users"] == 150

    (trained,) = terminal.json("train", "small.yaml", "--data", "data/mine")
    for name in ("bundle/weights.safetensors", "ranks_test.parquet"):
        assert Path("runs/small", name).is_file()

    rows = terminal.json("evaluate", trained["bundle"], "--data", "data/mine")
    figures = {row["metric"]: row["mean"] for row in rows}
    assert figures["ndcg_at_10"] == pytest.approx(trained["ndcg_at_10"])

    bought = pl.read_csv("purchases.csv").select(user_id="customer", item_id="sku")
    bought.write_csv("candidates.csv")
    few = terminal.json(
        "evaluate", trained["bundle"], "--data", "data/mine", "--candidates", "candidates.csv"
    )
    assert {row["metric"]: row["mean"] for row in few}["mrr"] > figures["mrr"]
    bought.head(1).write_csv("candidates.csv")
    status, _, err = terminal(
        "evaluate", trained["bundle"], "--data", "data/mine", "--candidates", "candidates.csv"
    )
    assert status == 2
    assert err.startswith("error: candidates.csv: item_id ")

    status, _, err = terminal(
        "evaluate", trained["bundle"], "--data", "data/mine", "--part", "valid"
    )
    assert status == 2
    assert "was trained on the validation targets" in err

    best = terminal.json(
        "recommend", trained["bundle"], "--user", "C00007", "--data", "data/mine", "-k", "3"
    )
    assert [row["rank"] for row in best] == [1, 2, 3]

    why = terminal.json(
        "explain", trained["bundle"], "--user", "C00007", "--item", best[0]["item_id"],
        "--data", "data/mine",
    )  # fmt: skip
    total = sum(row["contribution"] for row in why) + why[0]["rest"]
    assert total == pytest.approx(best[0]["score"], abs=1e-4)

    log = pl.read_csv("purchases.csv").filter(pl.col("customer") == "C00007")
    log.write_csv("histories.csv")
    pl.DataFrame(
        {"user_id": ["C00007"] * 3, "item_id": [row["item_id"] for row in best]}
    ).write_csv("candidates.csv")
    status, _, _ = terminal(
        "score", trained["bundle"], "histories.csv", "candidates.csv", "--out", "scores.parquet"
    )
    assert status == 0
    scores = pl.read_parquet("scores.parquet")["score"].to_list()
    assert scores == pytest.approx([row["score"] for row in best], abs=1e-5)

    assert {*trained["baselines"]} == {"markov", "popularity"}
    _, out, _ = terminal("train", "small.yaml", "--data", "data/mine", "--set", "name=other",
                         "--set", "model.head={kind: dot_product}")  # fmt: skip
    table = [line.split()[:2] for line in out.splitlines()]
    heads = next(words for words in table if words[:1] == ["name"])
    assert heads == ["name", "ndcg@10"]
    measured = f"{trained['baselines']['markov']['ndcg_at_10']:.4f}"
    assert ["markov", measured] in table
    assert [words[0] for words in table if words][-1].startswith("http://127.0.0.1:5000/#/exp")
    compared = terminal.json("compare", "small", "other")
    assert [row["model"] for row in compared] == ["target_attention", "dot_product"]
    assert compared[0]["ndcg_at_10"] == pytest.approx(trained["ndcg_at_10"])
    status, out, _ = terminal("compare")
    assert status == 0
    assert "small" in out
    assert "ndcg@10" in out


@pytest.mark.slow
def test_two_stages_and_the_targets_they_miss(terminal: Terminal) -> None:
    (trained,) = terminal.json("train", "small.yaml", "--set", "training.max_epochs=1")
    (folder,) = Path("data").iterdir()
    data = ("--data", str(folder))
    query = ("recommend", trained["bundle"], "--user", "C00007", *data, "-k", "3")
    one, two = terminal.json(*query), terminal.json(*query, "--retrieve", "9999")
    assert [row["item_id"] for row in two] == [row["item_id"] for row in one]

    words = ("retrieval", trained["bundle"], *data)
    few, more, whole = terminal.json(*words, "--retrieve", "20", "--retrieve", "5")
    assert (few["retrieve"], more["retrieve"]) == (5, 20)
    assert few["retrieved"] <= more["retrieved"] <= whole["retrieved"] == 1
    assert whole["ndcg_at_10"] == pytest.approx(trained["ndcg_at_10"])

    terminal("train", "small.yaml", "--set", "name=dot", "--set", "training.max_epochs=1",
             "--set", "model.head={kind: dot_product}")  # fmt: skip
    for wrong, message in (
        ((*query, "--retrieve", "2"), "error: retrieve=2: must be at least k=3"),
        ((*words, "--retrieve", "0"), "error: retrieve=0: must be at least 1"),
        ((*words, "--part", "valid"), "was trained on the validation targets"),
        (("retrieval", "runs/dot/bundle", *data),
         "error: runs/dot/bundle: two stages need target attention, and dot_product"),
    ):  # fmt: skip
        status, out, err = terminal(*wrong)
        assert (status, out) == (2, "")
        assert message in err


@pytest.mark.slow
def test_new_items_are_recommended_by_their_features(terminal: Terminal) -> None:
    """The model is refitted and has a count ensemble; the prices are invented."""
    products = make_shop(seed=0, num_customers=150).products
    products.with_columns(price=pl.int_range(pl.len())).write_csv("products.csv")
    columns = ("--user", "customer", "--item", "sku", "--time", "bought_at")
    terminal.json(
        "prepare", "purchases.csv", *columns, "--items", "products.csv", "--out", "data/mine"
    )
    words = ("train", "small.yaml", "--data", "data/mine", "--set", "count_ensemble={}")
    features = "model.item_features=[category, {kind: number, column: price}]"
    (trained,) = terminal.json(*words, "--set", features, "--set", "training.refit=true")
    rows = terminal.json("evaluate", trained["bundle"], "--data", "data/mine")
    figures = {row["metric"]: row["mean"] for row in rows}
    assert figures["ndcg_at_10"] == pytest.approx(trained["ndcg_at_10"])

    Path("new.csv").write_text("item_id,category,price\nN1,Kitchen,12.5\nN2,Garden,\n")
    query = ("recommend", trained["bundle"], "--user", "C00007", "--data", "data/mine")
    known = pl.read_parquet("data/mine/items.parquet")["item_id"]
    every = terminal.json(*query, "-k", str(len(known) + 2), "--new-items", "new.csv")
    assert {"N1", "N2"} < {row["item_id"] for row in every}
    (one,) = (row["score"] for row in every if row["item_id"] == "N1")
    pl.read_csv("purchases.csv").filter(pl.col("customer") == "C00007").write_csv("one.csv")
    Path("pairs.csv").write_text("user_id,item_id\nC00007,N1\n")
    (scored,) = terminal.json(
        "score", trained["bundle"], "one.csv", "pairs.csv", "--new-items", "new.csv"
    )
    assert scored["score"] == pytest.approx(one, abs=1e-4)
    for wrong, message in (
        (
            "model.item_features=[brand]",
            "category 'brand': no such column among name, category, pr",
        ),
        ("model={kind: masked_item, item_features: [category]}", "item_features: unknown key"),
    ):
        status, out, err = terminal(*words, "--set", wrong)
        assert (status, out) == (2, "")
        assert message in err


@pytest.mark.slow
def test_features_of_interactions_and_users_are_read(terminal: Terminal) -> None:
    """The model has target attention; histories come from a dataset and from a file."""
    log = pl.read_csv("purchases.csv").with_columns(rating=pl.int_range(pl.len()) % 5)
    log.write_csv("purchases.csv")
    users = log.select(user_id=pl.col("customer").unique().sort())
    users.with_columns(age=20 + pl.int_range(pl.len()) % 3).write_csv("users.csv")
    columns = ("--user", "customer", "--item", "sku", "--time", "bought_at", "--keep", "rating")
    terminal.json(
        "prepare", "purchases.csv", *columns, "--users", "users.csv", "--out", "data/mine"
    )
    words = ("train", "small.yaml", "--data", "data/mine", "--set", "count_ensemble={}")
    reads = "model.interaction_features=[{kind: number, column: rating}]"
    (trained,) = terminal.json(*words, "--set", reads, "--set", "model.user_features=[age]")
    rows = terminal.json("evaluate", trained["bundle"], "--data", "data/mine")
    figures = {row["metric"]: row["mean"] for row in rows}
    assert figures["ndcg_at_10"] == pytest.approx(trained["ndcg_at_10"])

    query = ("--user", "C00007", "--data", "data/mine")
    expected = terminal.json("recommend", trained["bundle"], *query)
    mine = log.join(pl.read_csv("users.csv"), left_on="customer", right_on="user_id")
    mine.filter(pl.col("customer") == "C00007").write_csv("one.csv")
    found = terminal.json("recommend", trained["bundle"], "one.csv")
    assert [row["item_id"] for row in found] == [row["item_id"] for row in expected]
    best = expected[0]["item_id"]
    parts = terminal.json("explain", trained["bundle"], *query, "--item", best)
    whole = sum(row["contribution"] for row in parts) + parts[0]["rest"]
    assert whole == pytest.approx(expected[0]["score"], abs=1e-4)
    for wrong, message in (
        (("recommend", trained["bundle"], "purchases.csv"), "purchases.csv: no column 'age' among"),
        ((*words, "--set", "model.interaction_features=[action]"),
         "error: model.interaction_features: category 'action': no such column among rating"),
    ):  # fmt: skip
        status, out, err = terminal(*wrong)
        assert (status, out) == (2, "")
        assert message in err


@pytest.mark.slow
def test_generate_writes_lists(terminal: Terminal) -> None:
    model = "model={kind: sequence_to_sequence, embedding_dim: 16, max_generated: 6}"
    split = "data.split={kind: leave_last_out, targets: 3}"
    (trained,) = terminal.json("train", "small.yaml", "--set", model, "--set", split)
    assert 0 <= trained["next_recall_at_3"] <= 1
    history = pl.read_csv("purchases.csv").filter(pl.col("customer") == "C00007")
    history.write_csv("one.csv")
    words = ("generate", trained["bundle"], "one.csv", "-n", "4")
    greedy, beam = terminal.json(*words), terminal.json(*words, "--beam", "3")
    assert [row["step"] for row in greedy] == [1, 2, 3, 4]
    assert beam[0]["log_probability"] >= greedy[0]["log_probability"] - 1e-5
    sample = ("--sample", "--top-k", "50", "--temperature", "0.7", "--seed", "3")
    assert terminal.json(*words, *sample) == terminal.json(*words, *sample)
    history.head(3).select(item_id="sku").write_csv("few.csv")
    few = terminal.json(*words, "--candidates", "few.csv", "--repeats")
    assert {row["item_id"] for row in few} <= set(history["sku"].head(3))
    for wrong, message in (
        (("--beam", "2", "--sample"), "--beam or --sample, not both"),
        (("--top-p", "0.5"), "need --sample"),
        (("-n", "7"), "this model generates 1 to 6 purchases"),
    ):
        status, out, err = terminal(*words, *wrong)
        assert (status, out) == (2, "")
        assert message in err


@pytest.mark.slow
def test_run_trains_and_compares_with_the_baselines(terminal: Terminal) -> None:
    rows = terminal.json("run", "small.yaml", "--set", "training.max_epochs=1")
    assert {row["model"] for row in rows} == {"target_attention", *BASELINES}


def test_the_python_api_has_the_same_shape(terminal: Terminal) -> None:
    frame = pl.read_csv("purchases.csv", try_parse_dates=True).to_pandas()
    frame.columns = ["user_id", "item_id", "timestamp"]
    data = recsys.prepare(frame, out="data/frame")
    run = recsys.train("small.yaml", data, overrides=["training.max_epochs=1"])
    model = recsys.load(run.bundle, data)
    best = model.recommend(frame, k=2)
    assert type(best) is type(frame)
    assert len(best) == 300
    assert recsys.compare([run]).targets == len(data.holdout("test").targets)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "absent.yaml"], "absent.yaml: neither a config file nor a preset"),
        (["train", "small.yaml", "--set", "modle.dropout=1"], "did you mean 'model'"),
        (["train", "small.yaml", "--data", "nowhere"], "nowhere: no such folder"),
        (["run", "small.yaml", "--set", "data.source=nothing.csv"], "nothing.csv: neither"),
        (["recommend", "nowhere", "--user", "C1"], "nowhere"),
        (
            ["demo", "small.yaml", "--set", "model={kind: sequence_to_sequence}"],
            "the demo needs a model with target attention, not sequence_to_sequence",
        ),
        (["prepare", "purchases.csv", "--user", "buyer", "--out", "out"], "no column 'buyer'"),
        (
            ["train", "small.yaml", "--data", "x", "--set", "data.k_core=true"],
            "the dataset of --data has its own settings",
        ),
        (["train", "small.yaml", "--set", "model.num_heads=3"], "must divide embedding_dim"),
        (["compare", "nope"], "mlflow.db does not exist"),
        (
            ["run", "small.yaml", "--set", "data.min_user_interactions=9999"],
            "no user",
        ),
    ],
)
def test_mistakes_get_one_line_and_leave_nothing(
    terminal: Terminal, words: list[str], message: str
) -> None:
    before = sorted(path.name for path in Path().iterdir())
    status, out, err = terminal(*words)
    assert status == 2
    assert message in err
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    after = sorted(path.name for path in Path().iterdir() if path.name not in ("mlflow.db", "data"))
    assert after == before


def test_results_of_another_kind_are_never_overwritten(terminal: Terminal) -> None:
    Path("runs/small").mkdir(parents=True)
    Path("runs/small/thesis.txt").write_text("years of work")
    status, _, err = terminal("run", "small.yaml")
    assert status == 2
    assert "runs/small: exists and is left alone: thesis.txt does not belong to a run" in err
    assert Path("runs/small/thesis.txt").read_text() == "years of work"


def test_help_teaches(terminal: Terminal) -> None:
    status, out, _ = terminal("--help")
    assert status == 0
    for command in ("data", "prepare", "train", "run", "evaluate", "recommend", "retrieval",
                    "score", "explain", "compare", "demo"):  # fmt: skip
        assert command in out
    places = [out.index(f"─ {panel} ─") for panel in PANELS]
    assert places == sorted(places)  # what a new user needs comes first


def test_prepare_counts_warnings_and_audit_names_them(
    terminal: Terminal, caplog: pytest.LogCaptureFixture
) -> None:
    split = "data.split={kind: global_time}"
    (prepared,) = terminal.json("prepare", "small.yaml", "--out", "data/mine")
    assert prepared["warnings"] > 0
    assert "the audit warns of " in caplog.text
    assert "recsys audit data/mine" in caplog.text
    columns = ("--user", "customer", "--item", "sku", "--time", "bought_at")
    for words in (["data/mine"], ["small.yaml"], ["purchases.csv", *columns]):
        allow = ("--set", "evaluation.seen=allow")
        findings = terminal.json("audit", *words, *allow)
        found = {finding["name"]: finding["severity"] for finding in findings}
        assert found["future_training"] == "info"
        assert list(found.values()).count("warn") == prepared["warnings"]
    (by_time, *_) = terminal.json("audit", "small.yaml", "--set", split)
    assert (by_time["name"], by_time["severity"]) == ("future_training", "info")
    status, _, err = terminal("audit", "data/mine", "--set", split)
    assert status == 2
    assert "data/mine: a prepared dataset has its own settings" in err


@pytest.mark.slow
def test_a_backtest_has_a_run_for_each_fold(terminal: Terminal) -> None:
    split = "data.split={kind: backtest, folds: 2, targets: every}"
    words = ("backtest", "small.yaml", "--set", split, "--set", "training.max_epochs=1")
    rows = terminal.json(*words, "--of", "popularity", "--of", "model")
    assert [(row["model"], row["fold"]) for row in rows] == [
        ("popularity", "1"), ("popularity", "2"), ("popularity", "pooled"),
        ("model", "1"), ("model", "2"), ("model", "pooled"),
    ]  # fmt: skip
    for first, second, pooled in (rows[:3], rows[3:]):
        assert first["targets"] + second["targets"] == pooled["targets"]
        assert max(first["users"], second["users"]) <= pooled["users"] <= 150
        assert pooled["ndcg_at_10_low"] <= pooled["ndcg_at_10"] <= pooled["ndcg_at_10_high"]
    compared = terminal.json("compare", "small-fold-1", "small-fold-1-popularity")
    assert [row["model"] for row in compared] == ["target_attention", "popularity"]
    assert compared[0]["ndcg_at_10"] == pytest.approx(rows[3]["ndcg_at_10"])
    for wrong, message in (
        (("backtest", "small.yaml"), "must be of kind backtest, not leave_last_out"),
        ((*words, "--of", "magic"), "--of magic: must be one of model, popularity"),
        (("train", "small.yaml", "--set", split), "see recsys backtest"),
    ):
        status, _, err = terminal(*wrong)
        assert status == 2
        assert message in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "split",
    [
        "{kind: global_time, targets: every, history: advancing}",
        "{kind: user_holdout, valid_fraction: 0.2, test_fraction: 0.2}",
    ],
)
def test_every_split_can_be_trained_on(split: str, terminal: Terminal) -> None:
    rows = terminal.json(
        "run", "small.yaml", "--set", f"data.split={split}", "--set", "training.max_epochs=1"
    )
    assert all(0 < row["ndcg_at_10"] < 1 for row in rows)
