"""How many windows fit into a given memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import mlx.core as mx
import numpy as np

from mixbit.errors import MixbitError
from mixbit.kld.scorer import Scorer
from mixbit.kld.sizes import Sizes
from mixbit.kld.stream import Protocol, Stream
from mixbit.kld.windows import chunks_of
from mixbit.ops import LogitFields

# Bytes of statistics per logit: a tile of 384 tokens has one row of fields.
_BYTES_PER_LOGIT = LogitFields.COUNT * 8 / 384


@contextmanager
def fitted(
    memory: float | None, scorers: Sequence[Scorer], stream: Stream, sizes: Sizes
) -> Iterator[Sizes]:
    """``sizes`` with a batch that keeps within ``memory`` GB, models included.

    One window runs through each model to see what it takes. Nothing else grows with the data but
    about 80 bytes for each scored token.

    Raises:
        MixbitError: not even one window fits.
    """
    if memory is None:
        yield sizes
        return
    limit = int(memory * 1e9)
    width = int((stream.windows[:, 3] - stream.windows[:, 1]).max())
    used = mx.get_active_memory()
    window = _window_bytes(scorers, width, sizes)
    fixed = used + _fixed_bytes(scorers, stream, sizes)
    batch = min(sizes.batch, (limit - fixed) // max(window, 1))
    if batch < 1:
        raise MixbitError(
            f"{memory:g} GB are too little: the models and fixed buffers take {fixed / 1e9:.2f} GB "
            f"and a window of {width} tokens {window / 1e9:.2f} GB; allow "
            f"{(fixed + window) / 1e9:.2f} GB or take a smaller window or chunk."
        )
    # What MLX keeps for reuse counts too.
    previous = mx.set_cache_limit(max(0, limit - fixed - batch * window))
    try:
        yield replace(sizes, batch=batch)
    finally:
        mx.set_cache_limit(previous)


def _window_bytes(scorers: Sequence[Scorer], width: int, sizes: Sizes) -> int:
    """What a window takes while one model runs and the others hold what theirs left behind."""
    window = Stream(
        tokens=np.zeros(width, np.int32),
        offsets=np.array([0, width]),
        answers=np.array([-1]),
        kinds=np.zeros(1, np.int32),
        kind_names=("probe",),
        protocol=Protocol(window=None, score="all"),
        unit_tokens=width,
    )
    running, held = 0, 0
    for scorer in scorers:
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        for chunk in chunks_of(window, window.units[0], 1, sizes.chunk):
            scorer.hidden(chunk)
        left = mx.get_active_memory() - before
        running = max(running, mx.get_peak_memory() - before - left)
        held += left
    return running + held


def _fixed_bytes(scorers: Sequence[Scorer], stream: Stream, sizes: Sizes) -> int:
    """Statistics of a block, and a unit of the reference's hidden states."""
    width = int((stream.windows[:, 3] - stream.windows[:, 1]).max())
    rows = max(scorer.head.rows for scorer in scorers)
    hidden = max(scorer.probe.shape[-1] * scorer.probe.itemsize for scorer in scorers)
    return int(sizes.block * rows * _BYTES_PER_LOGIT) + 2 * (stream.unit_tokens + width) * hidden
