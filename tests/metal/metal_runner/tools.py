"""The programs of LLVM that this tool runs."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .errors import SourceError

HERE = Path(__file__).resolve().parent
_VERSION = 19
_PLACES = (
    f"/usr/lib/llvm-{_VERSION}/bin",
    f"/opt/homebrew/opt/llvm@{_VERSION}/bin",
    f"/usr/local/opt/llvm@{_VERSION}/bin",
)


@functools.cache
def tool(name: str) -> str:
    """Path of ``clang++``, ``clang`` or ``llvm-symbolizer`` in version 19. Raises SourceError."""
    found = shutil.which(f"{name}-{_VERSION}") or shutil.which(name, path=os.pathsep.join(_PLACES))
    if found is None:
        mend = "brew install llvm@19" if platform.system() == "Darwin" else "make setup"
        raise SourceError(f"{name} {_VERSION}, which runs Metal kernels here, is missing: {mend}")
    return found


def run_tool(command: Sequence[str], text: str = "") -> str:
    """Standard output of a command that reads ``text``. Raises SourceError with what it said."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SourceError(f"{Path(command[0]).name} refuses the source:\n{done.stderr[:6000]}")
    return done.stdout
