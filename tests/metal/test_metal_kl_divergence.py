"""metal/kl_divergence.metal: two models' logits over the vocabulary, against fp64 numpy."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from metal_runner import (
    METAL,
    KernelError,
    Mode,
    changed_sources,
    family_library,
    mutate,
    run_plan,
)
from operands import FLOATS, Operand, floats, raw, weight

from kernel_cases import FORMATS
from mixbit.kld.rows import RowScores, merge_tiles
from mixbit.stock import LogitFields

core = importlib.import_module("mixbit._core")

Form = tuple[str, int, int]  # mode, bits, group size
DENSE: Form = ("dense", 0, 0)
INF = float("inf")


@dataclass(frozen=True)
class Head:
    """A head [rows, K] of a format, its dtype, and its bias' dtype."""

    form: Form
    dtype: str
    rows: int
    K: int
    bias: str | None = None

    def operand(self, rng: np.random.Generator) -> tuple[Any, np.ndarray, np.ndarray]:
        """A ``core.Weight``, and in fp64 its values and its bias."""
        w = weight(rng, self.form, self.dtype, self.rows, self.K)
        bias = floats(rng, self.bias, self.rows) if self.bias else Operand([], np.zeros(self.rows))
        mode, bits, group = self.form
        arrays = [array(a, self.dtype) for a in w.buffers]
        packing = {} if mode == "dense" else {"bits": bits, "group_size": group, "mode": mode}
        given = array(bias.buffers[0], self.bias) if self.bias else None
        return core.Weight(*arrays, bias=given, **packing), w.values, bias.values


def array(a: np.ndarray, dtype: str | None) -> mx.array:
    """A buffer as MLX has it."""
    return mx.array(a).view(mx.bfloat16) if dtype == "bfloat16" and a.itemsize == 2 else mx.array(a)


@dataclass(frozen=True)
class Case:
    """Two models' hidden states [T, K] and heads; one head if both share it."""

    T: int
    vocabulary: int
    p: str
    q: str
    heads: tuple[Head, ...]
    size: float = 1.0  # of the hidden states, times the root of K
    apart: float = 0.02

    def arrays(self) -> tuple[list[Any], np.ndarray, np.ndarray]:
        """The operation's arguments, and both models' logits in fp64."""
        rng = np.random.default_rng([self.T, self.vocabulary])
        made = [head.operand(rng) for head in self.heads]
        hidden = []
        for dtype, head in ((self.p, self.heads[0]), (self.q, self.heads[-1])):
            h = floats(rng, dtype, self.T, head.K, scale=self.size / head.K**0.5)
            hidden.append((array(h.buffers[0], dtype), h.values))
        (p, p_values), (q, q_values) = hidden
        if len(made) == 1:  # a candidate that is much like the reference
            q = (p + self.apart * q).astype(FLOATS[self.q])
            q_values = np.array(q.astype(mx.float32), np.float64)
        targets = mx.array(rng.integers(self.vocabulary, size=self.T).astype(np.int32))
        other = made[1][0] if len(made) == 2 else None
        x, y = (
            (h @ w.T + b)[:, : self.vocabulary]
            for h, (_, w, b) in ((p_values, made[0]), (q_values, made[-1]))
        )
        return [p, made[0][0], q, other, targets], x, y

    @property
    def plan(self) -> Any:
        """What the GPU would launch."""
        arguments, _, _ = self.arrays()
        return planned(arguments, self.vocabulary)[0]

    def check(self, **how: Any) -> Any:
        """Run it and compare; the report of the run."""
        arguments, x, y = self.arrays()
        scores, report = run(arguments, self.vocabulary, **how)
        targets = np.array(arguments[4])
        assert_scores(scores, x, y, targets)
        return report


def planned(arguments: list[Any], vocabulary: int) -> tuple[Any, list[mx.array]]:
    """The plan, and the arrays it binds."""
    return core.launches_of(core.kl_divergence(*arguments, vocabulary=vocabulary))


def run(arguments: list[Any], vocabulary: int, **how: Any) -> tuple[RowScores, Any]:
    """What the kernel makes of the operation's arguments, merged, and the report."""
    plan, inputs = planned(arguments, vocabulary)
    (launch,) = plan.launches
    tiles = np.full((len(arguments[0]), launch.threadgroups[1], LogitFields.COUNT), np.nan)
    report = run_plan(plan, [raw(a) for a in inputs], [tiles.astype(np.float32)], **how)
    return merge_tiles(report.outputs[0].astype(np.float64)), report


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def assert_scores(scores: RowScores, x: np.ndarray, y: np.ndarray, targets: np.ndarray) -> None:
    """As the definitions have it."""
    p, q = log_softmax(x), log_softmax(y)
    row = np.arange(len(x))
    for got, want, error in (
        (scores.kld, (np.exp(p) * (p - q)).sum(axis=1), 1e-6),
        (scores.reverse, (np.exp(q) * (q - p)).sum(axis=1), 1e-6),
        (scores.nll_reference, -p[row, targets], 1e-5),
        (scores.nll_candidate, -q[row, targets], 1e-5),
    ):
        np.testing.assert_allclose(got, want, rtol=0, atol=error)
    for tops, logits in ((scores.top_reference, x), (scores.top_candidate, y)):
        five = np.argsort(-logits, axis=1, kind="stable")[:, :5]
        np.testing.assert_array_equal(tops[:, : five.shape[1]], five)
        assert (tops[:, five.shape[1] :] == -1).all()


