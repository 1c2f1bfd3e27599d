"""A turn of phrase that several messages share."""


def and_more(others: int) -> str:
    """`` (and 3 more)``, or nothing when there are no others."""
    return f" (and {others} more)" if others else ""
