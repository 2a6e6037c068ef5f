"""The report of a comparison: a page for the browser, pictures, CSV and LaTeX."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree.ElementTree import fromstring

import numpy as np
import polars as pl
import pytest
from mlflow import MlflowClient

import recsys
from recsys.config.experiment import TrackingConfig
from recsys.errors import InputError
from recsys.reports.comparison import Comparison, compare
from recsys.reports.comparison_page import comparison_latex, forests, write_comparison_report
from recsys.tracking.store import open_store
from tests.conftest import Look
from tests.helpers.html_faults import html_faults, text_of
from tests.helpers.rank_tables import ranked

EVIL = '<img src="x" onerror="alert(1)"> $a_1$'
TAGS = {"dataset": "shop", "dataset_fingerprint": "f00d", "protocol.split": "leave_last_out"}


@pytest.fixture(scope="module")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> TrackingConfig:
    """A store with a baseline, a better run that was trained, and one with a dangerous name."""
    folder = tmp_path_factory.mktemp("store")
    config = TrackingConfig(uri=f"sqlite:///{folder}/mlflow.db", experiment="mine")
    client, experiment = open_store(config)
    generator = np.random.default_rng(0)
    first = generator.integers(1, 60, 300)
    for start, (name, ranks) in enumerate(
        {"popularity": first, "better": (first + 1) // 2, EVIL: first * 3}.items(), 1
    ):
        run_id = client.create_run(experiment, start, {**TAGS, "model": name}, name).info.run_id
        ranked(ranks).save(folder / "ranks_test.parquet")
        client.log_artifact(run_id, str(folder / "ranks_test.parquet"))
        client.log_metric(run_id, "fit_seconds", 10.0**start)
        client.log_metric(run_id, "valid/ndcg_at_10", 0.3)
        client.set_terminated(run_id)
    return config


@pytest.fixture(scope="module")
def comparison(tracking: TrackingConfig) -> Comparison:
    return compare([], tracking)


@pytest.fixture(scope="module")
def folder(tracking: TrackingConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the three runs; to be read only."""
    folder = tmp_path_factory.mktemp("report") / "out"
    recsys.compare((), tracking, report=folder)
    return folder


def many_runs(comparison: Comparison) -> Comparison:
    times = range(4)
    rows = [
        replace(row, name=f"{row.name} with a rather long name {number}" if number else row.name)
        for number in times
        for row in comparison.rows
    ]
    return replace(comparison, rows=tuple(rows))


def test_the_page_shows_everything(comparison: Comparison, folder: Path) -> None:
    page = (folder / "comparison.html").read_text()
    assert html_faults(page) == []
    assert "<h1>3 runs on shop</h1>" in page
    words, better = text_of(page), comparison.rows[1]
    compared = r"\+\d+% over popularity \(\.\d{4}\) \(p\s=\s\.0002\)\."
    assert re.search(rf"better leads: NDCG@10 \.\d{{4}} \[.*\], {compared}", words)
    mean, low, high = (f"{value:.4f}"[1:] for value in better.intervals["ndcg_at_10"])
    difference, *_, p_value = better.differences["ndcg_at_10"]
    numbers = (
        rf"{mean}\* \[{low}, {high}\] \+{f'{difference:.4f}'[1:]} .*p = {f'{p_value:.4f}'[1:]}"
    )
    assert re.search(rf"better better, \w{{8}} fitted on unknown .*{numbers}", words)
    assert "†" in words.partition(f"{EVIL} {EVIL}")[2]
    assert re.findall("<h2>(.*?)</h2>", page) == ["At a glance", "Every number"]
    assert "NDCG@10 is 1 where the held-out item is the first of the list, less the lower" in words
    assert "3 targets outside the catalogue dropped" in words


def test_rows_are_in_the_order_of_merit(comparison: Comparison, tracking: TrackingConfig) -> None:
    assert [row.name for row in comparison.rows] == ["popularity", "better", EVIL]
    assert [row.name for row in comparison.by_merit()] == ["better", "popularity", EVIL]
    means, differences = forests(comparison)
    order = re.findall(r"<text.*>(better|pop.*)</text>", means.svg)
    assert order == ["better", "popularity · reference"]
    difference, *_, p_value = comparison.rows[1].differences["ndcg_at_10"]
    text = f">+{difference:.4f}, p = {p_value:.4f}</text>".replace("0.", ".")
    assert text in differences.svg
    last = compare([], tracking, metrics=["recall_at_5", "mrr"])  # without NDCG@10
    assert last.headline == "mrr"
    assert forests(last)[0].title == "MRR"


def test_files_next_to_the_page(
    comparison: Comparison, folder: Path, tracking: TrackingConfig, tmp_path: Path
) -> None:
    assert {file.name for file in folder.iterdir()} == {
        *("comparison.html", "comparison.csv", "comparison.tex"),
        *("intervals.svg", "differences.svg"),
    }
    for file in folder.glob("*.svg"):
        root = fromstring(file.read_text())  # noqa: S314 - our own
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
    table = pl.read_csv(folder / "comparison.csv")
    assert table["ndcg_at_10"].to_list() == comparison.frame()["ndcg_at_10"].to_list()
    kept = MlflowClient(tracking.uri).list_artifacts(comparison.rows[0].run_id, "comparison")
    assert "comparison/comparison.html" in {file.path for file in kept}
    for name in ("a", "b", "a"):  # the last in place of an earlier report: the same bytes
        write_comparison_report(tmp_path / name, comparison)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_latex_is_escaped_and_marked(comparison: Comparison) -> None:
    latex = comparison_latex(comparison)
    assert r"\$a\_1\$" in latex
    assert re.search(r"better & \\textbf\{[.\d]+\*\} & \\textbf\{[.\d]+\*\} \\\\", latex)
    assert r"$^\dagger$" in latex
    assert latex.count("{") == latex.count("}")


def test_a_single_run_has_no_differences(tracking: TrackingConfig, tmp_path: Path) -> None:
    page = write_comparison_report(tmp_path / "out", compare(["popularity"], tracking))
    text = page.read_text()
    assert "difference" not in text
    assert "reference" not in text
    assert "<b>" not in text.split("<tbody>")[1].split("</tbody>")[0]


@pytest.mark.parametrize("name", ["thesis.txt", "logo.svg"])
def test_another_folder_is_not_replaced(comparison: Comparison, tmp_path: Path, name: str) -> None:
    """Nor is a report that holds a file of the user, or a file."""
    file = write_comparison_report(tmp_path / "mine", comparison).parent / name
    file.write_text("years")
    for path in (file.parent, file):
        with pytest.raises(InputError, match=rf"{path}: .*{name} is not part of a comparison"):
            write_comparison_report(path, comparison)
    assert file.read_text() == "years"


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_it(
    comparison: Comparison, tmp_path: Path, look: Look, width: int, dark: bool
) -> None:
    page = write_comparison_report(tmp_path / "out", many_runs(comparison))
    look(page, width, dark).check(width, dark)
