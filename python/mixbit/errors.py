"""The one exception that a user is meant to read."""


class MixbitError(Exception):
    """A failure that the caller can mend.

    ``str(error)`` is one sentence that names the file, the tensor or the option at fault and what
    to do about it. The command line prints it and exits with status 1. Names in it may come from a
    damaged file, so what is not printable in them is escaped.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(printable(sentence))


def printable(text: str) -> str:
    """The text with line breaks, control characters and lone surrogates escaped."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text
    )
