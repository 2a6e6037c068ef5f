"""The report of a comparison: a page for the browser, pictures, CSV and LaTeX."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree.ElementTree import fromstring

import numpy as np
import polars as pl
import pytest
from mlflow import MlflowClient

import recsys
from recsys.config import TrackingConfig, parse_experiment
from recsys.data.audit import audit
from recsys.drawing.marks import BEST, GREY, key
from recsys.drawing.svg import markup
from recsys.errors import InputError
from recsys.evaluation.metrics import metric_values
from recsys.evaluation.tables import RankProtocol, RankTable
from recsys.experiments.baselines import fit_baseline
from recsys.reports.comparison import compare
from recsys.reports.comparison_page import (
    by_merit,
    comparison_latex,
    draw_intervals,
    headline,
    page_table,
    write_comparison_report,
)
from recsys.reports.statistics import ModelRuns
from recsys.reports.tables import Comparison
from recsys.shop.simulation import make_shop
from recsys.tracking.runs import learning_curves
from tests.unit.conftest import Look
from tests.unit.html_faults import html_faults

EVIL = '<img src="x" onerror="alert(1)"> $a_1$'
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


def many_runs(comparison: Comparison) -> Comparison:
    """Repeat the runs until there are twelve, each with a name of its own."""
    times = range(4)
    rows = [
        replace(row, name=f"{row.name} with a rather long name {number}" if number else row.name)
        for number in times
        for row in comparison.rows
    ]
    rows = [replace(row, run_id=f"{number:032x}") for number, row in enumerate(rows)]
    return replace(comparison, rows=tuple(rows), models=comparison.models * len(times))


class Page(HTMLParser):
    """The text of each table cell and heading, every tag, and every address the page names."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.headings: list[str] = []
        self.addresses: list[str] = []
        self._open = self._heading = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href"}]
        self._heading = tag == "h2"
        if tag == "h2":
            self.headings.append("")
        if tag in {"td", "th"}:
            self.cells.append("")
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in {"td", "th"}
        self._heading = self._heading and tag != "h2"

    def handle_data(self, data: str) -> None:
        if self._open:
            self.cells[-1] += data
        if self._heading:
            self.headings[-1] += data


def test_the_page_shows_everything_in_the_frame(tracking: TrackingConfig, tmp_path: Path) -> None:
    comparison = recsys.compare((), tracking, report=tmp_path / "out")
    page = Page((tmp_path / "out" / "comparison.html").read_text())
    better = next(cell for cell in page.cells if re.match("better.*fitted on", cell))
    mean, low, high = comparison.rows[1].intervals["ndcg_at_10"]
    cell = page.cells[page.cells.index(better) + 2]
    assert cell.startswith(f"{mean:.4f}*".replace("0.", "."))
    assert f"[{low:.4f}, {high:.4f}]".replace("0.", ".") in cell
    assert "p = .000" in cell
    worse = next(cell for cell in page.cells if re.match("<img.*fitted on", cell))
    assert "†" in page.cells[page.cells.index(worse) + 2]
    # The page loads nothing from elsewhere, and names are escaped.
    assert page.addresses == ["data:,"]  # no icon to ask for
    assert "img" not in page.tags
    assert page.tags.count("script") == 1  # ours
    text = " ".join((tmp_path / "out" / "comparison.html").read_text().split())
    assert "NDCG@10 is 1 where the held-out item is the first of the list, less the lower" in text
    assert "reach the picture with the Tab key" in text
    assert html_faults((tmp_path / "out" / "comparison.html").read_text()) == []
    assert page.headings[:4] == [
        *("NDCG@10", "Difference to popularity", "Learning curves", "Every number")
    ]


def test_rows_are_in_the_order_of_merit(tracking: TrackingConfig) -> None:
    comparison = compare([], tracking)
    assert [row.name for row in comparison.rows] == ["popularity", "better", EVIL]
    runs = by_merit(comparison)
    assert [run.row.name for run in runs] == ["better", "popularity", EVIL]
    assert [run.is_reference for run in runs] == [False, True, False]
    assert [run.is_best for run in runs] == [True, False, False]
    labels = [
        "".join(text.itertext())
        for text in draw_intervals(comparison).wide.iter("text")
        if "halo" in text.get("class", "")
    ]
    mean, low, high = (f"{value:.4f}".lstrip("0") for value in runs[0].interval)
    assert labels[:3] == ["better", f"{mean} [{low}, {high}]", "popularity · reference"]


