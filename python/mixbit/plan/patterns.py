"""Regular expressions that other people wrote into plans."""

import re
import warnings

from mixbit.errors import MixbitError


def compiled(pattern: object, origin: object) -> re.Pattern[str]:
    """Compile a pattern.

    Raises:
        MixbitError: it is no regular expression.
    """
    if not isinstance(pattern, str):
        raise MixbitError(f"{origin}: {pattern!r} is not a pattern.")
    try:
        with warnings.catch_warnings():
            # Brackets in brackets mean what they always did; it may change some day.
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise MixbitError(f"{origin}: {pattern!r} is not a regular expression ({error}).") from None
