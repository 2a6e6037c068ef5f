"""The progress view and the log on standard error, one above the other.

A stage is one line, never wider than the terminal.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import Progress, ProgressColumn, Task, TaskID
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
        task, now = self._task, self.progress.get_time()
        done = task.completed + units
        ends = None
        if self.even and task.total is not None and task.start_time is not None and done > 0:
            ends = now + (now - task.start_time) * (task.total - done) / done
        self.progress.update(self.task, completed=done, ends=ends)

    def say(self, status: str) -> None:
        """Show what is being done."""
        self.progress.update(self.task, status=status)

    @property
    def _task(self) -> Task:
        return next(task for task in self.progress.tasks if task.id == self.task)


def new_progress(console: Console = STDERR) -> Progress:
    """Return a view that is not shown yet, and never without a terminal.

    Its tasks may have the fields ``status``, what is being done; ``ends``, the time by
    `Progress.get_time` at which the task is expected to end, None if unknown; and ``at_least``,
    whether it may well be later.
    """
    return Progress(
        _Line(console), console=console, transient=True, disable=not console.is_terminal
    )


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


class _Line(ProgressColumn):
    """A task as one line of the width of the console."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def render(self, task: Task) -> Text:
        """Return the line of a task at this moment."""
        left = task.time_remaining if "ends" not in task.fields else None
        if (ends := task.fields.get("ends")) is not None:
            left = ends - task.get_time()
        if left is not None and left <= -1:
            time = f"{_clock(-left)} over"
        elif left is not None and left < _LONGEST:
            time = f"{'>' if task.fields.get('at_least') else ''}{_clock(left)} left"
        else:
            time = f"{_clock(task.elapsed or 0)} so far"
        share = task.percentage / 100 if task.total else None
        status = str(task.fields.get("status", ""))
        return progress_line(task.description, share, time, status, self._console.width)


def progress_line(title: str, share: float | None, time: str, status: str, width: int) -> Text:
    """Return a line of at most ``width`` columns; what does not fit is cut off at the end.

    Args:
        title: what is being done.
        share: how much of it is done, 0 to 1; no bar if None.
        time: the time left.
        status: figures.
        width: columns of the terminal.

    >>> progress_line("training mine", 0.5, "0:01:10 left", "epoch 3/6", 80).plain
    'training mine        ━━━━        0:01:10 left epoch 3/6'
    """
    names, bars = max(width // 4, 8), width // 10
    line = Text(no_wrap=True, overflow="ellipsis")
    name = Text(title)
    name.truncate(names, overflow="ellipsis", pad=True)
    filled = 0 if share is None else round(bars * min(max(share, 0), 1))
    line.append_text(name).append(" ")
    line.append("━" * filled, style="bar.complete").append(" " * (bars - filled + 1))
    line.append(f"{time:>14} ", style="progress.remaining").append(status)
    line.rstrip()
    line.truncate(width, overflow="ellipsis")
    return line


def _clock(seconds: float) -> str:
    """Return hours, minutes and seconds.

    >>> _clock(3725.4)
    '1:02:05'
    """
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


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
