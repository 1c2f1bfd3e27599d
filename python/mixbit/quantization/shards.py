"""Spreading a checkpoint over files, and writing them."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import mlx.core as mx

from mixbit.errors import MixbitError


def group_by_size(sizes: Sequence[int], limit: int) -> list[range]:
    """Cut a row of sizes into consecutive runs of at most ``limit`` in sum.

    One that is larger than the limit makes a run of its own.
    """
    runs: list[range] = []
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > limit:
            runs.append(range(start, index))
            start, total = index, 0
        total += size
    return [*runs, range(start, len(sizes))]


def shard_name(index: int, count: int) -> str:
    """File name of shard ``index`` (from 0) of ``count``, as mlx-lm and transformers spell it."""
    return f"model-{index + 1:05d}-of-{count:05d}.safetensors" if count > 1 else "model.safetensors"


def save_shard(path: Path, tensors: dict[str, mx.array]) -> None:
    """Write evaluated tensors to a safetensors file, which is there when it is whole.

    Raises:
        MixbitError: the file cannot be written.
    """
    beside = path.with_name(f".{path.name}")
    try:
        mx.save_safetensors(str(beside), tensors, {"format": "mlx"})
        flush([beside])
        beside.replace(path)
    except (OSError, RuntimeError) as error:
        raise MixbitError(f"{path.name} cannot be written: {error}.") from None


def flush(paths: Iterable[Path]) -> None:
    """Have the disk hold what was written to these files or folders."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
