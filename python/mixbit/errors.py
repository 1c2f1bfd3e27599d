"""The one exception that a user is meant to read."""


class MixbitError(Exception):
    """A failure that the caller can mend.

    ``str(error)`` is one sentence that names the file, the tensor or the option at fault and what
    to do about it. The command line prints it and exits with status 1.
    """
