"""Commands in the process of the test."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from recsys.cli import app
from recsys.errors import InputError


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [*map(str, words)])
    assert result.exit_code == 0, result.output or result.exception
    return result.stdout


def run_json(*words: object) -> Any:
    return json.loads(run(*words, "--json"))


def refused(*words: object) -> str:
    result = CliRunner().invoke(app, [*map(str, words)])
    assert isinstance(result.exception, InputError), result.output
    return str(result.exception)
