"""metal/matvec.metal: products of one to 32 rows of x, against fp64."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from metal_runner import METAL, KernelError, changed_sources, family_library, run_plan
from operands import FLOATS
from product_cases import DENSE, Case, Form, single

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
LENGTHS = (64, 96, 128, 512, 896, 1536, 4864)
COLUMNS = (1, 4, 7, 8, 16, 33)
ROWS = (1, 2, 3, 5, 8, 9, 16, 31, 33)
# Rows that one kernel makes, alone or as tiles alike.
TILES = ((1,), (2,), (3,), (5, 9), (8, 16, 31))


def sweep(bits: int, long: bool) -> list[Case]:
    """The whole grid, or of each kernel one type and group and a few shapes."""
    if long:
        return [
            single(("affine", bits, group), dtype, M, K, N)
            for group, dtype, M, K, N in itertools.product(GROUPS, FLOATS, ROWS, LENGTHS, COLUMNS)
            if K % group == 0
        ]
    choose = random.Random(bits)
    cases = []
    for rows in TILES:
        group, dtype = choose.choice(GROUPS), choose.choice(list(FLOATS))
        lengths = choose.sample([K for K in LENGTHS if K % group == 0], 4)
        for K, N, M in zip(lengths, choose.sample(COLUMNS, 4), itertools.cycle(rows), strict=False):
            cases.append(single(("affine", bits, group), dtype, M, K, N))
    return cases


@pytest.mark.parametrize("bits", BITS)
def test_every_width(bits: int, long_grid: bool) -> None:
    cases = sweep(bits, long_grid)
    plans = (case.plan for case in cases)
    each_kernel = list({plan.launches[0].kernel: plan for plan in plans}.values())
    for case in cases:
        case.check(together=each_kernel)


def five_parts(M: int) -> Case:
    """Formats of every kind in one launch, each with its own types and N."""
    parts = (
        (("affine", 4, 64), "bfloat16", 37, "bfloat16", None),
        (("mxfp8", 8, 32), "bfloat16", 5, "float32", "float16"),
        (DENSE, "float16", 3, "float16", None),
        (("mxfp4", 4, 32), "bfloat16", 33, "float16", "bfloat16"),
        (("affine", 4, 64), "bfloat16", 16, "bfloat16", "float32"),
    )
    return Case(M, 640, "bfloat16", parts, norm="float32")


def residual(M: int) -> Case:
    """The end of a layer: one weight, bias and residual."""
    parts = ((("affine", 3, 32), "float16", 19, "float32", "float16"),)
    return Case(M, 1056, "float16", parts, norm="float16", residual="float16")


def swiglu(M: int) -> Case:
    """Gate and up of one format."""
    parts = ((("affine", 5, 128), "bfloat16", 21, "bfloat16", None),) * 2
    return Case(M, 1152, "bfloat16", parts, swiglu=True, norm="bfloat16")


def mixed_swiglu(M: int) -> Case:
    """Gate and up of formats that want x scaled differently."""
    gate: Form = ("affine", 6, 32)
    up: Form = ("affine", 2, 64)
    parts = (
        (gate, "float16", 18, "float16", "float16"),
        (up, "float32", 18, "float16", "float32"),
    )
    return Case(M, 576, "float16", parts, swiglu=True, residual="float32")


def ragged(M: int) -> Case:
    """K is no multiple of a block, and ends in the second step."""
    parts = (
        (("nvfp4", 4, 16), "float16", 17, "float32", None),
        (DENSE, "bfloat16", 9, "bfloat16", None),
    )
    return Case(M, 560, "float32", parts, norm="bfloat16")


def odd(M: int) -> Case:
    """Rows begin anywhere."""
    return Case(M, 523, "bfloat16", ((DENSE, "bfloat16", 9, "float32", "bfloat16"),))


FUSED = {
    f"{build.__name__} {M}": build(M)
    for build, M in [
        (five_parts, 1), (five_parts, 3), (residual, 1), (residual, 4), (swiglu, 1), (swiglu, 2),
        (mixed_swiglu, 1), (mixed_swiglu, 3), (ragged, 1), (ragged, 2), (odd, 1), (odd, 9),
    ]
}  # fmt: skip


@pytest.mark.parametrize("name", FUSED)
def test_fused_and_sound(name: str) -> None:
    report = FUSED[name].check(mode="checked")
    assert [launch.findings for launch in report.launches] == [()]


@pytest.mark.parametrize("name", ["residual 1", "residual 4"])
def test_order_of_threads_does_not_matter(name: str) -> None:
    case = FUSED[name]
    buffers, _ = case.operands()
    first, *others = (
        run_plan(case.plan, buffers, case.outputs(), order=order, seed=seed).outputs[0]
        for order, seed in (("forward", 0), ("backward", 0), ("shuffled", 1), ("shuffled", 2))
    )
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("build", [residual, mixed_swiglu])
def test_a_row_does_not_depend_on_the_others(build: type[Case]) -> None:
    case = build(32)
    (x, *middle), _ = case.operands()
    last = middle.pop()  # the residual
    plans = [case.plan_of(M) for M in range(1, 33)]

    def run(first: int, M: int) -> np.ndarray:
        rows = slice(first, first + M)
        inputs = [x[rows], *middle, last[rows]]
        return run_plan(plans[M - 1], inputs, case.outputs(M), together=plans).outputs[0]

    alone = np.concatenate([run(m, 1) for m in range(32)])
    for M in range(2, 33):
        np.testing.assert_array_equal(run(32 - M, M), alone[32 - M :])


def test_address_spaces() -> None:
    lines = {case.plan.launches[0].instantiation for case in FUSED.values()}
    assert family_library("matvec", tuple(sorted(lines))).address_space_errors() == []


BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
SHUFFLE = "simd_shuffle_xor(other, ushort(distance))"
OWN_BLOCK = "rows.codes + (r * rows.blocks + step * kLanes)"
# File, what to change into what there, and the case that has to notice.
FAULTS = {
    "no barrier after staging": ("matvec.metal", f"{BARRIER}\n\n", "", "residual 4"),
    "no barrier before staging anew": (
        "matvec.metal",
        f"    {BARRIER}\n  }}\n",
        "  }\n",
        "residual 4",
    ),
    "no barrier before the factors": ("matvec.metal", f"  {BARRIER}\n}}", "}", "residual 4"),
    "the wrong lane's block": ("matvec.metal", "= in_column[", "= in_column[1 + ", "residual 4"),
    "the wrong lane's sum": (
        "matvec.metal",
        "= sum_in_column[",
        "= sum_in_column[1 + ",
        "residual 4",
    ),
    "the wrong row of x": ("matvec.metal", "size_t(own) *", "size_t(own ^ 1) *", "residual 4"),
    "no barrier before the shares are summed": (
        "matvec.metal",
        "simdgroup_barrier(mem_flags::mem_threadgroup);",
        "",
        "residual 4",
    ),
    "the other half's sum": ("matvec.metal", "+ p.lane - column", "", "residual 4"),
    "a share lost": ("matvec.metal", "i < distance", "i + 1 < distance", "residual 4"),
    "a row past the end": ("matvec.metal", "p.x_rows && r <", "p.x_rows && r <=", "residual 4"),
    "a row past the end, alone": (
        "matvec.metal",
        "p.lane) && r < p.w_rows",
        "p.lane) && r <= p.w_rows",
        "residual 1",
    ),
    "a row past the tile's end": ("matvec.metal", "m < p.x_rows && ", "", "odd 9"),
    "a step too few": ("row_product.h", "(K + kLanes * kBlock - 1)", "(K - 1)", "residual 1"),
    "squares of a part": ("row_product.h", "values[j], squares)", "values[j], 0.0f)", "residual 1"),
    "the wrong partner": ("lane_sums.h", SHUFFLE, SHUFFLE.replace("e)", "e ^ 1)"), "residual 1"),
    "the next block": ("dequantize.h", OWN_BLOCK, f"{OWN_BLOCK} + 1", "residual 1"),
    "a window a bit too wide": ("dequantize.h", "kWindow = 23", "kWindow = 24", "swiglu 1"),
    "a bit of the next word lost": ("dequantize.h", "- here)", "- here - 1)", "residual 1"),
    "scale and bias swapped": (
        "dequantize.h",
        "rows.share == 0 ?",
        "rows.share == 1 ?",
        "swiglu 1",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_noticed(name: str) -> None:
    file, old, new, case = FAULTS[name]
    text = (METAL / file).read_text()
    assert old in text
    folder = changed_sources({file: text.replace(old, new, 1)})
    with pytest.raises((AssertionError, KernelError)):
        FUSED[case].check(mode="checked" if "barrier" in name else "fast", folder=folder)
