"""The report of an automatic run: one page from plain data."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recsys.config import parse_experiment
from recsys.data.audit import audit
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.experiments.baselines import fit_baseline, fit_baseline_bundle
from recsys.experiments.fit import fit
from recsys.reports.answer import Answer
from recsys.reports.comparison import compare
from recsys.reports.examples import examples_of
from recsys.reports.log_summary import LogSummary
from recsys.reports.run_page import (
    Choice,
    RacePoint,
    Racer,
    RunReport,
    TunedBaseline,
    by_outcome,
    draw_race,
    run_page,
    write_run_report,
)
from recsys.reports.statistics import holm
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from recsys.shop.simulation import make_shop
from recsys.tracking.runs import learning_curves
from tests.unit.conftest import Look
from tests.unit.html_faults import html_faults

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    """The report of a real model, one epoch old, and two baselines, on a shop with evil names."""
    folder = tmp_path_factory.mktemp("run")
    shop = make_shop(num_customers=60, num_products=220)
    best_seller = shop.interactions["item_id"].mode().sort()[0]
    shop = replace(
        shop,
        interactions=shop.interactions.with_columns(
            pl.lit("<b>").add(pl.col("user_id")).alias("user_id")
        ),
        products=shop.products.with_columns(
            name=pl.when(pl.col("item_id") == best_seller).then(pl.lit(EVIL)).otherwise("name")
        ),
    )
    experiment = parse_experiment(
        {
            "name": "mine",
            "model": {
                "embedding_dim": 8,
                "num_blocks": 1,
                "feed_forward_dim": 8,
                "max_sequence_length": 8,
            },
            "training": {"max_epochs": 1},
            "evaluation": {"seen": "allow"},
            "count_ensemble": {},
            "tracking": {"uri": f"sqlite:///{folder}/mlflow.db"},
        }
    )
    data = prepare(shop.interactions, out=folder / "data", items=shop.products)
    run = fit(experiment, data, folder / "mine")
    baselines = [fit_baseline(name, experiment, data) for name in ("popularity", "pctm")]
    comparison = compare([run.run_id, *baselines], experiment.tracking)
    points = tuple(RacePoint(10.0 * n, n, 0.01 * n) for n in (1, 2, 3))
    return RunReport(
        name="purchases",
        log=LogSummary.of(data, audit(data, "allow")),
        comparison=comparison,
        command="recsys run purchases.csv --time-limit 10m",
        date=datetime(2026, 11, 22, 20, 0, tzinfo=UTC),
        seconds=613,
        answer=run.run_id,
        choices=(Choice("evaluation.seen", "allow", "29% of the interactions are repeats."),),
        racers=(
            Racer("dot product", "SASRec", points[:2], "dropped after 2 epochs"),
            Racer("target attention", EVIL, points, "won", won=True),
            Racer("HSTU", "without times", (), "too large for the memory"),
        ),
        baselines=(
            TunedBaseline("pctm", "window 10, recent decay 0.7", 0.021, 1.2),
            TunedBaseline("popularity", "", 0.008, 0.1),
        ),
        curves=learning_curves([model.first for model in comparison.models], experiment.tracking),
        examples=examples_of(Recommender.load(run.bundle), data, users=5),
        next_steps=(f"Try {EVIL}.",),
        peak_memory_mib=884.4,
        versions={"torch": "2.13"},
    )


def text_of(page: str) -> str:
    """The words of a page, without its style and its charts."""
    page = re.sub(r"<(style|svg).*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_the_page_has_every_part(report: RunReport, tmp_path: Path) -> None:
    path = write_run_report(tmp_path / "report.html", report)
    page = path.read_text(encoding="utf-8")
    words = text_of(page)
    answer = Answer.of(report.comparison, report.answer)
    mean, low, high = (f"{value:.4f}".replace("0.", ".", 1) for value in answer.run.interval)
    assert (
        f"NDCG@10 {mean} [{low}, {high}] on {report.comparison.targets} held-out purchases" in words
    )
    assert answer.rival is not None
    assert answer.rival.row.name in words
    for part in ("What was tried", "The log", "5 users", "What to try next", "Make it again"):
        assert part in words
    assert "recsys run purchases.csv --time-limit 10m" in words
    assert "10 min 13 s" in words
    assert "884 MiB" in words
    assert "2026-11-22 20:00 UTC" in words
    assert f"interactions {report.log.interactions:,}" in words
    assert "29% of the interactions are repeats." in words
    assert "NDCG@10 is 1 where the held-out item is the first of the list" in words
    assert "too large for the memory" in words
    # The winner of the race stands first.
    assert words.index("target attention chosen") < words.index("dropped after 2 epochs")
    assert "pctm window 10, recent decay 0.7 .0210 1.2" in words
    assert "future_training" in words
    assert "<b>C0" not in page
    assert EVIL in words


def test_the_page_is_valid_and_prints_on_white(report: RunReport) -> None:
    page = run_page(report)
    assert html_faults(page) == []
    assert "@media screen and (prefers-color-scheme: dark) {" in page
    assert page.count("prefers-color-scheme") == 1
    order = ["<svg", "Every number", "What was tried", "The log", "5 users", "Make it again"]
    assert [page.index(part) for part in order] == sorted(page.index(part) for part in order)


def test_an_item_with_a_name_shows_its_id_too(report: RunReport) -> None:
    words = text_of(run_page(report))
    item = report.examples[0].recommended[0].item
    assert item.name
    assert f"{item.name} {item.item_id}" in words


def test_every_chart_has_its_numbers_in_a_table(report: RunReport) -> None:
    figures = re.findall(r'<figure id="(\w+)">(.*?)</figure>', run_page(report), re.DOTALL)
    tables = {name: text_of(figure.partition("<details>")[2]) for name, figure in figures}
    assert {"intervals", "differences", "race", "learning_curves"} <= set(tables)
    assert "dot product 20 s, epoch 2 .0200" in tables["race"]
    lengths = report.log.lengths
    shares = f"{(lengths < 2).sum()} {(lengths < 2).mean():.1%}"
    assert (
        f"length of the history users share 1 {shares}" in tables["log_lengths"] or min(lengths) > 1
    )
    assert sum(map(int, re.findall(r" (\d+) \d+\.\d%", tables["log_lengths"]))) == len(lengths)
    assert "100.0% 100%" in tables["log_popularity"]
    assert f" {report.log.per_period[0]:,} " in tables["log_time"]


def test_the_page_is_one_file_that_loads_nothing(report: RunReport, tmp_path: Path) -> None:
    path = write_run_report(tmp_path / "report.html", report)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    page = path.read_text(encoding="utf-8")
    assert re.findall(r'(?:src|href)="([^#"][^"]*)"', page) == ["data:,"]
    assert "url(" not in page
    assert "@import" not in page
    assert write_run_report(path, report).read_text(encoding="utf-8") == page


def test_a_folder_that_is_not_there_is_an_error_of_one_line(
    report: RunReport, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"report\.html: cannot be written"):
        write_run_report(tmp_path / "no" / "report.html", report)


def test_little_is_enough(report: RunReport) -> None:
    bare = RunReport(
        name="bare",
        log=replace(report.log, findings=()),
        comparison=report.comparison,
        command="recsys run x.csv",
        date=report.date,
        seconds=3,
    )
    words = text_of(run_page(bare))
    for part in ("What was tried", "users Drawn", "What to try next", "Audit", "peak memory"):
        assert part not in words


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_it(
    report: RunReport, tmp_path: Path, look: Look, width: int, dark: bool
) -> None:
    sight = look(write_run_report(tmp_path / "report.html", report), width, dark)
    assert sight.width == width
    assert sight.needed <= width
    assert sight.dark == dark
    assert (sight.pixels[:30].mean() < 0.3) == dark
    assert np.ptp(sight.pixels[1500:]) > 0.5
    assert sight.crossing == []
    assert sight.outside == []
    assert sight.console == []
    assert sight.links == 0


# --- The answer ----------------------------------------------------------------------------------


def test_the_answer_is_compared_with_the_best_baseline(report: RunReport) -> None:
    comparison = report.comparison
    ours, alone, *baselines = comparison.rows
    assert ours.model == f"{alone.model} + counts"
    answer = Answer.of(comparison, ours.run_id)
    best = max(baselines, key=lambda row: row.metrics["ndcg_at_10"])
    assert answer.rival is not None
    assert answer.rival.row.name == best.name
    assert answer.difference is not None
    expected = ours.metrics["ndcg_at_10"] - best.metrics["ndcg_at_10"]
    assert answer.difference.difference == pytest.approx(expected)
    # One pair has one p-value: that of the table, whose rows are one family.
    assert answer.difference.p_value == best.differences["ndcg_at_10"].p_value


def test_the_answer_is_tested_as_the_table_is(report: RunReport) -> None:
    first, *others = report.comparison.models
    tests = [other.test(first, "ndcg_at_10", method="t").p_value for other in others]
    answer = Answer.of(replace(report.comparison, method="t"), first.first.run.info.run_id)
    assert answer.difference is not None
    assert answer.difference.p_value in holm(tests)


def test_a_baseline_may_be_the_answer(report: RunReport) -> None:
    row = next(row for row in report.comparison.rows if row.model == "pctm")
    answer = Answer.of(report.comparison, row.run_id)
    assert answer.is_baseline
    assert answer.difference is not None
    better = replace(answer, difference=answer.difference._replace(difference=0.1))
    assert better.headline == "mine-pctm, a baseline, is the answer, not a trained model"
    worse = replace(answer, difference=answer.difference._replace(difference=-0.1))
    assert worse.headline == (
        "mine-pctm was chosen, but a trained model scored higher on the test users"
    )
    assert answer.rival is not None
    assert answer.rival.row.name == "mine"
    assert "the best trained model, mine" in answer.sentence(60)


def test_the_words_follow_the_difference(report: RunReport) -> None:
    answer = Answer.of(report.comparison, report.comparison.rows[0].run_id)
    assert answer.rival is not None
    assert answer.difference is not None
    rival = replace(answer.rival, interval=answer.rival.interval._replace(mean=0.1))

    def verdict(difference: float, p_value: float) -> str:
        found = answer.difference._replace(difference=difference, p_value=p_value)  # type: ignore[union-attr]
        return replace(answer, rival=rival, difference=found).verdict.replace("\xa0", " ")

    name = rival.row.name
    assert verdict(0.012, 0.0001) == f"+12% over the best baseline, {name} (p = .0001)"
    assert verdict(0.012, 0.31) == (
        f"+12% against the best baseline, {name}, which may be chance (p = .3100)"
    )
    assert verdict(-0.03, 0.001) == (
        f"−30% against the best baseline, {name}, which did better on the test users (p = .0010)"
    )


def test_a_worse_answer_is_said_to_be_worse(report: RunReport) -> None:
    answer = Answer.of(report.comparison, report.comparison.rows[0].run_id)
    assert answer.difference is not None
    worse = replace(answer, difference=answer.difference._replace(difference=-0.1))
    assert worse.headline == "mine was chosen, but a baseline scored higher on the test users"

    def headline(p_value: float) -> str:
        better = answer.difference._replace(difference=0.1, p_value=p_value)  # type: ignore[union-attr]
        return replace(answer, difference=better).headline

    assert headline(0.01) == "mine is the model to use"
    assert "no test shows" in headline(1.0)


def test_an_unknown_answer_is_refused(report: RunReport) -> None:
    with pytest.raises(InputError, match="run nobody: is not in the comparison"):
        run_page(replace(report, answer="nobody"))


# --- The log -------------------------------------------------------------------------------------


def test_the_summary_counts_a_log_by_hand(tiny_dataset: PreparedDataset) -> None:
    log = LogSummary.of(tiny_dataset)
    assert (log.users, log.items, log.interactions, log.rows) == (6, 5, 19, 19)
    assert log.dropped == {}
    assert sorted(log.lengths.tolist()) == [2, 3, 3, 3, 4, 4]
    # Training: all but the last two of each user with three or more.
    assert log.counts.sum() == log.parts["training"]
    assert log.counts.tolist() == sorted(log.counts.tolist(), reverse=True)
    assert log.repeats == pytest.approx(1 / 18)  # bob's second boots; the scarf is no item
    assert not log.dated
    assert log.per_period.sum() == 19


def test_dropped_rows_are_counted_once(tmp_path: Path) -> None:
    log = pl.DataFrame(
        {
            "user_id": [*"aaaabbbbc", None],
            "item_id": [*"wxyzwxyzw", None],
            "timestamp": [*range(9), None],
            "kind": ["view", *["sale"] * 9],
        }
    )
    words = {"where": "kind == 'sale'", "user_minimum": 3}
    summary = LogSummary.of(prepare(log, out=tmp_path / "data", **words))  # type: ignore[arg-type]
    assert summary.rows == 10
    assert summary.interactions == 7
    assert sum(summary.dropped.values()) == 3


@pytest.mark.parametrize("unit", [1, 1_000, 1_000_000_000])
def test_dates_are_recognised_in_every_unit(tmp_path: Path, unit: int) -> None:
    start = 1_700_000_000
    log = pl.DataFrame(
        {
            "user_id": ["a"] * 4 + ["b"] * 4,
            "item_id": list("wxyzwxyz"),
            "timestamp": [(start + 86_400 * day) * unit for day in range(8)],
        }
    )
    summary = LogSummary.of(prepare(log, out=tmp_path / "data"))
    assert summary.dated
    assert summary.periods[[0, -1]].tolist() == [start, start + 7 * 86_400]


def test_a_log_of_one_moment_in_nanoseconds(tmp_path: Path) -> None:
    log = pl.DataFrame({"user_id": list("aaaabbbb"), "item_id": list("wxyzwxyz")})
    moment = 1_700_000_000_000_000_000
    data = prepare(log.with_columns(timestamp=pl.lit(moment)), out=tmp_path / "data")
    summary = LogSummary.of(data)
    assert summary.per_period.sum() == 8
    assert summary.periods == pytest.approx([1_700_000_000] * len(summary.periods))


# --- The race ------------------------------------------------------------------------------------


def test_the_race_ends_where_a_racer_was_dropped() -> None:
    long = tuple(RacePoint(60.0 * n, n, 0.1 + 0.01 * n) for n in range(1, 11))
    racers = [
        Racer("slow", "", long[:3], "dropped"),
        Racer("won", "", long, "won", won=True),
        Racer("good", "", (RacePoint(5, 0, 0.5),), "a baseline"),
        Racer("none", "", (), "failed"),
    ]
    assert [racer.name for racer in by_outcome(racers)] == ["won", "good", "slow", "none"]
    chart = draw_race(by_outcome(racers), TunedBaseline("markov", "", 0.3, 1.0))
    assert chart is not None
    assert "minutes since the start" in chart.svg
    assert "The broken line is the best baseline, markov." in chart.caption
    assert [row[1:] for row in chart.rows if row[0] == "good"] == [("5 s", ".5000")]
    assert ("slow", "180 s, epoch 3", ".1300") in chart.rows
    assert chart.svg.count("<use ") == 10 + 1 + 3 + 2 + 3  # points, two crosses, the legend
    assert draw_race([Racer("none", "", (), "failed")]) is None


# --- Users ---------------------------------------------------------------------------------------


def test_examples_are_what_the_model_recommends(
    tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset
) -> None:
    recommender = Recommender(tiny_bundle)
    examples = {one.user_id: one for one in examples_of(recommender, tiny_dataset, users=20)}
    assert "eve" not in examples  # her target, the scarf, is not in the catalogue
    ann = examples["ann"]
    assert [item.item_id for item in ann.newest] == ["hat", "gloves", "boots"]
    assert ann.newest[0].label == "Top hat"
    assert ann.held_out.item_id == "jacket"
    expected = recommender.recommend({"ann": ["boots", "gloves", "hat"]}, k=5)["item_id"].to_list()
    assert [one.item.item_id for one in ann.recommended] == expected
    assert ann.rank == expected.index("jacket") + 1
    reasons = recommender.explain(["boots", "gloves", "hat"], "jacket")
    best = reasons.sort("share", descending=True).filter(pl.col("share") > 0)
    found = next(one.reasons for one in ann.recommended if one.held_out)
    assert [item.item_id for item, _ in found] == best["item_id"].to_list()[:2]


def test_a_model_without_parts_has_reasons_by_removal(
    tiny_dot_bundle: ModelBundle, tiny_dataset: PreparedDataset, report: RunReport
) -> None:
    examples = examples_of(Recommender(tiny_dot_bundle), tiny_dataset, users=2, seed=1)
    assert len(examples) == 2
    assert any(item.reasons for one in examples for item in one.recommended)
    assert "speak for it" in run_page(replace(report, examples=examples))
    assert examples == examples_of(Recommender(tiny_dot_bundle), tiny_dataset, users=2, seed=1)


def test_a_run_alone_has_no_rival(report: RunReport) -> None:
    comparison = report.comparison
    row = replace(comparison.rows[0], differences={})
    alone = replace(comparison, rows=(row,), models=comparison.models[:1])
    answer = Answer.of(alone)
    assert (answer.rival, answer.difference, answer.verdict) == (None, None, "")
    assert "on 60 held-out purchases. A random order" in answer.sentence(60)
    assert "reference" not in text_of(run_page(replace(report, comparison=alone)))


def test_a_baseline_recommends_with_reasons(tiny_dataset: PreparedDataset, tmp_path: Path) -> None:
    experiment = parse_experiment(
        {"name": "counts", "baseline": "markov", "tracking": {"uri": f"sqlite:///{tmp_path}/m.db"}}
    )
    run = fit_baseline_bundle(experiment, tiny_dataset, tmp_path / "counts")
    examples = examples_of(Recommender.load(run.bundle), tiny_dataset, users=3)
    assert all(one.recommended for one in examples)
    assert any(item.reasons for one in examples for item in one.recommended)
