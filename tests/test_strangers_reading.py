"""Files that others published are read as what they are; copies and orders of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import recsys
from tests.helpers.commands import refused, run

ROWS = [
    (user, item, 978_300_900 + number)
    for number, (user, item) in enumerate(
        zip("78877887", (30, 40, 30, 20, 30, 40, 30, 20), strict=True)
    )
]
USERS, ITEMS = [7, 8], [30, 20, 30, 20, 40, 30, 40, 30]
"""The users, and the items of each, oldest first."""


def rows(form: str) -> str:
    """Return lines, newest first."""
    return "".join(f"{form.format(*row)}\n" for row in reversed(ROWS))


WIDE = [f"feature_{number}" for number in range(2_000)]
ORDERED = "user,item,rating\n" + "".join(f"{user},{item},3\n" for user, item, _ in ROWS)
SEVERAL = {f"{n}.csv": "user,item,time\n{},{},{}\n".format(*row) for n, row in enumerate(ROWS)}
SEVERAL["2.csv"] = "time;user;item;more\r\n{2};{0};{1};x".format(*ROWS[2])
FORMS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "RecBole: a folder": (
        {
            "x.inter": "user_id:token\titem_id:token\ttimestamp:float\n" + rows("{}\t{}\t{}"),
            "x.item": "item_id:token\tgenre:token_seq\n30\tDrama Comedy\n",
        },
        {"items": "log/x.item"},
    ),
    "2,003 columns": (
        {
            "a.csv": ",".join(["user", "item", "time", *WIDE])
            + "\n"
            + rows("{},{},{}" + ",1" * 2_000)
        },
        {},
    ),
    "files of other columns, delimiters and line ends": (SEVERAL, {}),
    "the order of the rows": ({"a.csv": ORDERED}, {"time": "row-order"}),
    "blank lines and other rows in between": (
        {"a.csv": ORDERED.replace("\n7", "\n\n9,1,0\n7")},
        {"time": "row-order", "where": "rating > 0"},
    ),
}


@pytest.mark.parametrize(("files", "words"), FORMS.values(), ids=FORMS)
def test_read_as_what_they_are(
    files: dict[str, str], words: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log").mkdir()
    for name, text in files.items():
        Path("log", name).write_text(text)
    dataset = recsys.prepare("log", out="out", **words)
    assert dataset.user_ids.to_list() == USERS
    assert dataset.item_table["item_id"].gather(dataset.items - 1).to_list() == ITEMS


def log(**columns: Any) -> pl.DataFrame:
    """A log of 60 interactions of 10 users, in which no two rows are the same."""
    values = np.arange(60)
    table = {"user": values // 6 + 100, "item": values % 23, "time": values}
    return pl.DataFrame(table).with_columns(**columns)


NO_TIME = log().drop("time")
TWICE = pl.concat([log(), log()])
SOME_TWICE = pl.concat([log(), log().filter(pl.col("time").is_in([5, 10, 11, 30]))])
"""Of user 100 the last row, of user 101 the last two, and one that is not held out."""


@pytest.mark.parametrize(("table", "is_said"), [(SOME_TWICE, True), (log(), False)])
def test_copies_across_the_cut_are_said(
    table: pl.DataFrame, is_said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recsys.prepare(table, out=tmp_path / "out")
    advice = "(10.0%) are copies, in user, item and time, of earlier ones, which a model has seen: "
    said = f"2 of 20 held-out interactions {advice}--set data.duplicates=drop_exact"
    assert (said in caplog.text) == is_said
    assert sum(record.levelname == "WARNING" for record in caplog.records) == is_said


@pytest.mark.parametrize(
    ("table", "words", "interactions"),
    [(TWICE, [], 60), (SOME_TWICE, [], 64), (TWICE, ["--set", "data.duplicates=keep"], 120)],
    ids=["most rows", "some rows", "asked to keep them"],
)
def test_the_automatic_run_drops_copies_where_most_rows_are(
    table: pl.DataFrame,
    words: list[str],
    interactions: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The store is refused after the log is prepared, so that nothing is trained."""
    caplog.set_level("INFO")
    monkeypatch.chdir(tmp_path)
    table.write_csv("log.csv")
    ended = refused("run", "log.csv", "--tracking-uri", "sqlite:///.", *words)
    assert "tracking.uri sqlite:///." in ended
    dataset = recsys.PreparedDataset.open("data/log")
    assert len(dataset.items) == interactions
    assert ("60 dropped (duplicates)" in caplog.text) == (interactions == 60)


def test_the_advice_of_the_audit_can_be_pasted(tmp_path: Path) -> None:
    recsys.prepare(SOME_TWICE, out=tmp_path / "data")
    audited = run("audit", tmp_path / "data", "--json")
    assert "--set data.duplicates=drop_exact removes" in audited
    assert '"count": 2' in audited


@pytest.fixture(scope="module")
def ordered(tmp_path_factory: pytest.TempPathFactory) -> recsys.PreparedDataset:
    """A dataset whose times are the order of rows in which each item follows the one before."""
    folder = tmp_path_factory.mktemp("ordered")
    return recsys.prepare(NO_TIME, out=folder / "data", time="row-order")


def test_a_dataset_in_the_order_of_its_rows_cannot_grow(ordered: recsys.PreparedDataset) -> None:
    with pytest.raises(recsys.InputError, match="numbers of the rows"):
        recsys.append(NO_TIME, ordered.path)


def test_a_log_is_scored_in_the_order_of_its_rows(
    ordered: recsys.PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = recsys.Experiment.model_validate({"name": "a", "training": {"max_epochs": 1}})
    model = recsys.load(recsys.train(experiment, ordered).bundle)
    forwards, backwards = (
        model.score(rows, pl.DataFrame({"user_id": [100], "item_id": [9]}))["score"].item()
        for rows in (NO_TIME, NO_TIME.reverse())
    )
    timed = NO_TIME.rename({"user": "user_id", "item": "item_id"}).with_row_index("timestamp")
    candidates = pl.DataFrame({"user_id": [100], "item_id": [9]})
    assert (
        model.score(timed.sample(fraction=1, shuffle=True), candidates)["score"].item() == forwards
    )
    assert forwards != backwards
