"""The order of the commands in the help: by what a user wants to do."""

from __future__ import annotations

import typer

PANELS = {
    "Start here": ("run", "demo"),  # and configs, which is a group
    "Logs": ("prepare", "audit", "data"),
    "Train": ("train", "extend", "tune", "suite", "backtest", "profile"),
    "Evaluate and compare": ("evaluate", "compare", "retrieval", "calibrate", "faithfulness"),
    "Recommend and explain": (
        "recommend",
        "score",
        "generate",
        "explain",
        "inspect",
        "similar",
        "embeddings",
    ),
    "Deploy": ("serve", "index", "register", "export"),
}


def arrange(app: typer.Typer) -> None:
    """Put the commands of an app into panels, in order.

    Raises:
        ValueError: a command is in no panel, or one that is in a panel does not exist.
    """
    commands = {str(command.name): command for command in app.registered_commands}
    wanted = [name for names in PANELS.values() for name in names]
    if odd := set(commands) ^ set(wanted):
        raise ValueError(f"commands without a panel, or panels without a command: {sorted(odd)}")
    for panel, names in PANELS.items():
        for name in names:
            commands[name].rich_help_panel = panel
    app.registered_commands = [commands[name] for name in wanted]
