"""Keeps what was made, by content, for all processes and sessions."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import platform
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
    return _hashed(platform.machine(), tool("clang++"), *(p.read_bytes() for p in files))


@functools.cache
def cache() -> Path:
    """The folder of everything built; what nobody used for two weeks is removed."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "mixbit" / "metal-runner"
    folder.mkdir(parents=True, exist_ok=True)
    oldest = time.time() - _KEPT_SECONDS
    for path in folder.iterdir():
        if path.is_file() and path.stat().st_mtime < oldest:
            path.unlink(missing_ok=True)
    return folder


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """Path of the cached file ``name``; ``make`` writes it, once even if processes race for it."""
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
                    beside.unlink(missing_ok=True)
    os.utime(path)
    return path
