"""The progress view: true at any moment, and never wider than the terminal."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.progress import Progress

from recsys.config.experiment import Experiment
from recsys.config.files import parse_experiment
from recsys.data.prepared import PreparedDataset
from recsys.experiments.baselines import fit_baselines
from recsys.experiments.fit import fit
from recsys.progress import Stage, new_progress, shown_log, stage
from recsys.training.epochs import MONITOR, Curve, ProgressLine


class Recorded:
    def __init__(self, width: int, *, terminal: bool = True) -> None:
        self.file = io.StringIO()
        self.console = Console(
            file=self.file, width=width, height=24, force_terminal=terminal, color_system=None
        )
        self.pictures: list[str] = []

    def view(self) -> Progress:
        view = new_progress(self.console)
        update = view.update

        def recorded(*args: Any, **fields: Any) -> None:
            update(*args, **fields)
            paper = Console(file=io.StringIO(), width=self.console.width, color_system=None)
            with paper.capture() as capture:
                paper.print(view.get_renderable())
            self.pictures.append(capture.get())

        view.update = recorded  # type: ignore[method-assign]
        return view


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_is_that_of_the_epochs_left_by_what_the_others_have_taken() -> None:
    clock, view = Clock(), Recorded(80).view()
    view.get_time = clock
    planned: Any = SimpleNamespace(curve=Curve(), last_epoch=3, seconds=0.0)
    line = ProgressLine("mine", planned, Stage(view, view.add_task("mine", total=None, status="")))
    trainer: Any = SimpleNamespace(num_training_batches=4)
    module: Any = None

    def shown() -> str:
        return next(str(task.fields["status"]) for task in view.tasks)

    def left() -> float:
        (task,) = view.tasks
        return float(task.fields["ends"]) - clock.now

    for step in (0, 1):
        clock.now += 0.5
        planned.seconds += 0.5
        line.on_train_batch_end(trainer, module, {"loss": torch.tensor(5.0)}, None, step)
    assert left() == 5
    assert shown() == "epoch 1/3, loss 5.00"
    planned.curve.epochs += [{"train/seconds": 2.0, MONITOR: 0.25, "epoch/valid_seconds": 8.0}]
    planned.seconds = 7.0
    clock.now += 1
    line.on_train_batch_end(trainer, module, {"loss": torch.tensor(4.0)}, None, 2)
    assert left() == 2 * 10 - 7
    assert shown() == "epoch 2/3, best .2500, loss 4.00"


def test_a_stage_of_known_size_has_a_time_left_and_another_has_the_time_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    for total, shown in ((400, "0:00:20 left"), (None, "0:00:20 so far")):
        terminal = Recorded(80)
        view = terminal.view()
        view.get_time = clock
        monkeypatch.setattr("recsys.progress.new_progress", lambda view=view: view)
        with stage("testing mine", total) as line:
            for _ in range(2):
                clock.now += 10
                line.advance(100)
            line.say("")
        assert shown in terminal.pictures[-1]


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.chdir(tmp_path)
    return parse_experiment(
        {
            "name": "a-run-whose-name-is-long",
            "model": {"embedding_dim": 8, "feed_forward_dim": 8, "max_sequence_length": 3},
            "training": {"max_epochs": 3, "batch_tokens": 4, "refit": True},
            "count_ensemble": {"weights": [1.0]},
            "evaluation": {"seen": "allow", "cutoffs": [2]},
        }
    )


def test_a_run_shows_every_stage_in_80_columns_and_leaves_nothing(
    tiny_dataset: PreparedDataset, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Recorded(80)
    monkeypatch.setattr("recsys.progress.new_progress", terminal.view)
    fit(experiment, tiny_dataset)
    fit_baselines(["popularity", "markov"], experiment, tiny_dataset)
    assert not terminal.console._live_stack
    shown = [line for picture in terminal.pictures for line in picture.splitlines()]
    assert max(map(len, shown)) <= 80
    training = [line for line in shown if line.startswith("training")]
    assert all(" left " in line for line in training)
    assert any("epoch 3/3, best ." in line for line in training)
    assert any(line.startswith("testing a-run-whose…") for line in shown)
    assert any(line.rstrip().endswith("2 of 2: markov") for line in shown)


@pytest.mark.parametrize(("quiet", "level"), [(0.0, "INFO"), (60.0, "DEBUG")])
def test_without_a_terminal_an_epoch_a_minute_is_logged_for_all_to_see(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, quiet: float, level: str
) -> None:
    caplog.set_level("DEBUG", logger="recsys")
    monkeypatch.setattr("recsys.training.epochs._QUIET", quiet)
    view = Recorded(80, terminal=False).view()
    epochs = [{"train/loss": 5.0, "train/seconds": 1.0}]
    curve = SimpleNamespace(epochs=epochs, best=-1.0)
    recorder: Any = SimpleNamespace(curve=curve, last_epoch=1, seconds=1.0)
    line = ProgressLine("mine", recorder, Stage(view, view.add_task("mine", total=None, status="")))
    line.on_train_epoch_end()
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == (level, "mine: epoch 1  loss 5.000  1.0 s")


# --- The log -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_set_up", [False, True])
def test_the_log_is_shown_where_no_logging_is_set_up(
    is_set_up: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = [logging.NullHandler()] if is_set_up else []
    monkeypatch.setattr(logging.getLogger(), "handlers", handlers)
    library = logging.getLogger("recsys")
    before = library.level  # commands that other tests ran in this process have set one
    library.setLevel(logging.NOTSET)
    with shown_log():
        logging.getLogger("recsys.somewhere").info("chosen: %s", "a\x1b[31m")
    logging.getLogger("recsys.somewhere").info("after")
    library.setLevel(before)
    said = capsys.readouterr().err
    assert ("chosen: a" in said) == (not is_set_up)
    assert "\x1b[31m" not in said
    assert "after" not in said
