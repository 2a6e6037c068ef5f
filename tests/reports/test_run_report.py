"""The report of an automatic run: one page from plain data."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pytest

from recsys.config.files import parse_experiment
from recsys.data.audit import audit
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.experiments.baselines import fit_baselines
from recsys.experiments.fit import fit
from recsys.reports.comparison import ComparedRun, compare, verdict
from recsys.reports.run_page import (
    Choice,
    RacePoint,
    Racer,
    RunReport,
    answer_in_words,
    by_outcome,
    draw_race,
    examples_of,
    random_ndcg_at_10,
    write_run_report,
)
from recsys.reports.statistics import PairedResult
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from recsys.shop.simulation import make_shop
from tests.conftest import Look
from tests.helpers.html_faults import html_faults, text_of
from tests.helpers.rank_tables import ranked

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
    baselines = fit_baselines(["popularity", "pctm"], experiment, data)
    comparison = compare([run.run_id, *baselines], experiment.tracking)
    points = tuple(RacePoint(10.0 * n, n, 0.01 * n) for n in (1, 2, 3))
    return RunReport(
        name="purchases",
        dataset=data,
        findings=audit(data, "allow"),
        comparison=comparison,
        command="recsys run purchases.csv --time-limit 10m",
        date=datetime(2026, 11, 22, 20, 0, tzinfo=UTC),
        seconds=613,
        choices=(Choice("evaluation.seen", "allow", "29% of the interactions are repeats."),),
        racers=(
            Racer("dot product", "SASRec", points[:2], "dropped after 2 epochs"),
            Racer("target attention", EVIL, points, "won", won=True),
            Racer("HSTU", "without times", (), "too large for the memory"),
            Racer("pctm", "window 10, recent decay 0.7", (RacePoint(1, 0, 0.021),), "a baseline"),
            Racer("popularity", "", (RacePoint(0, 0, 0.008),), "a baseline"),
        ),
        examples=examples_of(Recommender.load(run.bundle), data, users=5),
        versions={"peak memory": "884 MiB", "torch": "2.13"},
    )


def run_page(report: RunReport) -> str:
    with TemporaryDirectory() as folder:
        return write_run_report(f"{folder}/page.html", report).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(report: RunReport) -> str:
    return run_page(report)


def test_the_page_has_every_part(report: RunReport, page: str) -> None:
    words = text_of(page)
    ours, _, *baselines = report.comparison.rows
    mean, low, high = (f"{n:.4f}".replace("0.", ".", 1) for n in ours.intervals["ndcg_at_10"])
    assert f"NDCG@10 {mean} [{low}, {high}] on {report.comparison.targets} held-out" in words
    assert f"the best baseline, {max(baselines, key=merit).name}" in words
    for text in (
        *("recsys run purchases.csv --time-limit 10m", "took 10.2 minutes", "884 MiB"),
        *("2026-11-22 20:00 UTC", "29% of the interactions are repeats."),
        f"interactions {report.dataset.manifest.counts['interactions']:,}: ",
        "rows 1,459 read, dropped: none",
        "NDCG@10 is 1 where the held-out item is the first of the list",
        *("too large for the memory", "pctm window 10, recent decay 0.7 .0210 0 1 a baseline"),
        *("future_training", EVIL),
    ):
        assert text in words
    # The winner of the race stands first.
    assert words.index("target attention chosen") < words.index("dropped after 2 epochs")
    assert "<b>C0" not in page
    order = ["At a glance", "Every number", "What was tried", "The log", "5 users", "Make it again"]
    assert [words.index(part) for part in order] == sorted(words.index(part) for part in order)


def test_the_page_is_one_file_that_loads_nothing(
    report: RunReport, page: str, tmp_path: Path
) -> None:
    assert html_faults(page) == []
    assert page.count("prefers-color-scheme") == 1  # on screens alone: it prints on white
    assert "@media screen and (prefers-color-scheme: dark) {" in page
    assert re.findall(r'(?:src|href)="([^#"][^"]*)"', page) == ["data:,"]
    assert "url(" not in page
    assert "@import" not in page
    path = write_run_report(tmp_path / "report.html", report)
    assert path.read_text(encoding="utf-8") == page
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(InputError, match=r"report\.html: cannot be written"):
        write_run_report(path / "report.html", report)


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_it(
    report: RunReport, tmp_path: Path, look: Look, width: int, dark: bool
) -> None:
    look(write_run_report(tmp_path / "report.html", report), width, dark).check(width, dark)


# --- The answer ----------------------------------------------------------------------------------


def merit(row: ComparedRun) -> float:
    return row.metrics["ndcg_at_10"]


def test_the_answer_is_compared_with_its_best_rival(report: RunReport) -> None:
    ours, alone, *baselines = report.comparison.rows
    assert ours.model == f"{alone.model} + counts"
    best = max(baselines, key=merit)
    difference = best.differences["ndcg_at_10"].of_b_against_a
    assert difference.difference == pytest.approx(merit(ours) - merit(best))
    first, sentence = answer_in_words(report.comparison)
    assert verdict(difference, merit(best), f"the best baseline, {best.name}") in sentence
    assert "A random order of the items reaches ." in sentence
    assert first in {"mine is the answer", "Nothing here orders the items better than chance"}
    rows = replace(best, differences={}), replace(ours, differences={"ndcg_at_10": difference})
    _, sentence = answer_in_words(replace(report.comparison, rows=rows))
    than = verdict(difference.of_b_against_a, merit(ours), "the best trained model, mine")
    assert than in sentence
    single = replace(report.comparison, rows=(replace(ours, differences={}),))
    assert "held-out purchases. A random order" in answer_in_words(single)[1]
    assert "reference" not in text_of(run_page(replace(report, comparison=single)))


def test_the_verdict_follows_the_difference() -> None:
    for difference, p_value, mean, words in (
        (0.012, 0.0001, 0.1, "+12% over the best (p = .0001)"),
        (0.012, 0.31, 0.1, "+12% against the best, which may be chance (p = .3100)"),
        (-0.03, 0.001, 0.1, "−30% against the best, which did better (p = .0010)"),
        (0.1, 0.001, 0.0, "+.1000 over the best (p = .0010)"),
    ):
        result = PairedResult(difference, 0, 0, p_value)
        assert verdict(result, mean, "the best").replace("\xa0", " ") == words


def test_chance_by_hand() -> None:
    """One target among 20 items; two targets of one list of 5 items."""
    gains = 1 / np.log2(np.arange(2, 12))
    assert random_ndcg_at_10(ranked([3], num_items=20)) == pytest.approx(gains.sum() / 20)
    pair = ranked([1, 2], num_items=5, seen="allow")
    frame = pair.frame.with_columns(user=pl.lit(0), target=pl.Series([1, 2], dtype=pl.Int32))
    reached = 2 / 5 * gains[:5].sum() / gains[:2].sum()
    assert random_ndcg_at_10(replace(pair, frame=frame)) == pytest.approx(reached)


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
    (chart,) = draw_race(by_outcome(racers))
    assert "minutes of training" in chart.svg
    assert "The broken line is the best baseline, good." in chart.caption
    assert chart.svg.count("<use ") == 10 + 3 + 1 + 2  # points, a cross, the legend
    assert draw_race([Racer("none", "", (), "failed")]) == []


# --- Users ---------------------------------------------------------------------------------------


def test_examples_are_what_the_model_recommends(
    tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset
) -> None:
    recommender = Recommender(tiny_bundle)
    table = examples_of(recommender, tiny_dataset, users=20)
    rows: Any = table.rows
    users = {user.text: cells for user, *cells in rows}
    assert "eve" not in users  # her target, the scarf, is not in the catalogue
    newest, best, target = users["ann"]
    assert newest.lines == ["Top hat", "gloves", "Snow boots"]
    history = ["boots", "gloves", "hat"]
    expected = recommender.recommend({"ann": history}, k=5)["item_id"].to_list()
    names = {"boots": "Snow boots", "hat": "Top hat"}
    assert [line.partition(". ")[2].partition(" (")[0] for line in best.lines] == [
        names.get(item, item) for item in expected
    ]
    place = expected.index("jacket")
    assert (target.text, target.tag) == ("jacket", f"{place + 1}. in the list")
    reasons = recommender.explain(history, "jacket").sort("share", descending=True)
    shares = reasons.filter(pl.col("share") > 0).head(2).select("item_id", "share").iter_rows()
    because = ", ".join(f"{names.get(item, item)} {share:.0%}" for item, share in shares)
    assert best.lines[place] == f"{place + 1}. jacket ({because})"
