"""The report of a comparison: a page for the browser, pictures, CSV and LaTeX."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.image import imread
from mlflow import MlflowClient

import recsys
from recsys.comparison.compare import compare
from recsys.comparison.page import comparison_latex, write_comparison_report
from recsys.comparison.seeds import ModelRuns
from recsys.config import TrackingConfig, parse_experiment
from recsys.data.audit import audit
from recsys.errors import InputError
from recsys.evaluation.metrics.ranks import ndcg_at
from recsys.evaluation.tables.rank import RankProtocol, RankTable
from recsys.experiments.baseline import fit_baseline
from recsys.shop.simulation import make_shop
from recsys.tracking.runs import learning_curves

EVIL = '<img src="x" onerror="alert(1)"> $a_1$'
BROWSER = next(filter(shutil.which, ("chromium", "google-chrome", "chromium-browser")), None)
TAGS = {"dataset": "shop", "dataset_fingerprint": "f00d", "protocol.split": "leave_last_out"}


def ranked(ranks: np.ndarray) -> RankTable:
    frame = pl.DataFrame(
        {
            "user": np.arange(len(ranks)),
            "target": np.ones(len(ranks), dtype=np.int32),
            "rank": ranks,
            "history_length": np.ones(len(ranks), dtype=np.int32),
        }
    )
    return RankTable(frame, RankProtocol("test", 200, "filter", "against_target", 0))


@pytest.fixture(scope="module")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> TrackingConfig:
    """A store with a baseline, a better run that was trained, and one with a dangerous name."""
    folder = tmp_path_factory.mktemp("store")
    config = TrackingConfig(uri=f"sqlite:///{folder}/mlflow.db", experiment="mine")
    client = MlflowClient(config.uri)
    experiment = client.create_experiment("mine", (folder / "artifacts").as_uri())
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
        for epoch in (1, 2) if name == "better" else ():
            client.log_metric(run_id, "epoch/valid_ndcg_at_10", 0.1 * epoch, step=epoch)
        client.set_terminated(run_id)
    return config


class Page(HTMLParser):
    """The text of each table cell, every tag, and every address the page names."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.addresses: list[str] = []
        self._open = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href"}]
        if tag in {"td", "th"}:
            self.cells.append("")
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in {"td", "th"}

    def handle_data(self, data: str) -> None:
        if self._open:
            self.cells[-1] += data


def test_the_page_shows_everything_in_the_frame(tracking: TrackingConfig, tmp_path: Path) -> None:
    comparison = recsys.compare((), tracking, report=tmp_path / "out")
    page = Page((tmp_path / "out" / "comparison.html").read_text())
    better = next(cell for cell in page.cells if cell.startswith("better"))
    mean, low, high = comparison.rows[1].intervals["ndcg_at_10"]
    cell = page.cells[page.cells.index(better) + 2]
    assert cell.startswith(f"{mean:.4f}*".replace("0.", "."))
    assert f"[{low:.4f}, {high:.4f}]".replace("0.", ".") in cell
    assert "p = .000" in cell
    worse = next(cell for cell in page.cells if cell.startswith("<img"))
    assert "†" in page.cells[page.cells.index(worse) + 2]
    # The page loads nothing from elsewhere, and names are escaped.
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert page.tags.count("img") == len(page.addresses) == 5
    assert "script" not in page.tags


def test_files_next_to_the_page(tracking: TrackingConfig, tmp_path: Path) -> None:
    comparison = recsys.compare((), tracking, report=tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        *("comparison.html", "comparison.csv", "comparison.tex", "manifest.json"),
        *("ndcg_by_k.png", "recall_by_k.png", "differences.png", "learning_curves.png"),
        "costs.png",
    }
    table = pl.read_csv(tmp_path / "out" / "comparison.csv")
    assert table["ndcg_at_10"].to_list() == comparison.frame()["ndcg_at_10"].to_list()
    kept = MlflowClient(tracking.uri).list_artifacts(comparison.rows[0].run_id, "comparison")
    assert "comparison/comparison.html" in {file.path for file in kept}


def test_curves_are_those_of_the_epochs(tracking: TrackingConfig) -> None:
    comparison = compare([], tracking)
    curves = learning_curves([model.first for model in comparison.models], tracking)
    assert curves == {comparison.rows[1].run_id: {1: 0.1, 2: 0.2}}


