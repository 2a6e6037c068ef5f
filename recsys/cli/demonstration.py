"""The command that shows every step on the simulated shop."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from recsys.cli.options import Set, Uri, app, read_experiment


@app.command("demo")
def run_demo(
    config: Annotated[
        str,
        typer.Argument(help="An experiment on the simulated shop: a YAML file, or a preset."),
    ] = "shop",
    overrides: Set = None,
    uri: Uri = None,
) -> None:
    """Train on the simulated shop and show metrics, explanations and recovered rules.

    Takes about five minutes.
    """
    from recsys.demo import demo

    demo(read_experiment(config, overrides, uri), Console())
