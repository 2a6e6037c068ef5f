"""Signals that wait for the end of a block, and runs that no signal leaves open."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from recsys.config.experiment import Experiment, TrackingConfig
from recsys.data.prepared import PreparedDataset
from recsys.errors import Terminated, terminate, undivided
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


def send(*numbers: signal.Signals) -> bool:
    for number in numbers:
        signal.raise_signal(number)
    return True


def test_an_undivided_block_ends_before_the_first_signal_and_not_before_the_second() -> None:
    first = second = False
    with pytest.raises(Terminated), undivided():
        first = send(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), undivided():
        second = send(signal.SIGTERM, signal.SIGINT)
    assert (first, second) == (True, False)


def test_blocks_within_each_other_wait_once_each() -> None:
    ended: list[str] = []
    with pytest.raises(KeyboardInterrupt), undivided():
        ended += within(signal.SIGINT)
    assert ended == ["inner"]
    with pytest.raises(KeyboardInterrupt), undivided():
        ended += within(*[signal.SIGINT] * 3)
    assert ended == ["inner"]


def within(*numbers: signal.Signals) -> list[str]:
    with undivided():
        send(*numbers)
    return ["inner"]


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
