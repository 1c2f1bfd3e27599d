"""A stream's file, the same in a reference cache and beside results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load_file

from mixbit.errors import MixbitError
from mixbit.kld.files import save_arrays
from mixbit.kld.stream import Protocol, Stream

STREAM = "stream.safetensors"
_ARRAYS = ("tokens", "offsets", "answers", "kinds")


def write_stream(folder: Path, stream: Stream) -> None:
    """Write the arrays that a stream consists of."""
    save_arrays(folder / STREAM, {name: getattr(stream, name) for name in _ARRAYS})


def read_stream(folder: Path, manifest: dict[str, Any]) -> Stream:
    """The stream of a folder whose manifest has the rest of it.

    Raises:
        MixbitError: the file is damaged.
    """
    path = folder / STREAM
    try:
        arrays = load_file(path)
        return Stream(
            **{name: arrays[name] for name in _ARRAYS},
            kind_names=tuple(manifest["kinds"]),
            protocol=Protocol(**manifest["stream"]["protocol"]),
            unit_tokens=int(manifest["stream"]["unit_tokens"]),
        )
    except (OSError, SafetensorError, KeyError) as error:
        raise MixbitError(f"{path} cannot be read: {error}.") from None
