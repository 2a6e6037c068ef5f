"""Commands as users type them, in the process of the test."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from recsys.cli import main


class Terminal:
    """Types commands in a folder and reads what they print."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["recsys", *words])
        with pytest.raises(SystemExit) as end:
            main()
        printed = self._capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    def json(self, *words: str) -> Any:
        status, out, err = self(*words, "--json")
        assert status == 0, err
        return json.loads(out)

    def refused(self, *words: str) -> str:
        """Run a command that must end with status 2, print nothing else, and say why in a line."""
        status, out, err = self(*words)
        (line,) = err.splitlines()
        assert (status, out, line[:7]) == (2, "", "error: ")
        return line
