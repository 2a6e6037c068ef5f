"""What a stranger sees first: the log of a command, its help, the comparison."""

from __future__ import annotations

import logging
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

import recsys
from recsys.cli import app, main
from recsys.shop.simulation import make_shop
from tests.helpers.commands import run

Command = Callable[[str], str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log, its prepared dataset, and the runs of a baseline under two protocols."""
    folder = tmp_path_factory.mktemp("doors")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_shop(seed=0, num_customers=120).interactions.write_csv("purchases.csv")
        data = recsys.prepare("purchases.csv", out="data/mine")
        Path("baseline.yaml").write_text("evaluation: {seen: allow}\n")
        for name, seen in (("filtered", "filter"), ("popular", "allow")):
            words = [f"name={name}", "baseline=popularity", f"evaluation.seen={seen}"]
            recsys.train("baseline.yaml", data, overrides=words)
    return folder


@pytest.fixture
def command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs a command, which must succeed, and returns what it prints, in one line."""

    def run(line: str) -> str:
        monkeypatch.setattr(sys, "argv", ["recsys", *shlex.split(line)])
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(logging.getLogger(), "handlers", [])  # else pytest takes the log
            with pytest.raises(SystemExit) as end:
                main()
        printed = capsys.readouterr()
        assert not end.value.code, printed.err
        return " ".join((printed.err + printed.out).split())

    monkeypatch.chdir(folder)
    return run


def test_runs_of_another_protocol_are_left_out_and_named(command: Command) -> None:
    with pytest.raises(recsys.InputError, match="differ in protocol.seen"):
        recsys.compare(["popular", "filtered"])
    assert re.search(r"left out, of other data or protocol than .*: filtered", command("compare"))


def test_each_option_has_a_help_each_command_verbose_and_recsys_a_version() -> None:
    commands: Any = typer.main.get_command(app)
    assert len(commands.commands) > 20
    for name, command in commands.commands.items():
        assert all(parameter.help for parameter in command.params), name
        assert "--verbose" in {option for each in command.params for option in each.opts}, name
    assert re.match(r"recsys \S+\n$", run("--version"))


def test_verbose_adds_the_steps_to_the_log(command: Command) -> None:
    changes = "baseline=null", "training.max_epochs=1", "model.embedding_dim=8", "name=again"
    train = " ".join(["train baseline.yaml --data data/mine", *(f"--set {c}" for c in changes)])
    assert "precision: " not in command(train)
    assert "precision: " in command(f"{train} --fresh --verbose")