def test_every_run_of_many_has_a_style_of_its_own(tracking: TrackingConfig) -> None:
    comparison = many_runs(compare([], tracking))
    styles = [run.style for run in by_merit(comparison)]
    assert len(set(styles)) == len(comparison.rows) == 12
    assert GREY not in styles
    assert styles[0] == BEST
    table = page_table(comparison)["rows"]
    assert isinstance(table, list)
    assert [row["key"] for row in table] == [markup(key(style)) for style in styles]


def test_a_comparison_without_ndcg_goes_by_its_last_metric(tracking: TrackingConfig) -> None:
    comparison = compare([], tracking, metrics=["recall_at_5", "mrr"])
    assert headline(comparison) == "mrr"
    assert draw_intervals(comparison).title == "MRR"


def test_every_picture_has_its_numbers_in_a_table(tracking: TrackingConfig, tmp_path: Path) -> None:
    comparison = recsys.compare((), tracking, report=tmp_path / "out")
    text = (tmp_path / "out" / "comparison.html").read_text()
    whole = r'<figure id="(\w+)">.*?</figure>\s*<details>(.*?)</details>'
    figures = re.findall(whole, text, re.DOTALL)
    assert [name for name, _ in figures] == re.findall(r'<figure id="(\w+)">', text)
    tables = {name: Page(table).cells for name, table in figures}
    mean, low, high = (f"{value:.4f}"[1:] for value in comparison.rows[1].intervals["ndcg_at_10"])
    assert tables["intervals"][:6] == [
        *("run", "NDCG@10", "95% interval", "better", mean, f"[{low}, {high}]")
    ]
    found = comparison.rows[1].differences["ndcg_at_10"]
    assert tables["differences"][4:6] == ["better", f"+{found.difference:.4f}".replace("0.", ".")]
    assert tables["learning_curves"] == [
        *("epoch", "better", "epoch 1", ".1000", "epoch 2", ".2000")
    ]
    assert tables["ndcg_by_k"][:2] == ["metric", "better"]
    assert f"{mean} [{low}, {high}]" in tables["ndcg_by_k"]
    assert tables["costs"][4:6] == ["better", "100.00"]
    assert tables["users"][0:4] == ["run", "better for", "worse for", "equal for"]
    assert sum(int(share[:-1]) for share in tables["users"][5:8]) == pytest.approx(100, abs=1)


def test_files_next_to_the_page(tracking: TrackingConfig, tmp_path: Path) -> None:
    comparison = recsys.compare((), tracking, report=tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        *("comparison.html", "comparison.csv", "comparison.tex"),
        *("intervals.svg", "differences.svg", "learning_curves.svg", "ndcg_by_k.svg"),
        *("recall_by_k.svg", "costs.svg", "users.svg"),
    }
    for file in (tmp_path / "out").glob("*.svg"):
        root = fromstring(file.read_text())  # noqa: S314 - our own
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
    table = pl.read_csv(tmp_path / "out" / "comparison.csv")
    assert table["ndcg_at_10"].to_list() == comparison.frame()["ndcg_at_10"].to_list()
    kept = MlflowClient(tracking.uri).list_artifacts(comparison.rows[0].run_id, "comparison")
    assert "comparison/comparison.html" in {file.path for file in kept}


def test_curves_are_those_of_the_epochs(tracking: TrackingConfig) -> None:
    comparison = compare([], tracking)
    curves = learning_curves([model.first for model in comparison.models], tracking)
    assert curves == {comparison.rows[1].run_id: {1: 0.1, 2: 0.2}}


@pytest.mark.parametrize(("seconds", "text"), [(0.0, "0.00"), (0.004, "<0.01"), (99.6, "100")])
def test_short_times_are_not_shown_as_none(
    tracking: TrackingConfig, seconds: float, text: str
) -> None:
    comparison = compare(["popularity"], tracking)
    row = replace(comparison.rows[0], costs={"fit_seconds": seconds})
    table = page_table(replace(comparison, rows=(row,)))
    assert table["costs"] == ["seconds to fit"]
    assert isinstance(table["rows"], list)
    assert table["rows"][0]["costs"] == [text]


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
    assert "reference" not in text
    assert "<b>" not in text.split("<tbody>")[1].split("</tbody>")[0]
    assert not (page.parent / "learning_curves.svg").exists()


def test_the_same_runs_give_the_same_bytes(tracking: TrackingConfig, tmp_path: Path) -> None:
    comparison = compare([], tracking)
    for folder in ("a", "b", "a"):  # the last in place of an earlier report
        write_comparison_report(tmp_path / folder, comparison, {})
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


