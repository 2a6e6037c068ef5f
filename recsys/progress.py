"""The progress view and the log on standard error: a stage is one line, above it is the log."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from recsys.errors import printable

STDERR = Console(stderr=True)
"""Shared by the log and the view: two consoles would write into each other's lines."""


class Stage(NamedTuple):
    """A piece of work that is shown as one line."""

    progress: Progress
    task: TaskID

    def advance(self, units: float = 1) -> None:
        """Show that so many more units are done."""
        self.progress.update(self.task, advance=units)

    def say(self, status: str, **fields: Any) -> None:
        """Show what is being done, and other fields of the task."""
        self.progress.update(self.task, status=status, **fields)


def new_progress(console: Console = STDERR) -> Progress:
    """Return a view that is not shown yet, and never without a terminal.

    Its tasks have the field ``status``, what is being done, and may have ``ends``, the time by
    `Progress.get_time` at which the task is expected to end.
    """
    cut: Any = {"no_wrap": True, "overflow": "ellipsis"}
    title, status = Column(width=max(console.width // 4, 8), **cut), Column(ratio=1, **cut)
    return Progress(
        TextColumn("{task.description}", markup=False, table_column=title),
        BarColumn(console.width // 10),
        _TimeLeft(Column(width=14, justify="right", **cut)),
        TextColumn("{task.fields[status]}", markup=False, table_column=status),
        console=console,
        transient=True,
        expand=True,
        disable=not console.is_terminal,
    )


class _TimeLeft(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Return the time left of a task at this moment, or else the time so far."""
        ends = task.fields.get("ends")
        left = task.time_remaining if ends is None else max(ends - task.get_time(), 0)
        seconds, word = (task.elapsed or 0, "so far") if left is None else (left, "left")
        return Text(f"{timedelta(seconds=int(seconds))} {word}", style="progress.remaining")


@contextmanager
def stage(title: str, total: float | None = None) -> Iterator[Stage]:
    """Show a line during the block, below those that are shown already.

    With a total number of units, which take about equally long, it has the time left.
    """
    with new_progress() as view:
        yield Stage(view, view.add_task(title, total=total, status=""))


class _Printable(logging.Formatter):
    """Log lines without control characters: ids in them may come from anyone."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).splitlines()))


def log_handler() -> logging.Handler:
    """Return a handler that writes lines for people."""
    handler = RichHandler(console=STDERR, show_path=False, show_time=False)
    handler.setFormatter(_Printable("%(message)s"))
    return handler


@contextmanager
def shown_log() -> Iterator[None]:
    """Show the library's log during the block, unless the program has set up logging."""
    logger = logging.getLogger("recsys")
    if logger.hasHandlers() or logger.level != logging.NOTSET:
        yield
        return
    handler = log_handler()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(handler)
