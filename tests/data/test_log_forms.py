"""The forms of logs: what tests/logs lists is read to the same rows, or refused in one line."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import yaml

from recsys.config.data import Columns
from recsys.data.appending import append
from recsys.data.columns import guess_columns
from recsys.data.prepared import PreparedDataset, prepare
from recsys.data.where import keep_where
from recsys.errors import InputError
from recsys.serving.histories import HistoryReader
from recsys.serving.raw_values import check_unit
from tests.helpers.first_row import first_row

LOGS = Path(__file__).parents[1] / "logs"
START = 1_700_000_000
ROWS = [
    *[("C02", "P-7", START + 30), ("C01", "P-1", START + 20), ("C02", "P-1", START + 10)],
    *[("C01", "P-3", START + 20), ("C01", "P-2", START + 5), ("C10", "P-9", START + 90)],
]
LOG = pl.DataFrame(ROWS, ["customer_id", "sku", "bought_at"], orient="row")


def table_of(name: str) -> Any:
    return yaml.safe_load((LOGS / f"{name}.yaml").read_text(encoding="utf-8"))


READ, REFUSED, TIMES = table_of("read"), table_of("refused"), table_of("times")
CONDITIONS, COLUMNS, HEADERS = table_of("conditions"), table_of("columns"), table_of("headers")


def write(folder: Path, text: str, file: str = "log.csv", encoded: str = "utf-8") -> Path:
    path = folder / file
    content = text.encode(encoded, errors="surrogateescape")
    if path.suffix == ".gz":
        content = gzip.compress(content[:50]) + gzip.compress(content[50:])  # two members
    elif path.suffix == ".zst":
        content = pa.compress(content, "zstd", asbytes=True)
    path.write_bytes(content)
    return path


def text_of(
    row: str = "{user},{item},{time}",
    head: str | None = "customer_id,sku,bought_at",
    end: str = "\n",
    form: str | None = None,
    hours: int = 0,
) -> str:
    text = "" if head is None else head.format(end=end) + end
    for user, item, time in ROWS:
        moment = datetime.fromtimestamp(time, UTC) + timedelta(hours=hours)
        written = str(time) if form is None else moment.strftime(form)
        text += row.format(user=user, item=item, time=written, end=end) + end
    return text


@pytest.mark.parametrize("case", READ.values(), ids=READ)
def test_read_as_the_plain_log(case: dict[str, Any], tmp_path: Path) -> None:
    shape = {name: case[name] for name in ("row", "head", "end", "form", "hours") if name in case}
    kept = {name: case[name] for name in ("file", "encoded") if name in case}
    words = {name: case[name] for name in case if name not in (shape | kept)}
    path = write(tmp_path, text_of(**shape), **kept)
    found = prepare(path, out=tmp_path / "data", **words)
    assert (
        found.manifest.log_fingerprint == prepare(LOG, out=tmp_path / "a").manifest.log_fingerprint
    )
    rows = found.interaction_table.with_columns(time=pl.Series(found.timestamps))
    users = sorted((user, time) for user, _, time in ROWS)
    assert rows.select("user_id", "time").rows() == users


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refused_in_one_line(case: dict[str, Any], tmp_path: Path) -> None:
    kept = {name: case[name] for name in ("file", "encoded") if name in case}
    words = {name: case[name] for name in case if name not in {"text", "says", "renamed", *kept}}
    text = case["text"].format(log=text_of(), rows=text_of(head=None))
    path = write(tmp_path, text, **kept)
    path = path.rename(tmp_path / case.get("renamed", path.name))
    with pytest.raises(InputError) as caught:
        prepare(path, out=tmp_path / "data", **words)
    message = str(caught.value)
    assert "\n" not in message
    for said in case["says"]:
        assert said in message
    assert not (tmp_path / "data").exists()


# --- Columns --------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", HEADERS["found"].values(), ids=HEADERS["found"])
def test_columns_of_public_logs(found: list[str]) -> None:
    columns = guess_columns(first_row(found[0]))
    assert [columns.user_id, columns.item_id, columns.timestamp] == found[1:]


@pytest.mark.parametrize("refused", HEADERS["refused"].values(), ids=HEADERS["refused"])
def test_public_logs_that_leave_a_doubt(refused: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        guess_columns(first_row(refused[0]))
    for said in refused[1:]:
        assert said in str(caught.value)


@pytest.mark.parametrize("role", ["user", "item", "time"])
def test_names_of_columns(role: str) -> None:
    roles = {"user": "user_id", "item": "item_id", "time": "timestamp"}
    for name in COLUMNS[role]:
        names = {"user": "uid", "item": "sku", "time": "ts"} | {role: name}
        row = {names["user"]: [7], names["item"]: ["A1"], names["time"]: [START]}
        assert getattr(guess_columns(pl.DataFrame(row)), roles[role]) == name


@pytest.mark.parametrize("found", COLUMNS["found"].values(), ids=COLUMNS["found"])
def test_columns_are_found(found: list[Any]) -> None:
    columns = guess_columns(pl.DataFrame([found[0]]))
    assert [columns.user_id, columns.item_id, columns.timestamp] == found[1:]


@pytest.mark.parametrize("refused", COLUMNS["refused"].values(), ids=COLUMNS["refused"])
def test_columns_in_doubt(refused: list[Any]) -> None:
    rows = refused[0] if isinstance(refused[0], list) else refused[:1]
    with pytest.raises(InputError) as caught:
        guess_columns(pl.DataFrame(rows))
    for said in refused[1:]:
        assert said in str(caught.value)


def test_what_is_given_is_not_guessed() -> None:
    log = pl.DataFrame({"customer_id": [7], "sku": ["A"], "ts": [3], "userId": [1], "asin": [1]})
    columns = guess_columns(log, Columns(user_id="customer_id", item_id="sku"))
    assert (columns.user_id, columns.timestamp) == ("customer_id", "ts")
    swapped = guess_columns(log, Columns(user_id="sku"))
    assert swapped.item_id == "asin", "a column has one role"


def test_what_was_guessed_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, "CustomerID,StockCode,InvoiceDate,x\n1,2,2024-01-05,0\n")
    with caplog.at_level("INFO", "recsys"):
        dataset = prepare(path, out=tmp_path / "data")
    said = "log.csv: its columns are user 'CustomerID', item 'StockCode', time 'InvoiceDate'"
    assert said in caplog.text
    caplog.clear()
    prepare(path, dataset.config.model_copy(update={"keep": ("x",)}), tmp_path / "again")
    assert "columns" not in caplog.text


# --- Times ----------------------------------------------------------------------------------------


def log_of(times: Any) -> pl.DataFrame:
    return pl.DataFrame({"user_id": 1, "item_id": range(len(times)), "ts": times})


def seconds(moment: str) -> int:
    return int(datetime.fromisoformat(f"{moment}+00:00").timestamp())


@pytest.mark.parametrize(("written", "moment"), TIMES["iso"].items(), ids=TIMES["iso"])
def test_forms_of_iso_8601(written: str, moment: str, tmp_path: Path) -> None:
    found = prepare(log_of([written, "2025-01-01"]), out=tmp_path / "data")
    assert found.timestamps.tolist() == [seconds(moment), seconds("2025-01-01T00:00:00")]
    assert found.config.time_format is None


@pytest.mark.parametrize(("written", "found"), TIMES["found"].items(), ids=TIMES["found"])
def test_a_form_without_doubt_is_found(
    written: str, found: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    form, moment = found
    caplog.set_level("INFO")
    data = prepare(log_of([written]), out=tmp_path / "data")
    assert data.timestamps.tolist() == [seconds(moment)]
    assert data.config.time_format == form
    assert f"column 'ts' has dates in the form {form!r}" in caplog.text
    if written.isdigit():
        for dtype in (pl.Int64, pl.Float64):
            numbers = prepare(log_of(pl.Series([written]).cast(dtype)), out=tmp_path / "numbers")
            assert numbers.fingerprint == data.fingerprint


@pytest.mark.parametrize(("written", "forms"), TIMES["doubted"].items(), ids=TIMES["doubted"])
def test_a_doubt_is_refused_with_the_forms(
    written: str, forms: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        prepare(log_of([written]), out=tmp_path / "data")
    assert str(caught.value).count("%") == "".join(forms).count("%"), "no other form"
    for form, moment in forms.items():
        assert repr(form) in str(caught.value)
        found = prepare(log_of([written]), out=tmp_path / "data", time_format=form)
        assert found.timestamps.tolist() == [seconds(moment)]


@pytest.mark.parametrize("written", TIMES["none"])
def test_what_is_no_time(written: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data row 2: neither a number nor an ISO 8601 date: '"):
        prepare(log_of(["2024-01-01", written, "2024-01-03"]), out=tmp_path, time="ts")


@pytest.mark.parametrize("times", TIMES["numbers"], ids=str)
def test_other_numbers_are_numbers(times: list[int], tmp_path: Path) -> None:
    found = prepare(log_of(times), out=tmp_path / "data")
    assert found.timestamps.tolist() == times
    assert found.config.time_format is None


def test_later_rows_tell_the_form(tmp_path: Path) -> None:
    """A log that is sorted by time may begin with many orders of one day, or without a date."""
    told = prepare(log_of([*["12/1/2010"] * 1500, "12/13/2010"]), out=tmp_path / "a")
    assert told.config.time_format == "%m/%d/%Y"
    with pytest.raises(InputError, match="'%m/%d/%Y' or '%d/%m/%Y'"):
        prepare(log_of(["12/1/2010"] * 1500), out=tmp_path / "b")


def test_a_date_of_another_form_is_refused_with_its_row(tmp_path: Path) -> None:
    """Nothing but the first rows decides the form, so that later ones are never read by another."""
    for later in ("12/31/2024", "31.12.24", "31.12.204"):  # no year 24
        log = log_of([*["31.12.2024"] * 1000, "2024-12-30", later])
        with pytest.raises(InputError, match=f"data row 1002: .*: '{later}'"):
            prepare(log, out=tmp_path / "data")


MANY = [20240101 + n % 28 for n in range(60)]


@pytest.mark.parametrize("dtype", [pl.Int64, pl.String])
@pytest.mark.parametrize("bad", [0, 20241232, 202412312359])
def test_numbers_among_dates_are_refused_with_their_rows(
    bad: int, dtype: type[pl.DataType], tmp_path: Path
) -> None:
    log = log_of(pl.Series([*MANY, bad]).cast(dtype))
    with pytest.raises(InputError) as caught:
        prepare(log, out=tmp_path / "data")
    message = str(caught.value)
    assert "'ts', data row 61: is neither in the form '%Y%m%d' of data.time_format" in message
    advice = f'"ts" <> {repr(str(bad)) if dtype == pl.String else bad}'
    kept = prepare(log, out=tmp_path / "data", where=advice)
    assert kept.config.time_format == "%Y%m%d"
    assert len(kept.items) == len(MANY)


def test_the_settings_say_that_they_are_numbers(tmp_path: Path) -> None:
    found = prepare(log_of(["20241231", "20250101"]), out=tmp_path / "data", time_format="number")
    assert found.timestamps.tolist() == [20241231, 20250101]
    read = HistoryReader(found.config, found.vocabulary).read(log_of([20250105]))
    assert read.histories.times is not None
    assert read.histories.times.tolist() == [20250105]
    assert append(log_of([20250106]), tmp_path / "data").timestamps.max() == 20250106
    for day in ("2024-12-31", datetime(2024, 12, 31, tzinfo=UTC)):
        with pytest.raises(InputError, match="'ts', data row 1: is no number, as data"):
            prepare(log_of([day]), out=tmp_path / "other", time_format="number")


def test_later_logs_are_read_as_the_dataset_was(tmp_path: Path) -> None:
    """By the form that was found, though a few new dates alone would not tell it."""
    for name, first, later, moment in (
        ("found", ["12/1/2010", "12/13/2010"], "1/2/2011", "2011-01-02T00:00:00"),
        ("iso", ["2024-12-30"], "31.12.2024", "2024-12-31T00:00:00"),
        ("compact", [202412310800], 202501020900, "2025-01-02T09:00:00"),
    ):
        grown = prepare(log_of(first), out=tmp_path / name)
        if name != "iso":
            read = HistoryReader(grown.config, grown.vocabulary).read(log_of([later]))
            assert read.histories.times is not None
            assert read.histories.times.tolist() == [seconds(moment)]
        assert append(log_of([later]), tmp_path / name).timestamps.max() == seconds(moment)
    with pytest.raises(InputError, match="'%m/%d/%Y' or '%d/%m/%Y'"):
        append(log_of(["1/2/2025"]), tmp_path / "iso")
    prepare(log_of([5, 6]), out=tmp_path / "numbers")
    with pytest.raises(InputError, match="read as dates, .*'%Y%m%d', and .*--time-format number"):
        append(log_of([20250101]), tmp_path / "numbers")
    assert PreparedDataset.open(tmp_path / "numbers").timestamps.tolist() == [5, 6]


@pytest.mark.parametrize(
    ("times", "warns"),
    [
        ([START, START * 10**3], "in seconds, such as 1700000000 and in milliseconds"),
        ([START, START * 10**6], "in seconds, such as 1700000000 and in microseconds"),
        ([START, START + 10**8], ""),
        ([0, START * 1000, 253_402_300_799_000], ""),  # a missing time, and one without end
        ([0, START, 253_402_300_799, 2**31 - 1], ""),
        ([1, 50_000, 10**6], ""),
    ],
    ids=str,
)
def test_two_units_are_warned_of(
    times: list[int], warns: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(log_of(times[:-1]), out=tmp_path / "data")
    grown = append(log_of(times[-1:]), tmp_path / "data")
    check_unit(grown.timestamps, int(grown.timestamps.max()), "data")
    assert ("they are compared as numbers" in caplog.text) == bool(warns)
    assert warns in caplog.text


# --- Conditions -----------------------------------------------------------------------------------

EVENTS = pl.DataFrame(CONDITIONS["table"]).with_columns(
    row=pl.int_range(6), moment=pl.col("day").str.to_datetime(time_zone="UTC")
)


@pytest.mark.parametrize(("where", "kept"), CONDITIONS["kept"].items(), ids=CONDITIONS["kept"])
def test_conditions(where: str, kept: list[int]) -> None:
    rows = keep_where(EVENTS, where, "the log")
    assert rows["row"].to_list() == kept


@pytest.mark.parametrize(
    ("where", "says"), CONDITIONS["refused"].items(), ids=CONDITIONS["refused"]
)
def test_refused_conditions(where: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        keep_where(EVENTS, where, "the log")
    assert says in str(caught.value)