# Tails of rows, of the vocabulary and of K, spans that end early, padding behind the vocabulary.
CASES = {
    "4 bits against bf16": Case(
        67, 1100, "bfloat16", "bfloat16",
        (Head(DENSE, "bfloat16", 1111, 128), Head(("affine", 4, 64), "bfloat16", 1100, 128)),
    ),
    "3 bits against 8, of another width, with biases": Case(
        3, 77, "float16", "float32",
        (
            Head(("affine", 8, 32), "float32", 80, 96, "float16"),
            Head(("affine", 3, 64), "float16", 77, 192, "bfloat16"),
        ),
        size=0.3,
    ),
    "one head": Case(
        9, 1090, "bfloat16", "float16", (Head(("affine", 6, 32), "bfloat16", 1090, 96, "float32"),)
    ),
    "one dense head of any width": Case(
        5, 70, "float32", "float32", (Head(DENSE, "float32", 71, 77),), apart=0.001
    ),
}  # fmt: skip
PLANS = [case.plan for case in CASES.values()]


@pytest.mark.parametrize("name", CASES)
def test_divergences_are_right(name: str) -> None:
    CASES[name].check(together=PLANS)


@pytest.mark.parametrize("name", ["3 bits against 8, of another width, with biases", "one head"])
def test_nothing_but_right_accesses(name: str) -> None:
    report = CASES[name].check(mode="checked")
    assert [launch.findings for launch in report.launches] == [()]


def test_every_format_of_a_head(long_grid: bool) -> None:
    forms = [*FORMATS, DENSE] if long_grid else [("affine", 5, 32)]
    cases = [
        Case(5, 130, "bfloat16", "bfloat16", heads, size=0.005 if form[0] == "mxfp8" else 0.5)
        for form in forms
        for heads in (
            (Head(DENSE, "float16", 130, 64), Head(form, "float32", 130, 256)),
            (Head(form, "bfloat16", 130, 256),),
        )[: 2 if long_grid else 1]
    ]
    plans = [case.plan for case in cases]
    for case in cases:
        case.check(together=plans)


def test_a_whole_vocabulary(long_grid: bool) -> None:
    vocabulary = 248_320 if long_grid else 9_001
    Case(2, vocabulary, "float32", "float32", (Head(DENSE, "float32", vocabulary, 77),)).check(
        together=PLANS
    )


def test_a_model_against_itself() -> None:
    one_head = CASES["one head"]
    (p, head, _, _, targets), _, _ = one_head.arrays()
    scores, _ = run([p, head, p, None, targets], 1090)
    assert not scores.kld.any()
    two_heads = CASES["one dense head of any width"]
    (p, head, _, _, targets), _, _ = two_heads.arrays()
    assert not run([p, head, p, head, targets], 70)[0].kld.any()


def test_rows_do_not_depend_on_each_other() -> None:
    (p, head, q, other, targets), _, _ = CASES["4 bits against bf16"].arrays()
    whole, _ = run([p, head, q, other, targets], 1100, together=PLANS)
    for begin, end in ((0, 1), (5, 12), (60, 67)):
        rows = slice(begin, end)
        part, _ = run([p[rows], head, q[rows], other, targets[rows]], 1100, together=PLANS)
        for a, b in zip(part, whole.part(rows), strict=True):
            np.testing.assert_array_equal(a, b)


def of_logits(first: list[float], second: list[float]) -> RowScores:
    """Logits that are given, as the biases of heads of nothing."""
    heads = [
        core.Weight(mx.zeros((len(first), 64)), bias=mx.array(logits, dtype=mx.float32))
        for logits in (first, second)
    ]
    hidden = mx.zeros((1, 64))
    target = mx.zeros(1, mx.int32)
    arguments = [hidden, heads[0], hidden, heads[1], target]
    return run(arguments, len(first), mode="checked")[0]


