"""What can go wrong, as exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .report import Report


class SourceError(Exception):
    """The source is not what this tool can read, or its compiler refuses it."""


class KernelError(Exception):
    """A run faulted or broke a rule of the GPU; ``report`` says what was found where."""

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report
