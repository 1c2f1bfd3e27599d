"""Few patterns for many names."""

import re
from collections.abc import Iterable, Iterator

_LAYER = re.compile(r"\b(layers|blk)\.(\d+)\.")


def grouped(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """``PATTERN=VALUE`` lines for pairs of name and value.

    Names that differ in nothing but their layer and have equal values share a line. The patterns
    are anchored at both ends, so no line reaches another one's names.
    """
    layers: dict[tuple[str, str], list[str]] = {}
    for name, value in pairs:
        match = _LAYER.search(name)
        template = name if match is None else f"{name[: match.start(2)]}#{name[match.end(2) :]}"
        layers.setdefault((template, value), []).append(match[2] if match else "")
    for (template, value), numbers in layers.items():
        chosen = numbers[0] if len(numbers) == 1 else f"({'|'.join(numbers)})"
        # Only the dots of a path mean something in a regular expression.
        yield f"^{template.replace('.', chr(92) + '.').replace('#', chosen)}$={value}"
