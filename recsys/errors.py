"""Exceptions that cross the layers and their words, signals that wait, extras that are missing."""

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import NoReturn


class InputError(ValueError):
    """Invalid input. The message names the file, the row or key, the rule and the value.

    The commands print it as one line and exit with status 2. Ids and names come from anyone: the
    message has no control characters, and the middle of a long one is left out.
    """

    def __init__(self, message: object) -> None:
        text = one_line(message)
        super().__init__(text if len(text) <= 3_000 else f"{text[:2_000]} … {text[-900:]}")


class Terminated(BaseException):  # like KeyboardInterrupt: no handler of errors may swallow it
    """A SIGTERM ended the command, which exits with status 143."""


def terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM as Python handles Ctrl-C: what is open is closed on the way out."""
    raise Terminated


@contextmanager
def undivided() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM act at the end of a short block, or at once if they come twice.

    Signals that Python does not handle act as ever, and so do all outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {int(number): handler for number, handler in before.items() if callable(handler)}
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        restore()

    def restore() -> None:
        for number, handler in handlers.items():
            if signal.getsignal(number) is note:  # else a block around this one has restored it
                signal.signal(number, handler)

    fault: Exception | None = None
    try:
        for number in handlers:
            signal.signal(number, note)
        yield
    except Exception as error:  # noqa: BLE001 - it is raised below; the second signal is none
        fault = error
    finally:
        restore()
    for number in came:
        signal.raise_signal(number)
    if fault is not None:
        raise fault


# --- Words of messages ---------------------------------------------------------------------------


def printable(text: str) -> str:
    """Return a text with ``?`` in place of its control characters, which a terminal would obey."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error of a library says, or what kind of error it is."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def one_line(text: object, most: int | None = None) -> str:
    """Return a text as one line without control characters, cut after so many characters."""
    line = printable(" ".join(str(text).split()))
    return line if most is None or len(line) <= most else f"{line[:most]}…"


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return a path, at which there may be nothing; refuse one that the system does not allow."""
    try:
        Path(path).exists()
    except (OSError, ValueError) as error:  # a name of 300 characters, half a surrogate
        reason = getattr(error, "strerror", None) or "it is no name of a file"
        raise InputError(f"{path}: no such file or folder: {reason}") from error
    return Path(path)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint at the known name nearest to an unknown one; empty if none is near."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


# --- Optional dependencies: scoring needs none of them, training and comparing do ----------------

DISTRIBUTION = "recsys-target-attention"
"""The name of the distribution, which is on no package index; the import name is recsys."""

EXTRAS = {
    "ann": ("faiss",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "serve": ("fastapi", "httptools", "prometheus_client", "uvicorn"),
    "spark": ("pyspark",),
    "train": ("jinja2", "matplotlib", "mlflow", "pandas", "pytorch_lightning", "sklearn"),
    "tune": ("optuna",),
}
"""The modules that each extra installs."""


def install_hint(error: ModuleNotFoundError) -> str | None:
    """Return how to install the module that an import lacked; None if it is in no extra."""
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    if extra is None:
        return None
    return f"needs {module}, of the extra {extra}: pip install '.[{extra}]' where recsys was cloned"
