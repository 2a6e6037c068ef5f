"""The exception for errors that users cause and can fix."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Invalid input. The message names the file, the row or key, the rule and the value.

    The commands print it as one line and exit with status 2, without writing any output.
    """


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint at the known name nearest to an unknown one; empty if none is near.

    >>> did_you_mean("dropuot", ["dropout", "norm"])
    "; did you mean 'dropout'?"
    """
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
