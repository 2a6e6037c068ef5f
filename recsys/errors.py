"""Exceptions that cross the layers."""

from collections.abc import Iterable
from difflib import get_close_matches
from types import FrameType
from typing import NoReturn


class InputError(ValueError):
    """Invalid input. The message names the file, the row or key, the rule and the value.

    The commands print it as one line and exit with status 2, without writing any output.
    """


class NotFirstProcess(Exception):  # noqa: N818 - not an error
    """The work of this process ended: of several, only the first evaluates and writes.

    The commands exit with status 0.
    """


class Terminated(BaseException):  # like KeyboardInterrupt: no handler of errors may swallow it
    """A SIGTERM ended the command; a training resumes from its checkpoint when it is run again.

    The commands exit with status 143, as a shell reports it.
    """


def terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM as Python handles Ctrl-C: what is open is closed on the way out.

    Raises:
        Terminated: always.
    """
    raise Terminated


def one_line(text: object, most: int | None = None) -> str:
    r"""Return a text as one line without control characters, cut after so many characters.

    >>> one_line("a\x1b[2Jb\n  c")
    'a?[2Jb c'
    """
    line = "".join(c if c.isprintable() else "?" for c in " ".join(str(text).split()))
    return line if most is None or len(line) <= most else f"{line[:most]}…"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint at the known name nearest to an unknown one; empty if none is near.

    >>> did_you_mean("dropuot", ["dropout", "norm"])
    "; did you mean 'dropout'?"
    """
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
