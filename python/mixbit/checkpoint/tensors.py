"""Tensors in safetensors files: parts of them read, and new files laid out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from mixbit.checkpoint.files import TensorInfo
from mixbit.errors import MixbitError

DTYPE_NAMES = {
    mx.uint32: "U32", mx.uint8: "U8", mx.int8: "I8",
    mx.float16: "F16", mx.bfloat16: "BF16", mx.float32: "F32",
}  # fmt: skip
"""safetensors' names of the types that a model's parameters have."""

_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


class Layout(NamedTuple):
    """A tensor of a file that is to be written."""

    dtype: str
    """safetensors' name of it."""
    shape: tuple[int, ...]
    nbytes: int


def file_header(
    layouts: Mapping[str, Layout], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """What a safetensors file begins with, and where in it each tensor does."""
    described: dict[str, Any] = {"__metadata__": dict(metadata)}
    begins, end = dict[str, int](), 0
    for name, layout in layouts.items():
        begins[name], end = end, end + layout.nbytes
        described[name] = {
            "dtype": layout.dtype,
            "shape": layout.shape,
            "data_offsets": [begins[name], end],
        }
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + begin for name, begin in begins.items()}


def read_rows(info: TensorInfo, begin: int, end: int) -> mx.array:
    """Rows [begin, end) of a tensor, of its first dimension; no more of it takes memory.

    Raises:
        MixbitError: the file cannot be read any more.
    """
    return gather_rows(info, [range(begin, end)])


def gather_rows(info: TensorInfo, runs: Sequence[range]) -> mx.array:
    """Some runs of rows of a tensor, one behind the other, copied out of the mapped file.

    Raises:
        MixbitError: the file cannot be read any more.
    """
    shape = (info.shape[0], info.nbytes // max(info.shape[0], 1))
    try:
        # Refuses a file that ends before the tensor does: to read behind an end kills the process.
        rows = np.memmap(info.file, np.uint8, "r", info.offset, shape)
    except OSError as error:
        raise MixbitError(f"{info.file} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise MixbitError(f"{info.file} has become shorter; fetch the model again.") from None
    parts = [rows[run.start : run.stop] for run in runs]
    data = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return mx.array(data.reshape(-1)).view(_DTYPES[info.dtype]).reshape(-1, *info.shape[1:])
