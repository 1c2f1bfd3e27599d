"""Prefill and decode speed of mixbit and of stock mlx-lm, measured alternately.

The two take turns, and who goes first changes every trial, so that a machine that slows down or
speeds up meanwhile does so for both. Figures are medians over the trials; every sample is kept.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
from mlx_lm.generate import generate_step, generation_stream

from mixbit.errors import MixbitError
from mixbit.integration import load, resolve

SCHEMA = "mixbit.bench/1"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Sample:
    """One timed generation."""

    prefill: float
    """Prompt tokens a second, up to the first generated token."""
    decode: float
    """Generated tokens a second after the first."""


@dataclass(frozen=True)
class Engine:
    """All samples of one engine and their medians, in tokens a second."""

    samples: tuple[Sample, ...]

    @property
    def prefill(self) -> float:
        """Median prefill speed."""
        return statistics.median(sample.prefill for sample in self.samples)

    @property
    def decode(self) -> float:
        """Median decode speed."""
        return statistics.median(sample.decode for sample in self.samples)


@dataclass(frozen=True)
class BenchResult:
    """mixbit and stock mlx-lm on one checkpoint."""

    model: str
    prompt_tokens: int
    generation_tokens: int
    stock_dtype: str | None
    """What stock mlx-lm's activations were cast to, or ``None`` for the checkpoint's dtype."""
    activation_bits: int
    """What mixbit's packed layers round activations to, as :func:`mixbit.load` has it."""
    mixbit: Engine
    stock: Engine

    def to_json(self) -> dict[str, Any]:
        """Medians, ratios and samples; speeds in tokens a second."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "prompt_tokens": self.prompt_tokens,
            "generation_tokens": self.generation_tokens,
            "stock_dtype": self.stock_dtype,
            "activation_bits": self.activation_bits,
            "trials": len(self.mixbit.samples),
            "mixbit": _engine_json(self.mixbit),
            "stock": _engine_json(self.stock),
            "prefill_ratio": self.mixbit.prefill / self.stock.prefill,
            "decode_ratio": self.mixbit.decode / self.stock.decode,
        }


def compare(
    model: str | Path,
    *,
    prompt_tokens: int = 128,
    generation_tokens: int = 32,
    num_trials: int = 3,
    prefill_step_size: int = 2048,
    stock_float32: bool = False,
    activation_bits: int = 16,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> BenchResult:
    """Load a checkpoint twice, with mixbit and with stock mlx-lm, and time both.

    The prompt is random tokens of the model's vocabulary, the same for both; generation is greedy,
    for exactly ``generation_tokens`` tokens, through mlx-lm's own loop.

    Args:
        model: folder or hub id.
        prompt_tokens: prompt length, at least 1.
        generation_tokens: tokens to generate, at least 2 (decoding is timed from the first one on).
        num_trials: timed runs of each engine, after one short untimed run of each.
        prefill_step_size: prompt tokens processed at a time.
        stock_float32: give stock mlx-lm float32 activations: all floating parameters are cast, also
            scales. On a CPU MLX's packed products are several times faster so than in 16 bits.
        activation_bits: mixbit's, as :func:`mixbit.load` takes them.
        trust_remote_code: passed on to the loader.
        progress: called with (runs done, all runs).

    Raises:
        MixbitError: an argument is out of range, or the model cannot be loaded.
    """
    _check_at_least(1, prompt_tokens=prompt_tokens, num_trials=num_trials)
    _check_at_least(1, prefill_step_size=prefill_step_size)
    _check_at_least(2, generation_tokens=generation_tokens)
    fast, tokenizer = load(
        str(model), trust_remote_code=trust_remote_code, activation_bits=activation_bits
    )
    stock, *_ = mlx_lm.load(str(resolve(model)), trust_remote_code=trust_remote_code)
    if stock_float32:
        stock.set_dtype(mx.float32)
    vocab_size = len(tokenizer.get_vocab())
    prompt = mx.array(np.random.default_rng(0).integers(vocab_size, size=prompt_tokens))
    engines = alternate(
        {"mixbit": fast, "stock": stock},
        prompt,
        generation_tokens,
        num_trials,
        prefill_step_size=prefill_step_size,
        progress=progress,
    )
    return BenchResult(
        str(model),
        prompt_tokens,
        generation_tokens,
        "float32" if stock_float32 else None,
        activation_bits,
        engines["mixbit"],
        engines["stock"],
    )


def alternate(
    models: Mapping[str, nn.Module],
    prompt: mx.array,
    generation_tokens: int,
    num_trials: int,
    *,
    prefill_step_size: int = 2048,
    progress: Progress | None = None,
) -> dict[str, Engine]:
    """Time several loaded models in turns, each trial in the opposite order of the one before.

    Args:
        models: by name.
        prompt: token ids ``[T]``.
        generation_tokens: tokens to generate, at least 2.
        num_trials: timed runs of each model.
        prefill_step_size: prompt tokens processed at a time.
        progress: called with (runs done, all runs).
    """
    for model in models.values():
        _run(model, prompt[:4], 2, prefill_step_size)
    samples: dict[str, list[Sample]] = {name: [] for name in models}
    names, done = list(models), 0
    for _ in range(num_trials):
        for name in names:
            samples[name].append(_run(models[name], prompt, generation_tokens, prefill_step_size))
            done += 1
            if progress is not None:
                progress(done, num_trials * len(models))
        names.reverse()
    return {name: Engine(tuple(taken)) for name, taken in samples.items()}


def _run(
    model: nn.Module, prompt: mx.array, generation_tokens: int, prefill_step_size: int
) -> Sample:
    steps = generate_step(
        prompt, model, max_tokens=generation_tokens, prefill_step_size=prefill_step_size
    )
    begin = time.perf_counter()
    next(steps)
    first = time.perf_counter()
    generated = sum(1 for _ in steps)
    end = time.perf_counter()
    # mlx-lm starts one step more than it gives out, which must not run on into the next timing.
    mx.synchronize(generation_stream)
    return Sample(prompt.size / (first - begin), generated / (end - first))


def _engine_json(engine: Engine) -> dict[str, Any]:
    return {
        "prefill_tokens_per_second": engine.prefill,
        "decode_tokens_per_second": engine.decode,
        "samples": [asdict(sample) for sample in engine.samples],
    }


def _check_at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise MixbitError(f"{name} must be at least {least}, not {value}.")
