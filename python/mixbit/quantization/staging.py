"""A folder that appears whole or not at all, and can be gone on with."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mixbit.checkpoint import write_json
from mixbit.errors import MixbitError
from mixbit.quantization.shards import flush

_JOB, _LOCK, _CONTENT = "job.json", "lock", "checkpoint"


@contextmanager
def staged(out_dir: Path, job: Mapping[str, Any]) -> Iterator[Path]:
    """Give a folder to write to, and rename it to ``out_dir`` on success.

    It lies in ``.NAME.part`` beside ``out_dir``. A failure removes it, with the parents that were
    made for it. What interrupts the process (Ctrl-C, SIGTERM, a kill) leaves it, and the next call
    for the same job finds what was written.

    Args:
        out_dir: the folder to make.
        job: all that the content depends on, JSON values.

    Raises:
        MixbitError: ``out_dir`` exists, at the start or at the end, cannot be written, another
            process is writing it, or another job has begun it.
    """
    refuse_existing(out_dir)
    part = out_dir.with_name(f".{out_dir.name}.part")
    new_parents = [parent for parent in part.parents if not parent.exists()]
    try:
        part.mkdir(parents=True, exist_ok=True)
        with _alone(part, out_dir):
            content = _taken_up(part, job, out_dir)
            yield content
            flush([*content.iterdir(), content])
            refuse_existing(out_dir)
            content.rename(out_dir)
            flush([out_dir.parent])
        shutil.rmtree(part)
    except (KeyboardInterrupt, SystemExit, _OthersError):
        raise
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        for parent in new_parents:
            with suppress(OSError):
                parent.rmdir()
        if isinstance(error, OSError):
            raise MixbitError(f"{out_dir} cannot be written: {error.strerror}.") from None
        raise


def refuse_existing(out_dir: Path) -> None:
    """Raise MixbitError if there is anything at ``out_dir``."""
    if out_dir.exists() or out_dir.is_symlink():
        raise MixbitError(f"{out_dir} exists already; remove it or name another folder.")


class _OthersError(MixbitError):
    """The folder is another run's, and is left to it."""


@contextmanager
def _alone(part: Path, out_dir: Path) -> Iterator[None]:
    with (part / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _OthersError(f"Another process is writing {out_dir}; wait for it.") from None
        yield


def _taken_up(part: Path, job: Mapping[str, Any], out_dir: Path) -> Path:
    """The folder for the content: as it was left by the same job, else empty."""
    content, path = part / _CONTENT, part / _JOB
    job = json.loads(json.dumps(job))
    try:
        begun = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        begun = None
    if isinstance(begun, dict) and content.is_dir():
        other = sorted(key for key in begun.keys() | job.keys() if begun.get(key) != job.get(key))
        if other:
            raise _OthersError(
                f"{out_dir} was begun with another {', '.join(other)}; finish that, or remove "
                f"{part} to begin anew."
            )
        return content
    for file in part.iterdir():
        if file.name != _LOCK:
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    content.mkdir()
    write_json(path, job)
    return content