@pytest.mark.parametrize("name", ["thesis.txt", "logo.svg"])
def test_another_folder_is_not_replaced(
    tracking: TrackingConfig, tmp_path: Path, name: str
) -> None:
    """Nor is a report that holds a file of the user, or a file."""
    comparison = compare([], tracking)
    file = write_comparison_report(tmp_path / "mine", comparison, {}).parent / name
    file.write_text("years")
    for path in (file.parent, file):
        with pytest.raises(InputError, match=rf"{path}: .*{name} is not part of a comparison"):
            write_comparison_report(path, comparison, {})
    assert file.read_text() == "years"


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_it(
    tracking: TrackingConfig, tmp_path: Path, look: Look, width: int, dark: bool
) -> None:
    comparison = many_runs(compare([], tracking))
    names = [run.label for run in by_merit(comparison)]
    curves = {row.run_id: {1: 0.1, 2: 0.2} for row in comparison.rows}
    page = write_comparison_report(tmp_path / "out", comparison, curves)
    sight = look(page, width, dark)
    assert sight.width == width
    assert sight.needed <= width  # tables scroll in their own box
    assert sight.dark == dark
    assert (sight.pixels[:40].mean() < 0.3) == dark
    assert np.ptp(sight.pixels[1000:]) > 0.5  # pictures were drawn, not left empty
    assert sight.crossing == []
    assert sight.outside == []
    pictures = {each["name"]: each for each in sight.readings}
    assert {"intervals", "differences", "learning_curves", "costs"} <= set(pictures)
    for each in sight.readings:
        assert set(each["keys"]) <= set(each["marks"])
        assert each["tap"] == each["marks"][0]
        assert each["chosen"] == 1
    # Rows go down; along a line and from line to line, the best first.
    forest = pictures["intervals"]
    assert forest["keys"] == [*forest["marks"][:3], forest["marks"][-1]]
    *_, worse, best = (
        [mark for mark in pictures["ndcg_by_k"]["marks"] if mark.startswith(f"{name}, ")]
        for name in reversed(names[:2])
    )
    assert pictures["ndcg_by_k"]["keys"] == [best[0], best[1], worse[1], worse[-1]]
    assert sight.console == []
    assert sight.links == 0


def test_the_page_of_real_runs_has_segments_and_audit(tmp_path: Path) -> None:
    shop = make_shop(num_customers=60, num_products=220)
    experiment = parse_experiment(
        {"name": "mine", "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"}}
    )
    data = recsys.prepare(shop.interactions, out=tmp_path / "data", items=shop.products)
    runs = [fit_baseline(name, experiment, data) for name in ("popularity", "markov")]
    for _ in range(2):  # an earlier report with all of its pictures is replaced
        recsys.compare(runs, experiment.tracking, report=tmp_path / "out")
    page = Page((tmp_path / "out" / "comparison.html").read_text())
    found = {finding.name: finding for finding in audit(data)}
    row = page.cells.index("future_training")  # no warning: leave_last_out cannot but do so
    assert page.cells[row + 1] == f"{found['future_training'].count:,}"
    shown = {f.name + ("warning" if f.severity == "warn" else "") for f in found.values()}
    assert any(cell.endswith("warning") for cell in shown)
    assert shown <= set(page.cells)
    assert (tmp_path / "out" / "segment_history.svg").is_file()


def test_a_segment_has_the_metrics_of_its_targets(tracking: TrackingConfig) -> None:
    (model,) = compare(["popularity"], tracking).models
    kinds = pl.Series("purchase", ["new", "repeat"] * 150)
    ranks = model.first.ranks
    run = replace(model.first, ranks=replace(ranks, frame=ranks.frame.with_columns(kinds)))
    intervals = ModelRuns((run,)).where("purchase", "new").intervals(["ndcg_at_10"])
    assert intervals["ndcg_at_10"].mean == pytest.approx(
        metric_values(run.ranks.ranks[::2], "ndcg_at_10").mean()
    )


def test_runs_of_other_targets_are_shown_untested(tracking: TrackingConfig, tmp_path: Path) -> None:
    comparison = compare(["popularity", "better"], tracking)
    first, other = comparison.models
    ranks = other.first.ranks
    fewer = replace(other.first, ranks=replace(ranks, frame=ranks.frame.head(9)))
    row = replace(comparison.rows[1], differences={}, name=comparison.rows[0].name)
    apart = replace(comparison, models=(first, ModelRuns((fewer,))), rows=(comparison.rows[0], row))
    page = write_comparison_report(tmp_path / "out", apart, {})
    assert not (page.parent / "differences.svg").exists()
    # Two runs of one name are two lines.
    assert comparison_latex(apart).count("popularity &") == 2
