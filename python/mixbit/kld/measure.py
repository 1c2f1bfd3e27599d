"""The measurement: models side by side over the same held-out text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.nn as nn

from mixbit.errors import MixbitError
from mixbit.integration import resolve
from mixbit.kld.cache import ReferenceCache
from mixbit.kld.identity import model_hash
from mixbit.kld.llama_cpp import LlamaCppPair
from mixbit.kld.memory import fitted
from mixbit.kld.ranks import ranks
from mixbit.kld.reference import (
    Data,
    LiveReference,
    Model,
    Progress,
    Reference,
    open_model,
    open_reference,
)
from mixbit.kld.result import KLDResult
from mixbit.kld.rows import RowScores
from mixbit.kld.saved import ScoreFolder
from mixbit.kld.scorer import HeadPair, Pair, Scorer
from mixbit.kld.sizes import Sizes
from mixbit.kld.stream import Protocol
from mixbit.kld.windows import Chunk, chunks_of


def measure(
    model: Model,
    reference: Model,
    data: Data | None = None,
    *,
    tokenizer: Any = None,
    num_samples: int | None = None,
    window: int | None = 512,
    score: str = "half",
    batch_size: int = 8,
    chunk_size: int = 512,
    block_size: int = 128,
    memory: float | None = None,
    llama_cpp: bool = False,
    keep: str | Path | None = None,
    progress: Progress | None = None,
) -> KLDResult:
    """Exact KL(reference || model) over the full vocabulary, token by token.

    Logits come from fp32 sums over each model's own final hidden states and are never stored;
    everything after them is fp64, so that the block size changes nothing. On a CPU batch and chunk
    size change nothing either; on a GPU no more than the rounding of products of many rows.
    Documents never see each other and padding is never scored.

    The softmax runs over the tokens that both heads and the tokenizer know: rows that only pad the
    vocabulary take no part.

    Args:
        model: the candidate: a folder, a hub id or a loaded mlx-lm model.
        reference: what it is held against, likewise, or the folder of a cache that
            :func:`mixbit.kld.make_reference` made.
        data: a data file (see :func:`mixbit.kld.documents.read_documents`), or documents as lists
            of token ids; none with a cache, which holds its own.
        tokenizer: needed for a data file when both models are given loaded; otherwise it comes
            with the model.
        num_samples: use only the first so many documents.
        window: tokens of the windows that documents are cut into, each from an empty context;
            ``None`` for whole documents. A cache has its own protocol.
        score: ``"half"`` counts the predictions in the second half of each window, ``"all"`` all.
        batch_size: windows run together.
        chunk_size: tokens of each window run at a time (the rest follows through the cache).
        block_size: hidden states that meet the heads at a time.
        memory: GB that the run may take, models included; the batch is made as small as that asks.
        llama_cpp: give llama.cpp's numbers, in full windows only and with what its 16-bit storage
            does to them (see :mod:`mixbit.kld.llama_cpp`), instead of exact ones.
        keep: a folder to keep results in, unit by unit: if the run ends early, the same call goes
            on from there. Only for models that are folders.
        progress: called with (scored tokens so far, all of them); what it raises ends the work.

    Raises:
        MixbitError: the data cannot be used, or the models do not share a vocabulary.
    """
    (result,) = measure_many(
        [model],
        reference,
        data,
        tokenizer=tokenizer,
        num_samples=num_samples,
        window=window,
        score=score,
        batch_size=batch_size,
        chunk_size=chunk_size,
        block_size=block_size,
        memory=memory,
        llama_cpp=llama_cpp,
        keep=keep,
        progress=progress,
    )
    return result


def measure_many(
    models: Sequence[Model],
    reference: Model,
    data: Data | None = None,
    *,
    tokenizer: Any = None,
    num_samples: int | None = None,
    window: int | None = 512,
    score: str = "half",
    batch_size: int = 8,
    chunk_size: int = 512,
    block_size: int = 128,
    memory: float | None = None,
    llama_cpp: bool = False,
    keep: str | Path | None = None,
    progress: Progress | None = None,
) -> list[KLDResult]:
    """:func:`measure` for several candidates, all in memory, with one run of the reference."""
    sizes = Sizes(batch_size, chunk_size, block_size)
    opened = [open_model(model, tokenizer) for model in models]
    if tokenizer is None:
        tokenizer = next((own for _, own in opened if own is not None), None)
    protocol = Protocol(window, score, full_windows=llama_cpp)
    base = open_reference(reference, data, tokenizer, num_samples, protocol)
    if llama_cpp and not base.stream.protocol.full_windows:
        raise MixbitError(f"{reference} was not made with --llama-cpp; its windows are others.")
    base.check_tokenizers([own for _, own in opened])
    candidates = [Scorer(model) for model, _ in opened]
    known = base.head.rows if llama_cpp else base.vocab_size
    vocab_size = min(known, *(candidate.head.rows for candidate in candidates))
    base.stream.check(vocab_size)
    pair = LlamaCppPair if llama_cpp else HeadPair
    pairs = [pair(base.head, candidate.head, vocab_size) for candidate in candidates]
    mode = "llama.cpp" if llama_cpp else "exact"
    kept = None if keep is None else _folder(Path(keep), models, reference, base, vocab_size, mode)
    running = [*candidates, base.scorer] if isinstance(base, LiveReference) else candidates
    with fitted(memory, running, base.stream, sizes) as fitting:
        results = score_stream(candidates, pairs, base, fitting, kept, progress)
    return [KLDResult.of(scores, base.stream, vocab_size) for scores in results]


def score_stream(
    candidates: Sequence[Scorer],
    pairs: Sequence[Pair],
    base: Reference,
    sizes: Sizes,
    kept: ScoreFolder | None,
    progress: Progress | None,
) -> list[RowScores]:
    """Scores of every scored token of the reference's stream, for each candidate.

    Units that ``kept`` has are not scored again, and the others are put there.
    """
    stream = base.stream
    results = [RowScores.empty(stream.scored) for _ in candidates]
    done = 0

    def score(index: int, unit: range) -> Iterator[None]:
        nonlocal done
        rows = stream.unit_rows(unit)
        finished = None if kept is None else kept.get(index)
        if finished is not None:
            for result, scores in zip(results, finished, strict=True):
                result.put(rows, scores)
            done += rows.stop - rows.start
            return
        base.open_unit(index)
        for chunk in chunks_of(stream, unit, sizes.batch, sizes.chunk):
            _score_chunk(candidates, pairs, base, chunk, sizes.block, results)
            done += len(chunk.rows)
            if progress is not None:
                progress(min(done * ranks().count, stream.scored), stream.scored)
            yield
        if kept is not None:
            kept.put(index, [result.part(rows) for result in results])

    ranks().mine(stream.units, score)
    return [result.map(ranks().add) for result in results]


def _score_chunk(
    candidates: Sequence[Scorer],
    pairs: Sequence[Pair],
    base: Reference,
    chunk: Chunk,
    block: int,
    results: Sequence[RowScores],
) -> None:
    expected = base.hidden(chunk)
    for candidate, pair, result in zip(candidates, pairs, results, strict=True):
        hidden = candidate.hidden(chunk)
        for begin in range(0, len(chunk.rows), block):
            rows = slice(begin, begin + block)
            scores = pair.score(expected[rows], hidden[rows], chunk.targets[rows])
            result.put(chunk.rows[rows], scores)


def _folder(
    folder: Path,
    models: Sequence[Model],
    reference: Model,
    base: Reference,
    vocab_size: int,
    mode: str,
) -> ScoreFolder:
    """The folder that keeps the results of these models."""
    if any(isinstance(model, nn.Module) for model in (*models, reference)):
        raise MixbitError("Results can be kept of models that are folders, not of loaded ones.")
    identity = (
        base.manifest["model"]
        if isinstance(base, ReferenceCache)
        else {"name": Path(str(reference)).name, "sha256": model_hash(resolve(str(reference)))}
    )
    paths = [resolve(str(model)) for model in models]
    return ScoreFolder(
        folder, paths, identity, base.tokenizer_sha256, base.stream, vocab_size, mode
    )
