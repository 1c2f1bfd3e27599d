"""The ``mixbit`` command."""

from mixbit.cli.app import main

__all__ = ["main"]
