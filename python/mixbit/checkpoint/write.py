"""Writing small files so that a reader sees the old content or the new, never a part."""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixbit.errors import MixbitError


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON file beside ``path``, flush it to the disk, then rename it to ``path``.

    Raises:
        MixbitError: the folder is missing or not writable, or the disk is full.
    """
    write_bytes(path, (json.dumps(document, indent=2) + "\n").encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file of any kind, as :func:`write_json` does.

    Raises:
        MixbitError: the folder is missing or not writable, or the disk is full.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise MixbitError(f"{path} cannot be written: {error.strerror}.") from None
    finally:
        beside.unlink(missing_ok=True)
