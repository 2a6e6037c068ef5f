"""Comparing runs of a real MLflow store: metrics by hand, and runs that cannot be compared."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from rich.text import Text

from recsys.config.experiment import TrackingConfig
from recsys.data.histories import Histories
from recsys.data.splits import Holdout
from recsys.errors import InputError
from recsys.evaluation.tables import NextListTable, RankTable, next_list_table
from recsys.reports.comparison import Comparison, compare, comparison_table
from recsys.reports.statistics import PairedResult, paired_test
from recsys.tracking.store import open_store
from tests.helpers.rank_tables import ranked

TAGS = {
    "dataset": "shop",
    "dataset_fingerprint": "f00d",
    "protocol.split": "leave_last_out",
    "protocol.seen": "filter",
}
POPULARITY, MARKOV, ATTENTION = [1, 3, 20, 11] * 10, [1, 1, 20, 11] * 10, [1, 1, 7, 1] * 10
Write = Callable[..., str]


def listed(lists: Sequence[Sequence[int]]) -> NextListTable:
    """Lists for users who all bought items 1 and 2."""
    users = np.repeat(np.arange(len(lists)), 2)
    items = np.tile(np.array([1, 2], dtype=np.int32), len(lists))
    holdout = Holdout(users, items, users, Histories.from_lists([[9]] * len(lists)), dropped=0)
    return next_list_table(np.array(lists, dtype=np.int32), holdout, 2_000, "filter")


@pytest.fixture
def tracking(tmp_path: Path) -> TrackingConfig:
    config = TrackingConfig(uri=f"sqlite:///{tmp_path / 'mlflow.db'}", experiment="mine")
    open_store(config)
    return config


@pytest.fixture
def write(tracking: TrackingConfig, tmp_path: Path) -> Write:
    """Writes a run, each a second after the one before, and returns its id."""
    client, experiment = open_store(tracking)
    started = 0

    def write(
        name: str,
        table: RankTable | None,
        lists: NextListTable | None = None,
        *,
        status: str = "FINISHED",
        costs: dict[str, float] | None = None,
        params: dict[str, str] | None = None,
        **tags: str,
    ) -> str:
        nonlocal started
        started += 1_000
        run = client.create_run(
            experiment, started, {**TAGS, "model": f"{name}_model", **tags}, name
        )
        run_id: str = run.info.run_id
        for prefix, saved in (("ranks", table), ("lists", lists)):
            if saved is not None:
                path = tmp_path / f"{prefix}_{saved.protocol.part}.parquet"
                saved.save(path)
                client.log_artifact(run_id, str(path))
        for key, setting in (params or {}).items():
            client.log_param(run_id, key, setting)
        for cost, value in (costs or {}).items():
            client.log_metric(run_id, cost, value)
        client.log_metric(run_id, "test/ndcg_at_10", 0.99)  # a logged value that must not be read
        client.set_terminated(run_id, status)
        return run_id

    return write


@pytest.fixture
def three(write: Write) -> tuple[str, str, str]:
    return (
        write("popularity", ranked(POPULARITY)),
        write("markov", ranked(MARKOV), costs={"fit_seconds": 2.6}),
        write(
            "attention",
            ranked(ATTENTION),
            costs={"fit_seconds": 1234.4, "peak_memory_mib": 800, "parameters": 1_000_000},
        ),
    )


def printed(comparison: Comparison, width: int = 160) -> str:
    console = Console(width=width, force_terminal=True)
    with console.capture() as capture:
        console.print(comparison_table(comparison))
    return capture.get()


def plain(comparison: Comparison) -> str:
    return " ".join(Text.from_ansi(printed(comparison)).plain.split())


# --- Figures -------------------------------------------------------------------------------------


def test_metrics_come_from_the_rank_tables(
    tracking: TrackingConfig, three: tuple[str, str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    comparison = compare(["popularity", "markov", "attention"], tracking)
    assert capfd.readouterr() == ("", "")
    popularity, markov, attention = comparison.rows
    assert [row.run_id for row in comparison.rows] == list(three)
    # Ranks 1, 3, 20, 11: two of four among the ten best, gains 1 and 1/2.
    assert popularity.metrics["recall_at_10"] == 0.5
    assert popularity.metrics["ndcg_at_10"] == pytest.approx(1.5 / 4)
    # Rank 7 gains 1 / log2(8).
    assert attention.metrics["ndcg_at_10"] == pytest.approx((3 + 1 / 3) / 4)
    # To the last digit what a run logs.
    logged = ranked(POPULARITY).summary(["ndcg_at_10"])["ndcg_at_10"]
    assert popularity.intervals["ndcg_at_10"] == logged
    assert (comparison.targets, comparison.dataset) == (40, "shop")
    assert comparison.protocol == (
        "leave_last_out, test part, ranked over all 2,000 items, seen items excluded, "
        "ties against the target, 3 targets outside the catalogue dropped"
    )
    assert popularity.differences == {}
    assert markov.differences["recall_at_10"] == PairedResult(0, 0, 0, 1)
    raw = paired_test(ranked(MARKOV), ranked(POPULARITY), "ndcg_at_10")
    # Ten differences of one sign: 2 of 2**10 sign patterns are as extreme. The other run's p is
    # smaller and is doubled; this one is multiplied by 1.
    assert raw.p_value == pytest.approx(2 / 1024, rel=0.5)
    assert markov.differences["ndcg_at_10"] == raw
    smallest = paired_test(ranked(ATTENTION), ranked(POPULARITY), "ndcg_at_10")
    assert smallest.p_value < raw.p_value
    assert attention.differences["ndcg_at_10"].p_value == 2 * smallest.p_value


def test_frame_is_flat(tracking: TrackingConfig, three: tuple[str, str, str]) -> None:
    frame = compare(three, tracking, metrics=["ndcg_at_10"]).frame()
    numbers = ("", "_low", "_high", "_difference", "_difference_low", "_difference_high")
    assert frame.columns == [
        *("name", "run_id", "model", "trained_on", "seeds"),
        *(f"ndcg_at_10{number}" for number in (*numbers, "_p_value", "_spread")),
        *("fit_seconds", "peak_memory_mib", "parameters"),
    ]
    assert frame["ndcg_at_10_difference"].to_list() == [None, *map(pytest.approx, (1 / 8, 11 / 24))]
    assert frame["fit_seconds"].to_list() == [None, 2.6, 1234.4]
    alone = compare(["popularity"], tracking, metrics=["ndcg_at_10"]).frame()
    assert alone.schema == frame.schema


def test_runs_with_lists_are_compared_by_them_too(tracking: TrackingConfig, write: Write) -> None:
    write("old", ranked(POPULARITY))
    write("half", ranked(POPULARITY), listed([[1, 7], [8, 7]] * 20))
    write("whole", ranked(ATTENTION), listed([[1, 2], [2, 7]] * 20))
    comparison = compare(["half", "whole"], tracking)
    lists = ("next_recall_at_2", "next_ndcg_at_2")
    assert comparison.metrics == ("recall_at_10", "ndcg_at_10", *lists)
    half, whole = comparison.rows
    assert half.metrics["next_recall_at_2"] == 0.25
    assert whole.differences["next_recall_at_2"].difference == 0.5
    assert whole.differences["next_recall_at_2"].p_value < 0.01
    assert "next NDCG@2" in plain(comparison)
    chosen = compare(["half", "whole"], tracking, metrics=["next_f1_at_2", "mrr"])
    assert list(chosen.rows[0].metrics) == ["next_f1_at_2", "mrr"]
    # Not every run has lists: the default metrics are those of all.
    assert compare([], tracking).metrics == ("recall_at_10", "ndcg_at_10")


def test_metrics_of_all_lists_have_no_intervals_and_no_tests(
    tracking: TrackingConfig, write: Write
) -> None:
    for seed, coverage in enumerate((0.2, 0.4)):
        logged = {"test/novelty_at_10": 10.25, "test/coverage_at_2": coverage}
        write(f"s{seed}", ranked(MARKOV), params={"seed": str(seed)}, costs=logged, model="m")
    metrics = ["ndcg_at_10", "coverage_at_2", "novelty_at_10"]
    comparison = compare([], tracking, metrics=metrics)
    assert [row.metrics["coverage_at_2"] for row in comparison.rows] == [0.2, 0.4]
    assert list(comparison.rows[1].intervals) == ["ndcg_at_10"]
    assert list(comparison.rows[1].differences) == ["ndcg_at_10"]
    assert "paired randomisation test of NDCG@10" in plain(comparison)
    comparison = compare([], tracking, metrics=metrics[1:])
    for ending in ("low", "high", "difference", "p_value"):
        assert comparison.frame()[f"coverage_at_2_{ending}"].null_count() == 2
    text = printed(comparison)
    assert " 10.2500 " in text  # and not 1.2500
    assert not any(word in text for word in ("to the first", "interval"))
    assert "\x1b[1m.4000" not in text  # more coverage is not better by itself
    (row,) = compare([], tracking, metrics=["coverage_at_2"], pooled=True).rows
    assert row.metrics["coverage_at_2"] == pytest.approx(0.3)
    assert row.spreads["coverage_at_2"] == pytest.approx(np.std([0.2, 0.4], ddof=1))


def test_metrics_by_segment_by_hand(tracking: TrackingConfig, write: Write) -> None:
    def segmented(ranks: Sequence[int]) -> RankTable:
        table = ranked(ranks)
        kinds = pl.Series("purchase", ["new", "new", "repeat", None])
        return RankTable(table.frame.with_columns(kinds), table.protocol)

    write("a", segmented([1, 20, 1, 1]))
    write("b", segmented([1, 1, 20, 20]))
    comparison = compare([], tracking, metrics=["recall_at_10", "mrr"])
    frame = comparison.by_segment("purchase")
    assert frame.select("purchase", "name", "users", "targets", "recall_at_10").rows() == [
        ("new", "a", 2, 2, 0.5),
        ("new", "b", 2, 2, 1.0),
        ("repeat", "a", 1, 1, 1.0),
        ("repeat", "b", 1, 1, 0.0),
        (None, "a", 1, 1, 1.0),
        (None, "b", 1, 1, 0.0),
    ]
    assert (frame["mrr_low"] <= frame["mrr"]).all()
    with pytest.raises(InputError, match="^segment 'gap': must be one of history_l.*, purchase$"):
        comparison.by_segment("gap")


def test_users_of_several_targets_are_counted(tracking: TrackingConfig, write: Write) -> None:
    ranks = ranked([1, 20, 20])
    several = {"user": pl.Series([0, 0, 1]), "target": pl.Series([1, 2, 1], dtype=pl.Int32)}
    write("a", RankTable(ranks.frame.with_columns(**several), ranks.protocol))
    comparison = compare([], tracking)
    assert "3 targets of 2 users" in plain(comparison)
    assert comparison.rows[0].metrics["recall_at_10"] == 0.25  # not one of three


@pytest.mark.parametrize("width", [160, 60])
def test_table_for_the_terminal(
    tracking: TrackingConfig,
    three: tuple[str, str, str],
    write: Write,
    width: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    comparison = compare(three, tracking, metrics=["recall_at_10", "mrr", "ndcg_at_10"])
    printed_lines = printed(comparison, width).splitlines()
    lines = [Text.from_ansi(line).plain for line in printed_lines]
    assert max(map(len, lines)) <= width
    monkeypatch.setenv("COLUMNS", str(width))
    assert repr(comparison) == "\n".join(line.rstrip() for line in lines).strip("\n")
    for row in comparison.rows:
        assert any(line.strip().startswith(row.name) for line in lines)
    if width > 100:
        popularity, attention = (
            next(line for line in printed_lines if word in line)
            for word in ("popularity", "attention")
        )
        assert "reference" in popularity
        assert ".3750 [." in popularity
        assert "+.4583 (.0002) *" in attention
        # The best are bold, and only they.
        assert "\x1b[1m1.0000 [1.0000, 1.0000]" in attention
        assert "\x1b[1m.8333 [." in attention
        assert "\x1b[1m" not in popularity
    write("[red]a", ranked(POPULARITY))
    text = printed(compare(["[red]a"], tracking), width)
    assert "[red]a" in text  # a name, not markup
    assert "paired" not in text


# --- Seeds ---------------------------------------------------------------------------------------


def seeds_of(write: Write, name: str, *ranks: Sequence[int], **params: str) -> list[str]:
    return [
        write(
            f"{name}-s{seed}",
            ranked(of_seed),
            costs={"fit_seconds": 10.0 * (seed + 1)},
            params={"seed": str(seed), "name": f"{name}-s{seed}", **params},
            model=name,
        )
        for seed, of_seed in enumerate(ranks)
    ]


def test_seeds_are_pooled_by_hand(tracking: TrackingConfig, write: Write) -> None:
    baseline = write("baseline", ranked([20, 20, 20]))
    (first,) = seeds_of(write, "ours", [20, 20, 20])  # the later run of its seed counts
    (other,) = seeds_of(write, "ours", [1, 1, 1], rate="0.2")  # another model: another parameter
    ids = [baseline, *seeds_of(write, "ours", [1, 20, 3], [20, 20, 1]), first, other]
    ids.append(write("baseline", ranked([20, 20, 20])))  # without a seed
    comparison = compare(ids, tracking, metrics=["recall_at_10", "mrr"], pooled=True)
    assert [row.seeds for row in comparison.rows] == [1, 2, 1, 1]
    pooled = comparison.rows[1]
    assert pooled.values("recall_at_10").tolist() == [0.5, 0, 1]
    assert pooled.metrics["recall_at_10"] == 0.5
    assert pooled.spreads["recall_at_10"] == pytest.approx(np.std([2 / 3, 1 / 3], ddof=1))
    assert pooled.differences["recall_at_10"].difference == 0.5
    assert pooled.costs == {"fit_seconds": 15.0}
    # More seeds do not narrow it: it is that of the users' means over the seeds.
    assert pooled.intervals["recall_at_10"][1:] == (0, 1)
    assert comparison.rows[0].spreads == {}
    text = plain(comparison)
    assert "ours-s0 (2 seeds)" in text
    assert "s .2357" in text
    # Without pooling they are six runs.
    assert len(compare(ids, tracking, metrics=["mrr"]).rows) == 6


@pytest.mark.parametrize("tag", ["trained_on", "model", "interrupted"])
def test_seeds_are_pooled_only_where_all_that_the_tags_say_is_equal(
    tag: str, tracking: TrackingConfig, write: Write
) -> None:
    """Above all, a model that was refitted on more is no seed of one that was not."""
    values = [None, None, "cut", "short"] if tag == "interrupted" else ["one", "one", "two", "two"]
    for seed, value in enumerate(values):
        tags = {"model": "m"} if value is None else {"model": "m", tag: value}
        params = {"seed": str(seed), "rate": "1"}
        write(f"s{seed}", ranked([1 + seed, 20, 3]), params=params, **tags)
    runs = ["s0", "s1", "s2", "s3"]
    comparison = compare(runs, tracking, metrics=["mrr"], pooled=True)
    assert [(row.name, row.seeds) for row in comparison.rows] == [("s0", 2), ("s2", 2)]


# --- Which runs can be compared ------------------------------------------------------------------


def test_a_name_means_its_latest_finished_run(tracking: TrackingConfig, write: Write) -> None:
    old = write("dot", ranked(POPULARITY))
    new = write("dot", ranked(MARKOV))
    failed = write("dot", ranked(ATTENTION), status="FAILED")
    comparison = compare(["dot", old, new[:12], failed], tracking)
    assert [row.run_id for row in comparison.rows] == [new, old, new, failed]
    other = write("other", ranked(MARKOV))
    newest = write("dot", ranked(ATTENTION))
    write("killed", None, status="KILLED")
    assert [row.run_id for row in compare([], tracking).rows] == [newest, other]


def test_runs_of_other_samples_are_compared_on_common_targets(
    tracking: TrackingConfig, write: Write
) -> None:
    seeds_of(write, "ours", [1, 20], [1])
    for pooled in (False, True):
        comparison = compare([], tracking, metrics=["recall_at_10"], pooled=pooled)
        assert comparison.targets == 1
        assert comparison.rows[0].metrics["recall_at_10"] == 1
        assert comparison.protocol.endswith("only the targets that all of these runs ranked")
    with pytest.raises(InputError, match="^the runs ranked other samples of the users: compare"):
        compare([], tracking, metrics=["novelty_at_10"])
    write("wide", ranked([1, 20]), listed([[1, 2], [8, 7]]))
    write("narrow", ranked([1]), listed([[1, 2]]))
    assert compare(["wide", "narrow"], tracking).rows[0].metrics["next_recall_at_2"] == 1
    far = ranked([1, 1])
    write("far", RankTable(far.frame.with_columns(user=pl.Series([8, 9])), far.protocol))
    with pytest.raises(InputError, match="^runs far .* and ours-s0 .*: have no target in common$"):
        compare(["ours-s0", "far"], tracking)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ({"dataset_fingerprint": "beef", "dataset": "ml-1m"}, "'f00d' and 'beef'"),
        ({"protocol.seen": "allow"}, "'filter' and 'allow'"),
        ({"protocol.request_time": "known"}, "'none' and 'known'"),
    ],
)
def test_other_data_or_protocols_are_refused(
    tracking: TrackingConfig, write: Write, tags: dict[str, str], message: str
) -> None:
    write("a", ranked(POPULARITY))
    write("b", ranked(POPULARITY), **tags)
    field = next(iter(tags))
    expected = rf"^runs a \(\w{{8}}\) and b \(\w{{8}}\) differ in {field}: {message}; compare"
    with pytest.raises(InputError, match=expected):
        compare(["a", "b"], tracking)


def test_an_unknown_run_is_refused_with_the_known_ones(
    tracking: TrackingConfig, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter(["abcd1" + "0" * 27, "abcd2" + "0" * 27])
    with monkeypatch.context() as known:
        known.setattr(uuid, "uuid4", lambda: uuid.UUID(next(ids)))
        write("a", ranked(POPULARITY))
        write("b", ranked(POPULARITY))
    write("c", None, status="RUNNING")
    there = r"the latest are: b \(abcd2000\), a \(abcd1000\)$"
    # "c" has not finished; three letters are too few for an id.
    for wanted in ("zoo", "c", "abc", ""):
        with pytest.raises(InputError, match=rf"^run '{wanted}': neither an id nor .*{there}"):
            compare([wanted], tracking)
    with pytest.raises(InputError, match="^run 'abcd': several ids begin with it: abcd10"):
        compare(["abcd"], tracking)
    assert compare(["abcd1"], tracking).rows[0].name == "a"


def test_what_a_run_does_not_have_is_named(
    tracking: TrackingConfig, write: Write, tmp_path: Path
) -> None:
    run_id = write("a", ranked(POPULARITY))
    write("b", ranked(POPULARITY, num_items=9), listed([[1, 2]] * 40))
    write("valid", ranked([1, 2], part="valid"))
    valid = compare(["valid"], tracking, part="valid", metrics=["mrr"])
    assert valid.rows[0].metrics["mrr"] == 0.75
    label = r"\(\w{8}\)"
    for runs, metric, message in (
        (["valid"], "mrr", rf"run valid {label}: has no rank table ranks_test.parquet"),
        (
            ["a", "b"],
            "mrr",
            rf"runs a {label} and b {label}: their rank tables differ in num_items$",
        ),
        (["a"], "novelty_at_10", rf"run a {label}: did not log test/novelty_at_10$"),
        (["a"], "next_f1_at_2", rf"run a {label}: has no lists of next purchases"),
        (["b"], "next_f1_at_5", ".*'next_f1_at_5': must be one of next_recall_at_2, next_"),
        (["a"], "serendipity_at_5", "metric 'serendipity_at_5': must be recall_at_K, .*gini"),
        (["a"], "ndcg", "metric 'ndcg': must be"),
    ):
        with pytest.raises(InputError, match=f"^{message}"):
            compare(runs, tracking, metrics=[metric])
    (tmp_path / "mlartifacts" / run_id / "artifacts" / "ranks_test.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"^run a \(\w{8}\): .*cannot read the rank table"):
        compare(["a"], tracking)


def test_wrong_arguments(tracking: TrackingConfig, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="experiment 'mine': no run has finished"):
        compare([], tracking)
    with pytest.raises(InputError, match="^metrics: name at least one"):
        compare([], tracking, metrics=[])
    elsewhere = tracking.model_copy(update={"experiment": "yours"})
    with pytest.raises(InputError, match="experiment 'yours': not in sqlite:"):
        compare([], elsewhere)
    missing = TrackingConfig(uri=f"sqlite:///{tmp_path / 'none.db'}")
    with pytest.raises(InputError, match="none.db does not exist$"):
        compare([], missing)
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(InputError, match="^tracking.uri nonsense://x: cannot be used"):
        compare([], TrackingConfig(uri="nonsense://x"))
