"""The measurement: two models side by side over the same held-out text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.nn as nn
import numpy as np
import numpy.typing as npt

from mixbit.errors import MixbitError
from mixbit.integration import load
from mixbit.kld.batches import Chunk, make_batches, make_chunks
from mixbit.kld.documents import check_documents, read_documents
from mixbit.kld.logits import Scorer
from mixbit.kld.result import KLDResult
from mixbit.kld.rows import score_rows

Model = str | Path | nn.Module
Progress = Callable[[int, int], None]


def measure(
    model: Model,
    reference: Model,
    data: str | Path | Sequence[Sequence[int]],
    *,
    tokenizer: Any = None,
    num_samples: int | None = None,
    batch_size: int = 8,
    chunk_size: int = 512,
    block_size: int = 128,
    progress: Progress | None = None,
) -> KLDResult:
    """Exact KL(reference || model) over the full vocabulary, token by token.

    Logits are computed in fp32 from each model's own final hidden states, a block of rows at a
    time, and everything after them is fp64, so that the block size changes nothing. Batch and
    chunk size change no more than the rounding inside a model whose activations have 16 bits.
    Documents never see each other and padding is never scored.

    The softmax runs over the tokens that both heads and the tokenizer know: rows that only pad the
    vocabulary take no part.

    Args:
        model: the candidate: a folder, a hub id or a loaded mlx-lm model.
        reference: what it is held against, likewise.
        data: a JSONL file of conversations or text, or documents as lists of token ids.
        tokenizer: needed for a data file when both models are given loaded; otherwise it comes
            with the model.
        num_samples: use only the first so many documents.
        batch_size: documents run together.
        chunk_size: tokens of each document run at a time (the rest follows through the cache).
        block_size: rows of logits held at a time, per model.
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
        batch_size=batch_size,
        chunk_size=chunk_size,
        block_size=block_size,
        progress=progress,
    )
    return result


def measure_many(
    models: Sequence[Model],
    reference: Model,
    data: str | Path | Sequence[Sequence[int]],
    *,
    tokenizer: Any = None,
    num_samples: int | None = None,
    batch_size: int = 8,
    chunk_size: int = 512,
    block_size: int = 128,
    progress: Progress | None = None,
) -> list[KLDResult]:
    """:func:`measure` for several candidates, all in memory, with one run of the reference."""
    _check_positive(
        batch_size=batch_size,
        chunk_size=chunk_size,
        block_size=block_size,
        num_samples=1 if num_samples is None else num_samples,
    )
    opened = [_open(model, tokenizer) for model in models]
    reference_model, reference_tokenizer = _open(reference, tokenizer)
    known = _common_tokenizer([own for _, own in opened], reference_tokenizer)
    documents = _documents(data, known)[:num_samples]
    candidates, base = [Scorer(model) for model, _ in opened], Scorer(reference_model)
    heads = min(scorer.vocab_size() for scorer in (base, *candidates))
    vocab_size = min(heads, _tokenizer_size(known))
    check_documents(documents, vocab_size)
    offsets = np.cumsum([0, *(max(len(document) - 1, 0) for document in documents)])
    results = [_empty_result(offsets, vocab_size) for _ in candidates]
    done = 0
    for batch in make_batches(documents, batch_size):
        for scorer in (base, *candidates):
            scorer.start()
        for chunk in make_chunks(batch, chunk_size):
            at = offsets[chunk.documents] + chunk.positions
            _score_chunk(candidates, base, chunk, block_size, at, results)
            done += len(at)
            if progress is not None:
                progress(done, int(offsets[-1]))
    return results


def _score_chunk(
    candidates: Sequence[Scorer],
    base: Scorer,
    chunk: Chunk,
    block_size: int,
    at: npt.NDArray[np.int64],
    results: Sequence[KLDResult],
) -> None:
    """Score a chunk under every candidate and put the rows ``at`` their places in the results."""
    base_hidden = base.hidden(chunk.tokens, chunk.flat)
    hidden = [candidate.hidden(chunk.tokens, chunk.flat) for candidate in candidates]
    for begin in range(0, len(at), block_size):
        rows = slice(begin, begin + block_size)
        base_logits = base.logits(base_hidden[rows], results[0].vocab_size)
        for candidate, states, result in zip(candidates, hidden, results, strict=True):
            logits = candidate.logits(states[rows], result.vocab_size)
            scores = score_rows(base_logits, logits, chunk.targets[rows])
            result.kld[at[rows]] = scores.kld
            result.nll_reference[at[rows]] = scores.nll_reference
            result.nll_candidate[at[rows]] = scores.nll_candidate
            result.top1[at[rows]] = scores.top1


def _empty_result(offsets: npt.NDArray[np.int64], vocab_size: int) -> KLDResult:
    tokens = int(offsets[-1])
    return KLDResult(
        kld=np.full(tokens, np.nan),
        nll_reference=np.full(tokens, np.nan),
        nll_candidate=np.full(tokens, np.nan),
        top1=np.zeros(tokens, dtype=np.bool_),
        document=np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)),
        vocab_size=vocab_size,
    )


def _check_positive(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise MixbitError(f"{name} must be at least 1, not {value}.")


def _open(model: Model, tokenizer: Any) -> tuple[nn.Module, Any]:
    if isinstance(model, nn.Module):
        return model, tokenizer
    loaded, own_tokenizer = load(str(model))
    return loaded, own_tokenizer


def _common_tokenizer(candidates: Sequence[Any], reference: Any) -> Any:
    """The one tokenizer of all models, or None if every one came without."""
    distinct = {id(own): own for own in (reference, *candidates) if own is not None}
    if not distinct:
        return None
    first, *others = distinct.values()
    if any(other.get_vocab() != first.get_vocab() for other in others):
        raise MixbitError(
            "The models have different tokenizers; a divergence needs one vocabulary."
        )
    return first


def _tokenizer_size(tokenizer: Any) -> int:
    """One more than the tokenizer's highest token id; without a tokenizer there is no limit."""
    if tokenizer is None:
        return int(np.iinfo(np.int32).max)
    return 1 + max(tokenizer.get_vocab().values())


def _documents(
    data: str | Path | Sequence[Sequence[int]], tokenizer: Any
) -> Sequence[Sequence[int]]:
    if not isinstance(data, (str, Path)):
        return data
    if tokenizer is None:
        raise MixbitError("A data file needs tokenizer=... when both models are given loaded.")
    return read_documents(Path(data), tokenizer)
