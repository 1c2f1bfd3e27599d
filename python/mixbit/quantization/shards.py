"""Spreading a checkpoint over files, and writing them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import mlx.core as mx
import numpy as np

from mixbit.checkpoint import Layout, file_header
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


class ShardFile:
    """A safetensors file whose tensors are written some rows at a time.

    It has its whole header from the start. Opened again it can be gone on with, a tensor after the
    other.
    """

    def __init__(self, path: Path, layouts: Mapping[str, Layout]) -> None:
        """Open the file at ``path``, or make it.

        Args:
            path: the file.
            layouts: all its tensors, in order.

        Raises:
            MixbitError: it cannot be written.
        """
        header, self._at = file_header(layouts, {"format": "mlx"})
        self._path = path
        with self._writing():
            self._file = path.open("r+b" if path.exists() else "xb")
            self._file.write(header)

    def append(self, name: str, rows: mx.array) -> None:
        """Write the next rows of a tensor, evaluated.

        Raises:
            MixbitError: they cannot be written.
        """
        content = np.asarray(mx.contiguous(rows).view(mx.uint8))
        with self._writing():
            self._file.seek(self._at[name])
            self._file.write(content.data)
        self._at[name] += content.nbytes

    def flush(self) -> None:
        """Have the disk hold what was written.

        Raises:
            MixbitError: it cannot.
        """
        with self._writing():
            self._file.flush()
            os.fsync(self._file.fileno())

    def __enter__(self) -> ShardFile:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # what counts has been flushed
            self._file.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise MixbitError(f"{self._path.name} cannot be written: {error.strerror}.") from None


def flush(paths: Iterable[Path]) -> None:
    """Have the disk hold what was written to these files or folders."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
