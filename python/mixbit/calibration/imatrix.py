"""llama.cpp's importance matrices, GGUF and the binary form before it.

They hold sums of squares of each tensor's input, none for the embedding and the output head.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mixbit.calibration.inputs import place_of
from mixbit.calibration.statistics import InputStatistics
from mixbit.checkpoint import ModelStructure, describe
from mixbit.errors import MixbitError
from mixbit.plan.names import PathTable

Array = npt.NDArray[np.float64]

# GGUF files of these models tile the value heads, which Hugging Face and qwen3_next's group.
_TILED = ("qwen3_5", "qwen3_5_moe")
_MAX_NAME = 1024


class _Entry(NamedTuple):
    """One tensor's input."""

    name: str
    mean_square: Array
    """[experts, in_dims]; one row unless there are experts."""
    counts: Array
    """[experts]"""


def is_imatrix(path: Path) -> bool:
    """Whether a file is an importance matrix by its beginning (GGUF) or its name (``.dat``)."""
    with path.open("rb") as file:
        return file.read(4) == b"GGUF" or path.suffix in (".dat", ".imatrix")


def read_imatrix(
    path: Path, config: Mapping[str, Any]
) -> tuple[dict[str, InputStatistics], dict[str, Any]]:
    """Statistics by the places of :func:`mixbit.calibration.inputs.place_of`, and provenance.

    Args:
        path: the file.
        config: of the model that it is for.

    Raises:
        MixbitError: the file is truncated, or none of its tensors is of this model.
    """
    with path.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    entries, provenance = _read_gguf(path) if is_gguf else _read_binary(path)
    structure = describe(config)
    table = PathTable(structure)
    experts = {m.path: m.experts if m.kind == "switch" else None for m in structure.modules}
    places: dict[str, InputStatistics] = {}
    for entry in entries:
        meaning = table.find(entry.name)
        if meaning is None or meaning.kind != "module":
            continue
        for module in meaning.paths:
            mean_square = entry.mean_square
            if module.endswith("linear_attn.out_proj"):
                mean_square = _grouped(mean_square, structure, config, path)
            place = place_of(module)
            if place not in places:
                places[place] = _statistics(mean_square, entry, experts[module], path)
    if not places:
        raise MixbitError(f"{path} is of another model: none of its tensors is of this one.")
    return places, provenance


def _statistics(
    mean_square: Array, entry: _Entry, experts: int | None, path: Path
) -> InputStatistics:
    count = entry.counts
    if experts is None:
        if len(mean_square) != 1:
            raise MixbitError(f"{path} is of another model: {entry.name} has experts in it.")
        mean_square, count = mean_square[0], count[0]
    elif len(mean_square) != experts:
        mean_square = mean_square.reshape(experts, -1)
        count = np.where((mean_square > 0).any(axis=1), count[0], 0.0)
    return InputStatistics(
        mx.array(mean_square.astype(np.float32)), mx.array(np.asarray(count, np.float32))
    )


def _grouped(
    mean_square: Array, structure: ModelStructure, config: Mapping[str, Any], path: Path
) -> Array:
    """Value heads in Hugging Face's order: those of one key head side by side."""
    if structure.model_type not in _TILED:
        return mean_square
    text = config.get("text_config", config)
    value_heads, key_heads = text["linear_num_value_heads"], text["linear_num_key_heads"]
    rows, width = mean_square.shape
    if width % value_heads:
        raise MixbitError(
            f"{path} is of another model: {width} channels are not {value_heads} value heads."
        )
    tiled = mean_square.reshape(rows, value_heads // key_heads, key_heads, -1)
    return tiled.swapaxes(1, 2).reshape(rows, width)


def _read_gguf(path: Path) -> tuple[list[_Entry], dict[str, Any]]:
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        tensors = {tensor.name: np.asarray(tensor.data, np.float64) for tensor in reader.tensors}
        kind = reader.get_field("general.type")
        kind = None if kind is None else kind.contents()
        datasets = reader.get_field("imatrix.datasets")
    except (ValueError, IndexError, KeyError, OSError) as error:
        raise MixbitError(f"{path} is truncated or not a GGUF file ({error}).") from None
    if kind != "imatrix":
        raise MixbitError(f"{path} is a GGUF file, but no importance matrix.")
    entries = []
    for key, sums in tensors.items():
        name = key.removesuffix(".in_sum2")
        if name == key:
            continue
        if f"{name}.counts" not in tensors:
            raise MixbitError(f"{path} lacks {name}.counts; make it again.")
        count = tensors[f"{name}.counts"].reshape(-1)
        rows = sums.reshape(len(count), -1)
        entries.append(_Entry(name, rows / np.maximum(count, 1)[:, None], count))
    return entries, {
        "format": "imatrix",
        "file": path.name,
        "datasets": None if datasets is None else datasets.contents(),
    }


def _read_binary(path: Path) -> tuple[list[_Entry], dict[str, Any]]:
    try:
        entries = list(_binary_entries(path.read_bytes()))
    except (struct.error, ValueError) as error:
        raise MixbitError(f"{path} is truncated or not an importance matrix ({error}).") from None
    return entries, {"format": "imatrix", "file": path.name}


def _binary_entries(content: bytes) -> Iterator[_Entry]:
    """The number of entries, then each: name, calls, values, mean squares times the calls."""
    (entries,) = struct.unpack_from("<i", content)
    at = 4
    for _ in range(entries):
        (length,) = struct.unpack_from("<i", content, at)
        if not 0 < length <= _MAX_NAME:
            raise ValueError(f"a name of {length} bytes")
        name = content[at + 4 : at + 4 + length].decode()
        at += 4 + length
        calls, values = struct.unpack_from("<ii", content, at)
        if values < 1:
            raise ValueError(f"{values} values of {name}")
        sums = np.frombuffer(content, "<f4", values, at + 8).astype(np.float64)
        at += 8 + 4 * values
        yield _Entry(name, sums[None] / max(calls, 1), np.array([float(calls)]))
