"""Copying tensors from one safetensors file to another byte by byte, whatever their type."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

from mixbit.checkpoint.files import TensorInfo
from mixbit.checkpoint.tensors import Layout, file_header

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
    chosen = {name: tensors[name] for name in names}
    layouts = {name: Layout(i.dtype, i.shape, i.nbytes) for name, i in chosen.items()}
    header, _ = file_header(layouts, metadata)
    with target.open("xb") as out:
        out.write(header)
        for info in chosen.values():
            _copy(info, out)
        out.flush()
        os.fsync(out.fileno())
    return sum(info.nbytes for info in chosen.values())


def _copy(info: TensorInfo, out: BinaryIO) -> None:
    with info.file.open("rb") as file:
        file.seek(info.offset)
        for start in range(0, info.nbytes, _CHUNK):
            out.write(file.read(min(_CHUNK, info.nbytes - start)))
