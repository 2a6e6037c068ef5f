"""The commands that show the shipped configs."""

from __future__ import annotations

from typing import Annotated

import typer

from recsys.cli.options import Json, app
from recsys.config import preset_by_part, presets
from recsys.console import show_rows

configs = typer.Typer(
    help="List the presets: configs that run, train, suite and tune take by name.",
    invoke_without_command=True,
)
app.add_typer(configs, name="configs", rich_help_panel="Start here")


@configs.callback()
def list_configs(context: typer.Context, as_json: Json = False) -> None:
    """List the presets: configs that run, train, suite and tune take by name."""
    if context.invoked_subcommand is None:
        rows = [
            {"name": one.name, "dataset": one.dataset, "description": one.description}
            for one in presets()
        ]
        show_rows(rows, as_json)


@configs.command("show")
def show_config(
    name: Annotated[
        str, typer.Argument(help="Name of a preset, or words of it that no other has: sasrec.")
    ],
    as_json: Json = False,
) -> None:
    """Print the YAML of a preset, to read or to start a config of your own from."""
    preset = preset_by_part(name)
    if as_json:
        show_rows([{"name": preset.name, **preset.tree}], as_json)
    else:
        print(preset.text, end="")
