"""The one exception that users cause and can mend."""


class InputError(ValueError):
    """Bad input: the message names the file, the row or key, the rule and the value.

    The commands print it as one line and exit with status 2; nothing has been written.
    """
