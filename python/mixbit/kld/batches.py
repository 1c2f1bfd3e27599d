"""Documents as right-padded batches.

Padding stands on the right, after every real token, and all mixers of these models are causal:
a real position never sees it, so no mask is needed. Each batch starts from an empty cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Batch:
    """Documents of similar length, run together."""

    documents: npt.NDArray[np.int64]
    """Index of each row's document, ``[B]``."""
    lengths: npt.NDArray[np.int64]
    """Real tokens of each row, ``[B]``."""
    tokens: npt.NDArray[np.int32]
    """Token ids ``[B, T]``; beyond a row's length the value means nothing."""


@dataclass(frozen=True)
class Chunk:
    """Some consecutive columns of a batch and the scored positions among them."""

    tokens: npt.NDArray[np.int32]
    """``[B, t]``"""
    flat: npt.NDArray[np.int64]
    """Scored positions, as indices into the flattened ``[B * t]``; shape ``[N]``."""
    targets: npt.NDArray[np.int64]
    """The token that follows each scored position, ``[N]``."""
    documents: npt.NDArray[np.int64]
    """Document of each scored position, ``[N]``."""
    positions: npt.NDArray[np.int64]
    """Index of each scored position in its document, ``[N]``."""


def make_batches(documents: Sequence[Sequence[int]], batch_size: int) -> Iterator[Batch]:
    """Batches of at most ``batch_size`` documents, longest first (the peak comes at once)."""
    order = sorted(
        (index for index, document in enumerate(documents) if len(document) > 1),
        key=lambda index: -len(documents[index]),
    )
    for begin in range(0, len(order), batch_size):
        chosen = order[begin : begin + batch_size]
        lengths = np.array([len(documents[index]) for index in chosen])
        tokens = np.zeros((len(chosen), int(lengths.max())), dtype=np.int32)
        for row, index in enumerate(chosen):
            tokens[row, : lengths[row]] = documents[index]
        yield Batch(np.array(chosen), lengths, tokens)


def make_chunks(batch: Batch, chunk_size: int) -> Iterator[Chunk]:
    """The batch cut into pieces of ``chunk_size`` columns."""
    # The last token of a document predicts nothing, and the longest row needs no run beyond that.
    columns = batch.tokens.shape[1] - 1
    for begin in range(0, columns, chunk_size):
        position = np.arange(begin, min(begin + chunk_size, columns))
        scored = position[None, :] + 1 < batch.lengths[:, None]
        row, column = np.nonzero(scored)
        yield Chunk(
            tokens=batch.tokens[:, begin : begin + len(position)],
            flat=np.flatnonzero(scored),
            targets=batch.tokens[row, position[column] + 1].astype(np.int64),
            documents=batch.documents[row],
            positions=position[column],
        )
