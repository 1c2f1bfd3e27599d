"""Copying tensors from one safetensors file to another byte by byte, whatever their type."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from mixbit.checkpoint.files import TensorInfo

_CHUNK = 1 << 24


def copy_tensors(
    tensors: Mapping[str, TensorInfo],
    names: Iterable[str],
    target: Path,
    metadata: Mapping[str, str],
) -> int:
    """Write some of ``tensors`` to a new safetensors file, untouched, and flush it to the disk.

    Returns:
        The bytes of the tensors.

    Raises:
        OSError: the file cannot be written.
    """
    names = list(names)
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        info = tensors[name]
        begin, end = end, end + info.nbytes
        header[name] = {"dtype": info.dtype, "shape": info.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with target.open("xb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            _copy(tensors[name].file, name, out)
        out.flush()
        os.fsync(out.fileno())
    return end


def _copy(source: Path, name: str, out: BinaryIO) -> None:
    with source.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        begin, end = json.loads(file.read(length))[name]["data_offsets"]
        file.seek(8 + length + begin)
        for start in range(begin, end, _CHUNK):
            out.write(file.read(min(_CHUNK, end - start)))
