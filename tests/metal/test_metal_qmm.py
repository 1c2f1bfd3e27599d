"""metal/qmm.metal: products of many rows, against fp64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from metal_runner import (
    METAL,
    KernelError,
    changed_sources,
    family_library,
    mutate,
    run_plan,
    stock,
)
from operands import FLOATS, empty, floats, weight
from product_cases import DENSE, Case, single

from kernel_cases import FORMATS

TYPES = tuple(FLOATS)


def cases(long: bool) -> list[Case]:
    """Every format; shapes with tails in every direction and more than one step of 64 along K."""
    if long:
        grid = itertools.product(
            FORMATS, TYPES, (33, 64, 70), (64, 96, 128, 512, 896, 1536, 4864), (1, 4, 7, 8, 16, 33)
        )
        return [single(f, x, M, K, N) for f, x, M, K, N in grid if K % f[2] == 0]
    # K ends in a whole step, half a one, and for nvfp4 a quarter.
    steps = {16: 80, 32: 160, 64: 192, 128: 256}
    rows, columns = itertools.cycle((33, 41, 64, 70, 129)), itertools.cycle((1, 7, 17, 66))
    types = itertools.cycle(TYPES)
    return [single(f, next(types), next(rows), steps[f[2]], next(columns)) for f in FORMATS]


def dense_cases(long: bool) -> list[Case]:
    """Dense weights have any K."""
    lengths = (1, 7, 64, 65, 96, 515, 1030) if long else (7, 72, 131)
    return [single(DENSE, x, 35, K, 13) for x in TYPES for K in lengths]


FUSED = {
    "five parts": Case(
        37, 192, "bfloat16",
        (
            (("affine", 2, 64), "bfloat16", 66, "bfloat16", None),
            (("affine", 8, 32), "float32", 5, "float32", "float16"),
            (DENSE, "bfloat16", 3, "float32", None),
            (("mxfp4", 4, 32), "float32", 65, "float16", "bfloat16"),
            (("affine", 2, 64), "bfloat16", 64, "bfloat16", "float32"),
        ),
        norm="float32",
    ),
    "norm and residual": Case(
        70, 160, "float16", ((("affine", 3, 32), "float16", 19, "float16", "float16"),),
        norm="float16", residual="float16",
    ),
    "ragged norm": Case(
        34, 101, "float32", ((DENSE, "float16", 18, "float32", None),),
        norm="bfloat16", residual="float32",
    ),
    "swiglu": Case(
        66, 192, "bfloat16",
        (
            (("affine", 5, 64), "bfloat16", 37, "bfloat16", None),
            (("affine", 5, 64), "bfloat16", 37, "bfloat16", None),
        ),
        swiglu=True, norm="bfloat16",
    ),
    "swiglu of two formats": Case(
        40, 96, "float16",
        (
            (("affine", 6, 32), "float16", 33, "float16", "float16"),
            (("mxfp8", 8, 32), "float16", 33, "float16", "float32"),
        ),
        swiglu=True, residual="float32",
    ),
}  # fmt: skip


@pytest.fixture(scope="session")
def sweep(long_grid: bool) -> list[Case]:
    return cases(long_grid) + dense_cases(long_grid)


def test_products_are_right(sweep: list[Case]) -> None:
    plans = [case.plan for case in sweep]
    for case in sweep:
        case.check(together=plans)


@pytest.mark.parametrize("name", FUSED)
def test_fused_products_are_right(name: str) -> None:
    FUSED[name].check(together=[case.plan for case in FUSED.values()])


@pytest.mark.parametrize("name", FUSED)
def test_nothing_but_right_accesses(name: str) -> None:
    report = FUSED[name].check(mode="checked", together=[case.plan for case in FUSED.values()])
    assert [launch.findings for launch in report.launches] == [()]


def test_order_of_threads_does_not_matter() -> None:
    case = FUSED["norm and residual"]
    buffers, _ = case.operands()
    first, *others = (
        run_plan(case.plan, buffers, case.outputs(), order=order, seed=seed).outputs[0]
        for order, seed in (("forward", 0), ("backward", 0), ("shuffled", 1), ("shuffled", 2))
    )
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_address_spaces() -> None:
    lines = tuple(case.plan.launches[0].instantiation for case in FUSED.values())
    assert family_library("qmm", lines).address_space_errors() == []


def test_asks_for_no_more_than_stock(long_grid: bool) -> None:
    """Bytes, matrix products and issue slots against MLX's ``affine_qmm_t``."""
    for bits in (2, 3, 4, 5, 6, 8) if long_grid else (4, 5):
        compare_with_stock(bits)


def compare_with_stock(bits: int) -> None:
    """One width at tiles that are full and such that are not."""
    form = ("affine", bits, 64)
    shapes = ((64, 64, 128), (33, 33, 128), (65, 70, 64))
    plans = [single(form, "bfloat16", M, K, N).plan for M, N, K in shapes]
    for (M, N, K), plan in zip(shapes, plans, strict=True):
        rng = np.random.default_rng(bits)
        x, w = floats(rng, "bfloat16", M, K), weight(rng, form, "bfloat16", N, K)
        report = run_plan(
            plan,
            [*x.buffers, *w.buffers],
            [empty("bfloat16", M, N)],
            mode="counted",
            together=plans,
        )
        ours = report.launches[0].counters
        theirs = stock.matmul(
            "qmm_t", x.buffers[0], *w.buffers, element="bfloat", bits=bits, group=64, mode="counted"
        ).counters
        assert ours.bytes_loaded + ours.bytes_stored < theirs.bytes_loaded + theirs.bytes_stored
        assert ours.count("simd.mma") <= theirs.count("simd.mma")
        assert ours.issue_cost < theirs.issue_cost


BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
MUTATIONS = {
    "no barrier before the tile is filled": (f"    {BARRIER}\n    loader.fill", "    loader.fill"),
    "no barrier after it": (f"{BARRIER}\n    if (!busy)", "if (!busy)"),
    "no barrier before the factors are read": (f"{BARRIER}\n  }}\n  UNROLL", "}\n  UNROLL"),
    "the next row of weights": ("(p.a, busy ? first : 0,", "(p.a, busy ? first + 1 : 1,"),
    "rows past the end are read": ("min(short(at.column + i), last)", "short(at.column + i)"),
    "a step too few": ("k0 < p.K;", "k0 + kDepth < p.K;"),
    "the wrong lane": ("const uint k = k0 + 8 * at.row;", "const uint k = k0 + 8 * at.column;"),
    "columns swapped": ("8 * f + at.column + c", "8 * f + at.column + 1 - c"),
    "a strip too few": ("(loader.rows + 7) / 8", "loader.rows / 8"),
    "norm's weight of the wrong column": ("norms[8 * at.row + j]", "norms[8 * at.row + 7 - j]"),
    "squares of half a row": ("sum += simd_shuffle_xor(sum, 4);", ""),
    "columns past the end are stored": ("if (n >= p.N)", "if (n > p.N)"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_faults_are_noticed(name: str) -> None:
    text = mutate((METAL / "matmul_tile.h").read_text(), *MUTATIONS[name])
    folder = changed_sources({"matmul_tile.h": text})
    with pytest.raises((AssertionError, KernelError)):
        FUSED["norm and residual"].check(mode="checked", folder=folder)
