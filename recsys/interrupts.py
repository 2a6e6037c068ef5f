"""Ctrl-C and SIGTERM that wait for the end of what should not be cut in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def first_waits(
    *numbers: signal.Signals, say: Callable[[], None] = lambda: None
) -> Iterator[list[int]]:
    """Let a block end at the first of some signals; the second one acts at once.

    Signals that Python does not handle act as ever, and so do all in another thread than the main
    one, which gets none.

    Args:
        *numbers: the signals.
        say: called at the first one, to tell the user what it waits for.

    Yields:
        A list, which has the first signal as soon as it came. What follows is up to the caller.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = {each: found for each in numbers if callable(found := signal.getsignal(each))}

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        restore()
        say()

    def restore() -> None:
        for number, handler in before.items():
            if signal.getsignal(number) is note:  # else a block around this one has restored it
                signal.signal(number, handler)

    try:
        for number in before:
            signal.signal(number, note)
        yield came
    finally:
        restore()


@contextmanager
def undivided() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM act at the end of a short block, or at once if they come twice."""
    with first_waits(signal.SIGINT, signal.SIGTERM) as came:
        yield
    for number in came:
        signal.raise_signal(number)
