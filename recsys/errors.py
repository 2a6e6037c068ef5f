"""The one exception that users cause and can mend."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Bad input: the message names the file, the row or key, the rule and the value.

    The commands print it as one line and exit with status 2; nothing has been written.
    """


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one; empty if none is near.

    >>> did_you_mean("dropuot", ["dropout", "norm"])
    "; did you mean 'dropout'?"
    """
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