def test_latex_is_escaped_and_marked(tracking: TrackingConfig) -> None:
    latex = comparison_latex(compare([], tracking))
    assert r"\$a\_1\$" in latex
    assert re.search(r"better & \\textbf\{[.\d]+\*\} & \\textbf\{[.\d]+\*\} \\\\", latex)
    assert r"$^\dagger$" in latex
    assert latex.count("{") == latex.count("}")


def test_a_single_run_has_no_differences(tracking: TrackingConfig, tmp_path: Path) -> None:
    comparison = compare(["popularity"], tracking)
    page = write_comparison_report(tmp_path / "out", comparison, {})
    text = page.read_text()
    assert "difference" not in text
    assert "<b>" not in text.split("<tbody>")[1].split("</tbody>")[0]
    assert not (page.parent / "learning_curves.png").exists()


def test_the_same_runs_give_the_same_bytes(tracking: TrackingConfig, tmp_path: Path) -> None:
    comparison = compare([], tracking)
    for folder in ("a", "b", "a"):  # the last in place of an earlier report
        write_comparison_report(tmp_path / folder, comparison, {})
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_another_folder_is_not_replaced(tracking: TrackingConfig, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(InputError, match="mine: "):
        write_comparison_report(tmp_path / "mine", compare([], tracking), {})
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine")
def test_a_browser_shows_it(tracking: TrackingConfig, tmp_path: Path) -> None:
    page = write_comparison_report(tmp_path / "out", compare([], tracking), {})
    assert BROWSER is not None
    words = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    words += ["--disable-background-networking", "--disable-component-update"]
    words += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,1800"]

    def browse(action: str) -> str:
        command = [*words, action, page.as_uri()]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=120
        ).stdout

    assert "3 runs on shop" in browse("--dump-dom")
    browse(f"--screenshot={tmp_path / 'page.png'}")
    pixels = imread(tmp_path / "page.png")
    assert pixels.shape[:2] == (1800, 1200)
    assert np.ptp(pixels[1000:, :, :3]) > 0.5  # pictures were drawn, not left empty


def test_the_page_of_real_runs_has_segments_and_audit(tmp_path: Path) -> None:
    shop = make_shop(num_customers=60, num_products=220)
    experiment = parse_experiment(
        {"name": "mine", "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"}}
    )
    data = recsys.prepare(shop.interactions, out=tmp_path / "data", items=shop.products)
    runs = [fit_baseline(name, experiment, data) for name in ("popularity", "markov")]
    recsys.compare(runs, experiment.tracking, report=tmp_path / "out")
    page = Page((tmp_path / "out" / "comparison.html").read_text())
    found = {finding.name: finding for finding in audit(data)}
    row = page.cells.index("future_training")
    assert page.cells[row + 1] == "", "nothing to act upon"
    warned = [name for name in found if found[name].severity == "warn"]
    assert [page.cells[page.cells.index(name) + 1] for name in warned] == ["warning"] * len(warned)
    assert page.cells[row + 2] == f"{found['future_training'].count:,}"
    assert set(found) <= set(page.cells)
    assert (tmp_path / "out" / "segments.png").is_file()


def test_a_segment_has_the_metrics_of_its_targets(tracking: TrackingConfig) -> None:
    (model,) = compare(["popularity"], tracking).models
    kinds = pl.Series("purchase", ["new", "repeat"] * 150)
    ranks = model.first.ranks
    run = replace(model.first, ranks=replace(ranks, frame=ranks.frame.with_columns(kinds)))
    intervals = ModelRuns((run,)).where("purchase", "new").intervals(["ndcg_at_10"])
    assert intervals["ndcg_at_10"].mean == pytest.approx(ndcg_at(run.ranks.ranks[::2], 10).mean())


def test_runs_of_other_targets_are_shown_untested(tracking: TrackingConfig, tmp_path: Path) -> None:
    comparison = compare(["popularity", "better"], tracking)
    first, other = comparison.models
    ranks = other.first.ranks
    fewer = replace(other.first, ranks=replace(ranks, frame=ranks.frame.head(9)))
    row = replace(comparison.rows[1], differences={}, name=comparison.rows[0].name)
    apart = replace(comparison, models=(first, ModelRuns((fewer,))), rows=(comparison.rows[0], row))
    page = write_comparison_report(tmp_path / "out", apart, {})
    assert not (page.parent / "differences.png").exists()
    # Two runs of one name are two lines.
    assert comparison_latex(apart).count("popularity &") == 2
