"""Signals that wait for the end of a block, and runs that no signal leaves open."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from recsys.config import Experiment, TrackingConfig
from recsys.data.prepared import PreparedDataset
from recsys.errors import Terminated, first_waits, terminate, undivided
from recsys.tracking.tracker import track

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    """SIGTERM as the commands handle it; both handlers are as before at the end of a test."""
    before = signal.signal(signal.SIGTERM, terminate)
    handlers = [signal.getsignal(each) for each in BOTH]
    yield
    assert [signal.getsignal(each) for each in BOTH] == handlers
    signal.signal(signal.SIGTERM, before)


def test_the_first_signal_waits_and_is_told() -> None:
    said: list[str] = []
    with first_waits(*BOTH, say=lambda: said.append("wait")) as came:
        assert not came
        signal.raise_signal(signal.SIGTERM)
        assert said == ["wait"]
    assert came == [signal.SIGTERM]


def send(*numbers: signal.Signals) -> bool:
    for number in numbers:
        signal.raise_signal(number)
    return True


def test_the_second_signal_acts_at_once_and_an_undivided_block_ends_first() -> None:
    ended = False
    with pytest.raises(KeyboardInterrupt), first_waits(*BOTH):
        ended = send(signal.SIGTERM, signal.SIGINT)
    assert not ended
    with pytest.raises(Terminated), undivided():
        ended = send(signal.SIGTERM)
    assert ended


def test_blocks_within_each_other_wait_once_each() -> None:
    inner = second = third = False
    with first_waits(signal.SIGINT) as came:
        with undivided():
            inner = send(signal.SIGINT)
        assert came == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt), undivided():
            second = send(signal.SIGINT)
    assert (inner, second) == (True, True)
    with pytest.raises(KeyboardInterrupt), first_waits(signal.SIGINT), undivided():
        third = send(*[signal.SIGINT] * 3)
    assert not third


@pytest.mark.parametrize(
    ("step", "status"), [("create_run", "KILLED"), ("set_terminated", "FINISHED")]
)
def test_no_run_stays_open_whenever_a_sigterm_comes(
    tiny_dataset: PreparedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    status: str,
) -> None:
    tracking = TrackingConfig(uri=f"sqlite:///{tmp_path}/mlflow.db")
    does = getattr(MlflowClient, step)

    def with_a_signal(*words: Any, **more: Any) -> Any:
        monkeypatch.undo()  # it comes once
        if step == "set_terminated":
            signal.raise_signal(signal.SIGTERM)
        done = does(*words, **more)
        if step == "create_run":
            signal.raise_signal(signal.SIGTERM)
        return done

    monkeypatch.setattr(MlflowClient, step, with_a_signal)
    experiment = Experiment(name="cut", tracking=tracking)
    with pytest.raises(Terminated), track(experiment, tiny_dataset, "popularity", {}):
        pass
    client = MlflowClient(tracking.absolute_uri)
    (run,) = client.search_runs(["1"])
    assert run.info.status == status


def test_a_block_that_is_never_entered_leaves_no_run_open(
    tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    """The signal comes when the run is open, and the block has not begun."""
    tracking = TrackingConfig(uri=f"sqlite:///{tmp_path}/mlflow.db")
    opened = track(Experiment(name="cut", tracking=tracking), tiny_dataset, "popularity", {})
    opened.__enter__()
    del opened
    (run,) = MlflowClient(tracking.absolute_uri).search_runs(["1"])
    assert run.info.status == "KILLED"
