"""Running the demo. Every figure is measured in the run that prints it."""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm

from mixbit.bench import Engine, alternate
from mixbit.checkpoint import open_checkpoint
from mixbit.data import tiny_data, tiny_model
from mixbit.demo.background import in_background
from mixbit.demo.result import Answer, DemoResult, DemoRow
from mixbit.demo.toolcalls import (
    ToolCase,
    encode,
    load_cases,
    parse_call,
    same_call,
    score_one_pass,
)
from mixbit.errors import MixbitError
from mixbit.integration import load
from mixbit.kld import KLDResult, measure_many
from mixbit.quantization import quantize

REFERENCE = "bf16"
RECIPES = ("uniform-3", "uniform-4", "unsloth-2026-03@3", "unsloth-2026-03@4")
# The checkpoint whose generated answer is shown.
SHOWN = "unsloth-2026-03@4"

# As much as two cores do in a good half minute; the two run side by side and take about as long.
DOCUMENTS = 28
CASES = 44
TIMED_RUNS = 3

# Small, so that an interrupt is heard soon: MLX does not listen while it computes.
_BATCH = 4

# Short, because stock MLX on a CPU sets the pace of the timed runs.
_SPEED_PROMPT_TOKENS = 4
_SPEED_TOKENS = 12
_ANSWER_TOKENS = 128

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class _Loaded:
    """One checkpoint, ready to be measured."""

    name: str
    folder: Path
    model: nn.Module


def run(
    mlx_path: str | Path | None = None,
    *,
    documents: int = DOCUMENTS,
    cases: int = CASES,
    timed_runs: int = TIMED_RUNS,
    progress: Progress | None = None,
) -> DemoResult:
    """Quantise the shipped tiny model by every recipe and measure each result against bf16.

    Args:
        mlx_path: folder to leave the checkpoints in; by default they are removed at the end.
        documents: measure KLD on the first so many of the 60 held-out documents.
        cases: score the first so many of the 200 tool-call prompts.
        timed_runs: timed generations of each checkpoint, with mixbit and with stock mlx-lm each.
        progress: called with (steps done, all steps, present step).

    Raises:
        MixbitError: ``mlx_path`` exists, or its parent does not.
    """
    begin = time.perf_counter()
    target = None if mlx_path is None else _check_target(Path(mlx_path))
    report = _steps(progress, 3 * len(RECIPES) + 3)
    prompts = load_cases(tiny_data("tool_eval"))[:cases]
    with tempfile.TemporaryDirectory(
        prefix=".mixbit-demo-", dir=None if target is None else target.parent
    ) as temporary:
        work = Path(temporary) / "checkpoints"
        work.mkdir()
        folders = {REFERENCE: tiny_model()}
        for recipe in RECIPES:
            report(f"quantising: {recipe}")
            folders[recipe] = work / recipe
            quantize(tiny_model(), folders[recipe], plan=recipe)
        reference, tokenizer = load(str(tiny_model()))
        loaded = [_Loaded(n, folder, load(str(folder))[0]) for n, folder in folders.items()]
        divergence, calls = _quality(loaded, reference, tokenizer, documents, prompts, report)
        rows = []
        for entry, kld, right in zip(loaded, divergence, calls, strict=True):
            report(f"timing: {entry.name}")
            speed = _speed(entry, encode(prompts[0], tokenizer)[0], timed_runs)
            rows.append(_row(entry, kld, right, speed))
        shown = next(entry for entry in loaded if entry.name == SHOWN)
        answer = _answer(shown, tokenizer, prompts[0])
        if target is not None:
            work.rename(target)
    return DemoResult(
        seconds=time.perf_counter() - begin,
        kld_tokens=len(divergence[0].kld),
        kld_documents=documents,
        generated_tokens=_SPEED_TOKENS,
        timed_runs=timed_runs,
        rows=tuple(rows),
        answer=answer,
    )


def _steps(progress: Progress | None, total: int) -> Callable[[str], None]:
    """A counter: each call begins the next of ``total`` steps."""
    done = itertools.count()

    def begin(step: str) -> None:
        if progress is not None:
            progress(next(done), total, step)

    return begin


def _check_target(target: Path) -> Path:
    if target.exists():
        raise MixbitError(f"{target} exists already; name a new folder.")
    if not target.absolute().parent.is_dir():
        raise MixbitError(f"{target} lies in a folder that does not exist.")
    return target.absolute()


def _quality(
    loaded: Sequence[_Loaded],
    reference: nn.Module,
    tokenizer: Any,
    documents: int,
    prompts: Sequence[ToolCase],
    report: Callable[[str], None],
) -> tuple[list[KLDResult], list[list[bool]]]:
    """Divergence and tool calls of every checkpoint, the two side by side."""

    def divergence(progress: Callable[[int, int], None]) -> list[KLDResult]:
        return measure_many(
            [entry.model for entry in loaded],
            reference,
            tiny_data("kld_eval"),
            tokenizer=tokenizer,
            num_samples=documents,
            window=None,
            score="all",
            batch_size=_BATCH,
            chunk_size=128,
            progress=progress,
        )

    with in_background(divergence) as wait:
        calls = []
        for entry in loaded:
            report(f"tool calls: {entry.name}")
            calls.append(_calls(entry.model, tokenizer, prompts))
        report("KL divergence")
        return wait(), calls


def _calls(model: nn.Module, tokenizer: Any, prompts: Sequence[ToolCase]) -> list[bool]:
    return [
        right
        for begin in range(0, len(prompts), _BATCH)
        for right in score_one_pass(model, tokenizer, prompts[begin : begin + _BATCH])
    ]


def _speed(entry: _Loaded, prompt: list[int], timed_runs: int) -> dict[str, Engine]:
    stock, *_ = mlx_lm.load(str(entry.folder))
    return alternate(
        {"mixbit": entry.model, "stock": stock},
        mx.array(prompt[:_SPEED_PROMPT_TOKENS]),
        _SPEED_TOKENS,
        timed_runs,
    )


def _row(entry: _Loaded, kld: KLDResult, right: list[bool], speed: dict[str, Engine]) -> DemoRow:
    size, bpw = _size(entry.folder)
    summary = kld.summary()
    return DemoRow(
        name=entry.name,
        bpw=bpw,
        bytes=size,
        kld_mean=summary["mean"],
        kld_se=summary["se"],
        kld_p999=summary["p999"],
        top1=summary["top1"],
        tool_calls_right=sum(right),
        tool_calls_total=len(right),
        tokens_per_second=speed["mixbit"].decode,
        stock_tokens_per_second=speed["stock"].decode,
    )


def _answer(entry: _Loaded, tokenizer: Any, case: ToolCase) -> Answer:
    prompt, _ = encode(case, tokenizer)
    text = mlx_lm.generate(entry.model, tokenizer, prompt, max_tokens=_ANSWER_TOKENS)
    return Answer(
        model=entry.name,
        request=str(case.messages[-1]["content"]),
        expected=dict(case.expected),
        text=text,
        right=same_call(parse_call(text), case.expected),
    )


def _size(folder: Path) -> tuple[int, float]:
    """Bytes of all tensors, and the same in bits per weight of the unquantised model."""
    size = sum(tensor.nbytes for tensor in open_checkpoint(folder).tensors.values())
    original = open_checkpoint(tiny_model()).tensors.values()
    return size, 8 * size / sum(math.prod(tensor.shape) for tensor in original)
