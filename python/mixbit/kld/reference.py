"""What candidates are held against: a model that runs along, or a cache of one that has run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mixbit.errors import MixbitError
from mixbit.integration import load, resolve
from mixbit.kld.cache import CacheWriter, ReferenceCache, is_cache, refuse_finished
from mixbit.kld.documents import Document, read_documents
from mixbit.kld.identity import model_hash, tokenizer_hash
from mixbit.kld.ranks import ranks
from mixbit.kld.scorer import Scorer
from mixbit.kld.sizes import Sizes
from mixbit.kld.stream import Protocol, Stream
from mixbit.kld.windows import Chunk, chunks_of

Model = str | Path | nn.Module
Data = str | Path | Sequence[Sequence[int]]
Progress = Callable[[int, int], None]


class LiveReference:
    """A reference model that runs beside the candidates."""

    def __init__(self, model: nn.Module, tokenizer: Any, stream: Stream) -> None:
        """Take the model and what it shall read."""
        self.scorer, self.stream = Scorer(model), stream
        self.head = self.scorer.head
        self.vocab_size = min(self.head.rows, tokenizer_size(tokenizer))
        self._tokenizer = tokenizer
        self.tokenizer_sha256 = tokenizer_hash(tokenizer)

    def check_tokenizers(self, tokenizers: Sequence[Any]) -> None:
        """Refuse candidates that speak another vocabulary."""
        if self._tokenizer is None:
            return
        own = self._tokenizer.get_vocab()
        others = {id(other): other for other in tokenizers if other is not None}
        if any(
            other is not self._tokenizer and other.get_vocab() != own for other in others.values()
        ):
            raise MixbitError(
                "The models have different tokenizers; a divergence needs one vocabulary."
            )  # fmt: skip

    def open_unit(self, unit: int) -> None:
        """Nothing to fetch."""

    def hidden(self, chunk: Chunk) -> mx.array:
        """Hidden states ``[N, size]`` of a chunk's scored positions."""
        return self.scorer.hidden(chunk)


Reference = LiveReference | ReferenceCache


def open_model(model: Model, tokenizer: Any) -> tuple[nn.Module, Any]:
    """A loaded model and its tokenizer."""
    if isinstance(model, nn.Module):
        return model, tokenizer
    loaded, own_tokenizer = load(str(model))
    return loaded, own_tokenizer


def open_reference(
    reference: Model,
    data: Data | None,
    tokenizer: Any,
    num_samples: int | None,
    protocol: Protocol,
) -> Reference:
    """The reference of a measurement, with the stream that it brings or that the data make.

    Raises:
        MixbitError: the data cannot be used, or the cache cannot.
    """
    if not isinstance(reference, nn.Module) and is_cache(reference):
        if data is not None or num_samples is not None:
            raise MixbitError(
                f"{reference} is a reference cache, which holds the data it was made with; leave "
                "out other data and num_samples."
            )
        cache = ReferenceCache(Path(reference))
        _refuse_other_protocol(cache, protocol)
        return cache
    if data is None:
        raise MixbitError("Data are needed to run a reference model over; a cache has its own.")
    model, own = open_model(reference, tokenizer)
    return LiveReference(model, own, stream_of_data(data, own, num_samples, protocol))


def make_reference(
    model: str | Path,
    data: Data,
    out: str | Path,
    *,
    num_samples: int | None = None,
    window: int | None = 512,
    score: str = "half",
    full_windows: bool = False,
    batch_size: int = 8,
    chunk_size: int = 512,
    announce: Callable[[int, Path], None] | None = None,
    progress: Progress | None = None,
) -> ReferenceCache:
    """Run a reference model once and keep what makes its logits.

    The cache takes the hidden size times the bytes of the model's dtype for each scored token, and
    the output head once. If the run ends early, however it does, the same call goes on from the
    units that were finished and comes to the same bytes.

    Args:
        model: folder or hub id.
        data: as for :func:`mixbit.kld.measure`.
        out: the folder to make.
        num_samples, window, score: as for :func:`mixbit.kld.measure`.
        full_windows: leave out what does not fill a window, as llama.cpp does.
        batch_size, chunk_size: as for :func:`mixbit.kld.measure`; a cache cannot go on with others.
        announce: called with the bytes it will take and the folder, before anything is computed.
        progress: called with (scored tokens so far, all of them).

    Raises:
        MixbitError: the model, the data or the folder cannot be used, or the disk is too full.
    """
    out = Path(out)
    refuse_finished(out)
    sizes = Sizes(batch_size, chunk_size)
    folder = resolve(model)
    loaded, tokenizer = open_model(str(model), None)
    protocol = Protocol(window, score, full_windows)
    stream = stream_of_data(data, tokenizer, num_samples, protocol)
    reference = LiveReference(loaded, tokenizer, stream)
    stream.check(reference.vocab_size)
    if reference.head.weight is None:
        raise MixbitError(f"The output head of {model} is no plain matrix, so it cannot be kept.")
    writer = CacheWriter(
        out,
        stream,
        reference.head.weight,
        reference.scorer.probe,
        {
            "model": {"name": folder.name, "sha256": model_hash(folder)},
            "tokenizer_sha256": reference.tokenizer_sha256,
            "vocab_size": reference.vocab_size,
            "sizes": {"batch": sizes.batch, "chunk": sizes.chunk},
        },
    )
    if announce is not None:
        announce(writer.nbytes, out)
    writer.begin()

    def make(index: int, unit: range) -> Iterator[None]:
        if not writer.has(index):
            order, parts = [], []
            for chunk in chunks_of(stream, unit, sizes.batch, sizes.chunk):
                parts.append(reference.hidden(chunk))
                order.append(chunk.rows)
                yield
            # Windows stand in a unit as in the data, and ran longest first.
            inverse = np.argsort(np.concatenate(order))
            writer.put(index, mx.concatenate(parts)[mx.array(inverse)])
        if progress is not None:
            progress(stream.unit_rows(unit).stop, stream.scored)

    ranks().mine(stream.units, make)
    writer.finish()
    return ReferenceCache(out)


def stream_of_data(
    data: Data, tokenizer: Any, num_samples: int | None, protocol: Protocol
) -> Stream:
    """The stream that a data file or lists of tokens make."""
    if num_samples is not None and num_samples < 1:
        raise MixbitError(f"num_samples must be at least 1, not {num_samples}.")
    if not isinstance(data, (str, Path)):
        documents = [Document(list(tokens)) for tokens in data]
    elif tokenizer is None:
        raise MixbitError("A data file needs tokenizer=... when both models are given loaded.")
    else:
        documents = read_documents(Path(data), tokenizer)
    return Stream.of(documents[:num_samples], protocol)


def _refuse_other_protocol(cache: ReferenceCache, asked: Protocol) -> None:
    """Refuse windows and positions that a cache does not have; the usual ones ask for nothing."""
    own, usual = cache.stream.protocol, Protocol()
    if (asked.window, asked.score) not in ((usual.window, usual.score), (own.window, own.score)):
        raise MixbitError(
            f"{cache.folder} was made with window {own.window or 0} and score {own.score!r}, and "
            "is read so; leave both out, or make another reference."
        )


def tokenizer_size(tokenizer: Any) -> int:
    """One more than the tokenizer's highest token id; without a tokenizer there is no limit."""
    if tokenizer is None:
        return int(np.iinfo(np.int32).max)
    return 1 + max(tokenizer.get_vocab().values())
