"""Windows as right-padded batches, worked off in pieces.

Padding stands on the right, after every real token, and all mixers of these models are causal:
a real position never sees it, so no mask is needed. Each batch starts from an empty cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mixbit.kld.stream import Indices, Stream


@dataclass(frozen=True)
class Chunk:
    """Some consecutive columns of a batch and the scored positions among them."""

    tokens: npt.NDArray[np.int32]
    """``[B, t]``; beyond the end of a row's window the value means nothing."""
    flat: Indices
    """Scored positions, as indices into the flattened ``[B * t]``; shape ``[N]``."""
    targets: Indices
    """The token that follows each scored position, ``[N]``."""
    rows: Indices
    """Place of each scored position among all of the stream, ``[N]``."""
    is_first: bool
    """Whether it begins a batch."""


def chunks_of(stream: Stream, unit: range, batch_size: int, chunk_size: int) -> Iterator[Chunk]:
    """The windows of a unit in batches of at most ``batch_size``, in pieces of ``chunk_size``.

    Longest first, so that the peak comes at once; a batch ends where less than three quarters of a
    row would be of use, or padding would be most of the work on documents of all lengths.
    """
    batch: list[int] = []
    for index in sorted(unit, key=lambda index: -_length(stream, index)):
        longest = _length(stream, batch[0]) if batch else 0
        if len(batch) == batch_size or 4 * _length(stream, index) < 3 * longest:
            yield from _chunks(stream, np.array(batch), chunk_size)
            batch = []
        batch.append(index)
    yield from _chunks(stream, np.array(batch), chunk_size)


def _length(stream: Stream, window: int) -> int:
    return int(stream.windows[window, 3] - stream.windows[window, 1])


def _chunks(stream: Stream, batch: Indices, chunk_size: int) -> Iterator[Chunk]:
    _, start, first, end = stream.windows[batch].T[..., None]  # [B, 1] each
    # The last token of a window predicts nothing, and the longest row needs no run beyond that.
    columns = int((end - start).max()) - 1
    tokens = np.zeros((len(batch), columns), dtype=np.int32)
    for row in range(len(batch)):
        seen = stream.tokens[start[row, 0] : end[row, 0] - 1]
        tokens[row, : len(seen)] = seen
    for begin in range(0, columns, chunk_size):
        position = start + np.arange(begin, min(begin + chunk_size, columns))
        scored = (position >= first) & (position < end - 1)
        at = position[scored]
        shift = stream.rows[batch][:, None] - first
        yield Chunk(
            tokens=tokens[:, begin : begin + chunk_size],
            flat=np.flatnonzero(scored),
            targets=stream.tokens[at + 1].astype(np.int64),
            rows=(position + shift)[scored],
            is_first=begin == 0,
        )
