"""From a stranger's log to a recommender: `recsys run LOG` and `recsys.fit(log)`."""

from __future__ import annotations

import re
import shutil
import time
from html import unescape
from pathlib import Path

import pandas as pd
import polars as pl
import pytest

import recsys
from recsys.automatic.clock import Clock
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.shop.simulation import make_shop
from tests.helpers.commands import run
from tests.helpers.terminal import Terminal


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    shop = make_shop(seed=1, num_customers=120)
    return shop.interactions.rename(
        {"user_id": "customer", "item_id": "sku", "timestamp": "bought_at"}
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pl.DataFrame) -> Path:
    monkeypatch.chdir(tmp_path)
    log.write_csv("purchases.csv")
    return tmp_path


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(monkeypatch, capsys)


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Stop automatic runs before they try a model; the seconds spent until then, of each run."""
    seconds = []

    def stop(_: object, __: object, clock: Clock, *___: object, **____: object) -> None:
        seconds.append(clock.spent)
        raise InputError("stopped")

    monkeypatch.setattr("recsys.automatic.run._run", stop)
    return seconds


def test_the_time_in_which_a_command_loads_its_libraries_counts(
    here: Path, spent: list[float], monkeypatch: pytest.MonkeyPatch, terminal: Terminal
) -> None:
    monkeypatch.setattr("recsys.cli.start.monotonic", lambda: time.monotonic() - 20)
    assert terminal.refused("run", "purchases.csv") == "error: stopped"
    assert spent[0] >= 20


@pytest.mark.parametrize(
    ("log_is", "prepared"),
    [
        ("data/events.csv", "data/events"),
        ("data/events/events.csv", "data/events-prepared"),
        ("data/*/*.csv", "events-prepared"),
    ],
)
def test_the_prepared_log_is_not_put_where_the_log_is(
    here: Path, monkeypatch: pytest.MonkeyPatch, log_is: str, prepared: str
) -> None:
    paths = []

    def stop(dataset: PreparedDataset, *_: object, **__: object) -> None:
        paths.append(dataset.path)
        raise InputError("stopped")

    monkeypatch.setattr("recsys.automatic.run._run", stop)
    Path("data/events").mkdir(parents=True)
    for path in ("data/events.csv", "data/events/events.csv"):
        shutil.copy("purchases.csv", path)
    if log_is == "data/events.csv":
        shutil.rmtree("data/events")
    with pytest.raises(InputError, match="stopped"):
        recsys.fit(log_is, name="events")
    assert [str(path) for path in paths] == [prepared]


@pytest.mark.slow
def test_a_frame_becomes_a_recommender(here: Path, log: pl.DataFrame) -> None:
    model = recsys.fit(log.to_pandas(), time_limit=6, preset="fast", name="mine")
    best = model.recommend(users=[log["customer"][0]], k=3)
    assert isinstance(best, pd.DataFrame)  # as the log
    assert len(best) == 3
    page = model.report()
    assert page == here.resolve() / "runs" / "mine" / "report.html"
    text = unescape(page.read_text(encoding="utf-8"))
    assert "recsys.fit(…)" in text
    model.save("bundle")
    again = recsys.load("bundle", "data/mine")
    assert again.recommend(users=[log["customer"][0]], k=3).rows() == list(
        best.itertuples(index=False, name=None)
    )
    with pytest.raises(InputError, match="no such page"):
        again.report()
    settings = recsys.load_experiment("runs/mine/experiment.yaml")
    assert settings.name == "mine"


@pytest.mark.slow
def test_the_command_prints_what_it_chose_and_made(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="recsys")
    words = ["--time-limit", "5s", "--preset", "fast", "--name", "quick"]
    printed = run("run", "purchases.csv", *words)
    for text in ("The answer is", "runs/quick/bundle", "runs/quick/report.html", "mlflow ui"):
        assert text in printed
    assert not Path("runs/.quick.race").exists()
    repeats = r"evaluation\.seen: allow \([\d.]+% of the later interactions repeat an item"
    for reason in (repeats, r"model\.embedding_dim: \d+ \(.+ interactions\)"):
        assert any(re.match(reason, line) for line in caplog.messages)
    page = Path("runs/quick/report.html")
    assert recsys.load("runs/quick").report() == page.resolve()
    assert "evaluation.seen" in page.read_text(encoding="utf-8")


def test_nothing_is_replaced_where_the_results_cannot_be(here: Path, log: pl.DataFrame) -> None:
    recsys.prepare(log.head(30), out="data/mine", user="customer", item="sku", time="bought_at")
    before = PreparedDataset.open("data/mine").fingerprint
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine/notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match=r"notes\.txt does not belong to a run"):
        recsys.fit(log, name="mine")
    assert PreparedDataset.open("data/mine").fingerprint == before
    assert not Path("mlflow.db").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "purchases.csv", "--time-limit", "soon"), "time limit 'soon'"),
        (("run", "purchases.csv", "--set", "model.dropout=0.1"), "of a log, only settings of data"),
        (("run", "shop", "--time-limit", "5s"), "shop: is an experiment: change it with --set"),
        (("run", "shop", "--user", "customer"), "shop: is an experiment: change it with --set"),
        (("run", "purchases.csv", "--name", "my run"), "name"),
        (("run", "nowhere.csv"), "nowhere.csv"),
        (("run", "nowhere.yaml"), "nowhere.yaml"),
        (("run", "purchases.csv", "--user", "client"), "client"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    here: Path, terminal: Terminal, words: tuple[str, ...], said: str
) -> None:
    assert said in terminal.refused(*words)
    assert not Path("runs").exists()
