"""Folders that fill up file by file, and can be left and taken up again at any moment."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save as serialise

from mixbit.checkpoint import read_json, write_json
from mixbit.errors import MixbitError
from mixbit.kld.ranks import ranks

JOB = "job.json"


def begin(folder: Path, job: dict[str, Any]) -> None:
    """Make ``folder`` for a job, or take up the same job again.

    ``job`` says all that the content depends on. Unfinished files of an earlier run are removed.

    Raises:
        MixbitError: the folder holds something else, or cannot be written.
    """
    path = folder / JOB
    job = json.loads(json.dumps(job))
    try:
        folder.mkdir(exist_ok=True)
        if path.exists():
            _refuse_other(read_json(path), job, folder)
        elif any(not file.name.startswith(".") for file in folder.iterdir()):
            raise MixbitError(f"{folder} holds other things already; name a new folder.")
        for file in folder.glob(".*"):
            file.unlink()
    except OSError as error:
        raise MixbitError(f"{folder} cannot be written: {error.strerror}.") from None
    if not path.exists():
        write_json(path, job)


def see_together(folder: Path) -> None:
    """Wait until rank 0 has begun ``folder``.

    Raises:
        MixbitError: it is not the same folder for every rank.
    """
    ranks().wait()
    if not (folder / JOB).exists():
        raise MixbitError(f"All ranks must see the one folder {folder}.")


def save(path: Path, write: Callable[[Path], object]) -> None:
    """Have ``write`` fill a file beside ``path``, flush it and rename it to that.

    Raises:
        MixbitError: it cannot be written.
    """
    beside = path.with_name(f".{path.name}")
    try:
        write(beside)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    except (OSError, RuntimeError) as error:
        beside.unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) else error
        raise MixbitError(f"{path} cannot be written: {reason}.") from None


def save_arrays(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    """Write a safetensors file of numpy arrays."""
    save(path, lambda beside: beside.write_bytes(serialise(arrays)))


def sha256(path: Path) -> str:
    """Checksum of a file.

    Raises:
        MixbitError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise MixbitError(f"{path} cannot be read: {error.strerror}.") from None


def _refuse_other(found: dict[str, Any], job: dict[str, Any], folder: Path) -> None:
    differing = sorted(key for key in found.keys() | job.keys() if found.get(key) != job.get(key))
    if differing:
        raise MixbitError(
            f"{folder} was begun for something else (not the same {', '.join(differing)}); finish "
            "that, or name another output."
        )
