"""Keeps what was made, by content, for all processes and sessions."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import platform
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from .tools import HERE, tool

_KEPT_SECONDS = 14 * 24 * 3600


def content_key(*parts: str | bytes) -> str:
    """A name for what these parts, this tool and this processor make."""
    return _hashed(_tool_key().encode(), *parts)


def _hashed(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:32]


@functools.cache
def _tool_key() -> str:
    files = sorted(p for p in HERE.rglob("*") if p.suffix in (".py", ".h", ".cpp"))
    clang = Path(tool("clang++")).resolve()
    compiler = (str(clang), str(clang.stat().st_mtime_ns), platform.machine())
    return _hashed(*compiler, *(p.read_bytes() for p in files))


@functools.cache
def cache() -> Path:
    """The folder of everything built; what nobody used for two weeks is removed."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "mixbit" / "metal-runner"
    folder.mkdir(parents=True, exist_ok=True)
    oldest = time.time() - _KEPT_SECONDS
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process removes them too
            if path.stat().st_mtime < oldest:
                _remove(path)
    return folder


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """Path of the cached file or folder ``name``, which ``make`` writes.

    It is made once, also where several processes want it.
    """
    path = cache() / name
    if not path.exists():
        with (cache() / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                beside = path.with_name(f"{path.stem}.{os.getpid()}{path.suffix}")
                try:
                    make(beside)
                    beside.rename(path)
                finally:
                    _remove(beside)
    os.utime(path)
    return path


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