def test_tokens_that_are_ruled_out() -> None:
    assert of_logits([0, 0, -INF], [0, 1, -INF]).kld[0] == pytest.approx(0.1201, abs=1e-4)
    assert of_logits([0, 0, -INF], [0, 0, 0]).kld[0] == pytest.approx(np.log(1.5), abs=1e-7)
    assert of_logits([0, 0, -INF], [0, 0, 0]).reverse[0] == INF
    assert of_logits([0, -200], [0, -INF]).kld[0] == INF  # though exp(-200) underflows
    # In another slice than the likeliest token, and in another span.
    assert of_logits([0, *[-200] * 30], [0, *[-INF] * 30]).kld[0] == INF
    assert of_logits([*[-200] * 30, 0], [*[-INF] * 30, 0]).kld[0] == INF
    far = [0.0] * 1024 + [-INF] * 20
    found = of_logits([*far, 1.0], [*far, 1.0])
    assert found.kld[0] == 0
    assert found.top_reference[0].tolist() == [1044, 0, 1, 2, 3]
    assert np.isnan(of_logits([-INF] * 4, [0.0] * 4).kld[0])


@pytest.mark.parametrize("bad", [float("nan"), INF])
def test_broken_rows_stay_alone(bad: float) -> None:
    case = CASES["one dense head of any width"]
    (p, head, q, _, targets), _, _ = case.arrays()
    broken = np.array(q)
    broken[2, 3] = bad
    found, _ = run([p, head, mx.array(broken), head, targets], 70)
    right, _ = run([p, head, q, head, targets], 70)
    assert np.isnan(found.kld[2])
    keep = np.arange(5) != 2
    np.testing.assert_array_equal(found.kld[keep], right.kld[keep])


def test_a_long_flat_span_rounds_little() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(1024).astype(np.float32) * size for size in (0.5, 0.5001))
    found = of_logits(x.tolist(), y.tolist())
    assert_scores(found, x[None].astype(float), y[None].astype(float), np.array([0]))


def test_order_of_threads_does_not_matter() -> None:
    case = CASES["one head"]
    arguments, _, _ = case.arrays()
    first, *others = (
        run(arguments, case.vocabulary, together=PLANS, order=order, seed=seed)[0]
        for order, seed in (("forward", 0), ("backward", 0), ("shuffled", 1))
    )
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_address_spaces() -> None:
    lines = tuple(plan.launches[0].instantiation for plan in PLANS)
    assert family_library("kl_divergence", lines).address_space_errors() == []


BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
KERNEL, SIDE = "kl_divergence.metal", "logit_side.h"
MUTATIONS = {
    "no barrier before a slice is read": (KERNEL, f"{BARRIER}\n      if (busy &&", "if (busy &&"),
    "no barrier after it": (KERNEL, f"{BARRIER}\n    }}\n  }}", "}\n  }"),
    "padding takes part": (KERNEL, "Span, params.vocabulary);", "Span, params.vocabulary + 1);"),
    "sides swapped": (KERNEL, "(is_q ? slices.q", "(!is_q ? slices.q"),
    "the wrong lane": (KERNEL, "f + at.column + c;", "f + at.column + 1 - c;"),
    "costs are not rescaled": (SIDE, "cost.scale(factor);", ""),
    "equal logits swap places": (SIDE, "if (x > top[i])", "if (x >= top[i])"),
}
DIFFERENCE = (KERNEL, "x - second", "x + second")


def halves(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Few values, whose sums of products are exact, so that logits are often equal."""
    return (rng.integers(-1, 2, shape) * 0.5).astype(np.float32)


def pair(rng: np.random.Generator, *shape: int) -> list[np.ndarray]:
    """Two arrays that differ in one value of 32."""
    first = halves(rng, *shape)
    return [first, np.where(rng.random(shape) < 1 / 32, halves(rng, *shape), first)]


def check_everything(mode: Mode, folder: Path = METAL) -> None:
    """One short case that holds every part of the kernel to account."""
    rng = np.random.default_rng(0)
    hidden = [halves(rng, 3, 64)] * 2
    heads, biases = pair(rng, 1031, 64), pair(rng, 1031)
    targets = np.array([7, 1029, 1023])
    p, q = (core.Weight(mx.array(w), bias=mx.array(b)) for w, b in zip(heads, biases, strict=True))
    arguments = [mx.array(hidden[0]), p, mx.array(hidden[1]), q, mx.array(targets)]
    scores, _ = run(arguments, 1030, mode=mode, folder=folder)
    x, y = (
        (h @ w.T + b)[:, :1030].astype(np.float64)
        for h, w, b in zip(hidden, heads, biases, strict=True)
    )
    assert_scores(scores, x, y, targets)


def test_nothing_planted_passes() -> None:
    check_everything("checked")


@pytest.mark.parametrize("name", MUTATIONS)
def test_faults_are_noticed(name: str) -> None:
    file, old, new = MUTATIONS[name]
    folder = changed_sources({file: mutate((METAL / file).read_text(), old, new)})
    with pytest.raises((AssertionError, KernelError)):
        check_everything("checked" if "barrier" in name else "fast", folder)


def test_a_wrong_difference_is_noticed() -> None:
    file, old, new = DIFFERENCE
    folder = changed_sources({file: mutate((METAL / file).read_text(), old, new)})
    with pytest.raises(AssertionError):
        CASES["one head"].check(folder=folder)
