"""Argument parsing, exit codes and what a person sees when something fails.

Command modules import MLX and everything above it only when they run, so that ``--help`` and usage
errors answer at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from types import FrameType

from mixbit import __version__
from mixbit.cli import bench, calibrate, demo, generate, kld, plan, quantize, search
from mixbit.errors import MixbitError

_COMMANDS = (demo, plan, calibrate, quantize, search, generate, kld, bench)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="mixbit",
        description="Mixed-bit quantisation, fast inference and exact KL divergence for "
        "Qwen3.5-class hybrid models on MLX.",
    )
    parser.add_argument("--version", action="version", version=f"mixbit {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.register(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0 done, 1 failed with one sentence on stderr, 2 wrong usage (raised by argparse as SystemExit),
    130 interrupted.
    """
    args = build_parser().parse_args(argv)
    previous = signal.signal(signal.SIGTERM, _terminate)
    previous_warning, warnings.showwarning = warnings.showwarning, _show_warning
    try:
        args.run(args)
        sys.stdout.flush()
    except MixbitError as error:
        print(f"mixbit: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mixbit: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; what is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        signal.signal(signal.SIGTERM, previous)
        warnings.showwarning = previous_warning
    return 0


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A line for a person; where in the code a warning arose is of no use to one."""
    print(f"mixbit: warning: {message}", file=sys.stderr)


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    """Leave through the stack, so that unfinished output is removed as on Ctrl-C."""
    raise SystemExit(128 + signal.SIGTERM)
