"""The order of the commands in the help: by what a user wants to do."""

from __future__ import annotations

import typer

from recsys.cli.options import with_verbose

PANELS = {
    "Start here": ("run", "demo"),  # and configs, which is a group
    "Logs": ("prepare", "audit", "data"),
    "Train": ("train", "extend", "tune", "suite", "backtest"),
    "Evaluate and compare": ("evaluate", "compare", "retrieval", "calibrate"),
    "Recommend and explain": (
        "recommend",
        "score",
        "generate",
        "explain",
        "similar",
        "embeddings",
    ),
    "Deploy": ("serve", "index", "register", "export"),
}


def arrange(app: typer.Typer) -> None:
    """Put the commands of an app into panels, in order, each with the option --verbose.

    Raises:
        ValueError: a command is in no panel, or one that is in a panel does not exist.
    """
    commands = {str(command.name): command for command in app.registered_commands}
    wanted = [name for names in PANELS.values() for name in names]
    if odd := set(commands) ^ set(wanted):
        raise ValueError(f"commands without a panel, or panels without a command: {sorted(odd)}")
    for panel, names in PANELS.items():
        for name in names:
            command = commands[name]
            command.rich_help_panel = panel
            command.callback = command.callback and with_verbose(command.callback)
    app.registered_commands = [commands[name] for name in wanted]
