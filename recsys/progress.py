"""The progress view and the log on standard error: a stage is one line, above it is the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from recsys.errors import printable

STDERR = Console(stderr=True)
"""Shared by the log and the view: two consoles would write into each other's lines."""
_LONGEST = 100 * 3600
"""Seconds left that are still shown: five digits of hours help nobody."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A piece of work that is shown as one line."""

    progress: Progress
    task: TaskID
    even: bool
    """Whether all units take about equally long, so that the time left can be estimated."""

    def advance(self, units: float = 1) -> None:
        """Show that so many more units are done."""
        task = next(task for task in self.progress.tasks if task.id == self.task)
        done, now = task.completed + units, self.progress.get_time()
        ends = None
        if self.even and task.total is not None and task.start_time is not None and done > 0:
            ends = now + (now - task.start_time) * (task.total - done) / done
        self.progress.update(self.task, completed=done, ends=ends)

    def say(self, status: str) -> None:
        """Show what is being done."""
        self.progress.update(self.task, status=status)


def new_progress(console: Console = STDERR) -> Progress:
    """Return a view that is not shown yet, and never without a terminal.

    Its tasks may have the fields ``status``, what is being done, and ``ends``, the time by
    `Progress.get_time` at which the task is expected to end, None if unknown.
    """
    cut = {"no_wrap": True, "overflow": "ellipsis"}
    title = Column(width=max(console.width // 4, 8), **cut)  # type: ignore[arg-type]
    status = Column(ratio=1, **cut)  # type: ignore[arg-type]
    return Progress(
        TextColumn("{task.description}", markup=False, table_column=title),
        BarColumn(console.width // 10),
        _TimeLeft(Column(width=14, justify="right", **cut)),  # type: ignore[arg-type]
        TextColumn("{task.fields[status]}", markup=False, table_column=status),
        console=console,
        transient=True,
        expand=True,
        disable=not console.is_terminal,
    )


class _TimeLeft(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Return the time left of a task at this moment, or else the time so far."""
        left = None
        if (ends := task.fields.get("ends")) is not None:
            left = ends - task.get_time()
        if left is not None and left <= -1:
            time = f"{_clock(-left)} over"
        elif left is not None and left < _LONGEST:
            time = f"{_clock(left)} left"
        else:
            time = f"{_clock(task.elapsed or 0)} so far"
        return Text(time, style="progress.remaining")


def _clock(seconds: float) -> str:
    """Return hours, minutes and seconds.

    >>> _clock(3725.4)
    '1:02:05'
    """
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


@contextmanager
def shown(progress: Progress | None = None) -> Iterator[Progress]:
    """Yield the given view, or a new one that is shown during the block."""
    if progress is not None:
        yield progress
        return
    with new_progress() as own:
        yield own


@contextmanager
def stage(
    title: str, total: float | None = None, progress: Progress | None = None, *, even: bool = True
) -> Iterator[Stage]:
    """Show a line during the block.

    Args:
        title: what is being done.
        total: the number of units; unknown if None.
        progress: the view. If None, a new one.
        even: whether all units take about equally long, so that the time left can be estimated.
    """
    with shown(progress) as view:
        task = view.add_task(title, total=total, status="")
        try:
            yield Stage(view, task, even)
        finally:
            view.remove_task(task)


# --- The log -------------------------------------------------------------------------------------


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
