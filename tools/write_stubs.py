"""Write ``python/mixbit/_core.pyi`` from the built native module.

The file is committed, so that type checkers and cross-built wheels have it without running the
module; a test compares it with what this script gives.
"""

from __future__ import annotations

import importlib
from pathlib import Path

STUB = Path(__file__).parents[1] / "python" / "mixbit" / "_core.pyi"


def render() -> str:
    """The stub's text."""
    from nanobind.stubgen import StubGen

    module = importlib.import_module("mixbit._core")
    generator = StubGen(module)
    generator.put(module)
    text: str = generator.get()
    return text


if __name__ == "__main__":
    STUB.write_text(render(), encoding="utf-8")
