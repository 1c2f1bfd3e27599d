"""Costs of the Metal kernels for many rows and experts, beside MLX's; see metal_cost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from metal_runner import Counters, run_plan, stock
from operands import FLOATS, empty, floats, part, weight
from product_cases import single

from mixbit._core import launch_plan_gather

BITS = (2, 3, 4, 5, 6, 8)
COLUMNS = 64
WIDTH = 512
EXPERTS = 4
PRODUCT_CLOCKS = 17.5  # of a SIMD group for 8 x 8 x 8 (philipturner's metal-benchmarks)
STOCK_EXPERT_ROWS = 16  # of the tile of MLX's product for experts


def cells(ours: Counters, theirs: Counters, products: int) -> str:
    """Per 1000 multiplications: mixbit / MLX, and how many times as long MLX takes to issue."""

    def pair(mine: float, others: float, digits: int = 0) -> str:
        mine, others = 1e3 * mine / products, 1e3 * others / products
        return f"{mine:.{digits}f} / {others:.{digits}f}"

    def device_bytes(c: Counters) -> int:
        return c.bytes_loaded + c.bytes_stored

    def shared_bytes(c: Counters) -> int:
        return c.spaces["threadgroup"].bytes_loaded + c.spaces["threadgroup"].bytes_stored

    def matrix_products(c: Counters) -> int:
        return c.simd_functions["simdgroup_multiply_accumulate"]

    def clocks(c: Counters) -> float:
        return c.issue_cost + c.count("simd.mma") * (PRODUCT_CLOCKS - 1)

    columns = [
        pair(device_bytes(ours), device_bytes(theirs)),
        pair(matrix_products(ours), matrix_products(theirs), digits=2),
        pair(shared_bytes(ours), shared_bytes(theirs)),
        pair(ours.count("fcvt", "itof"), theirs.count("fcvt", "itof")),
        pair(ours.issue_cost, theirs.issue_cost),
        f"{clocks(theirs) / clocks(ours):.2f}",
    ]
    return " | ".join(columns)


def header(first: str) -> Iterator[str]:
    """The two lines above the rows."""
    yield (
        f"| bits | {first} | device bytes | products of 8 x 8 | threadgroup bytes "
        "| conversions | issue cost | MLX takes |"
    )
    yield "| ---: |" + " ---: |" * 7


def tile_table() -> Iterator[str]:
    """Qmm against affine_qmm_t."""
    yield from header("M")
    for bits in BITS:
        for M in (33, 64):
            case = single(("affine", bits, 64), "bfloat16", M, WIDTH, COLUMNS)
            ours = case.check(mode="counted").launches[0].counters
            (x, *arrays), _ = case.operands()
            theirs = stock.matmul(
                "qmm_t", x, *arrays, element="bfloat", bits=bits, group=64, mode="counted"
            ).counters
            yield f"| {bits} | {M} | {cells(ours, theirs, M * COLUMNS * WIDTH)} |"


def decode_table() -> Iterator[str]:
    """One token's experts, per weight: gather_matvec against affine_qmv_fast."""
    yield "| bits | product | issue cost | ratio | bytes requested |"
    yield "| ---: | --- | ---: | ---: | ---: |"
    slots = 2
    for bits in BITS:
        form = ("affine", bits, 64)
        for name, K, parts in (("gate, up, SwiGLU", 2048, 2), ("down, scored sum", WIDTH, 1)):
            rng = np.random.default_rng(bits)
            mix = parts == 1
            x = floats(rng, "bfloat16", slots if mix else 1, K).buffers[0]
            stacks = [
                weight(rng, form, "bfloat16", EXPERTS, COLUMNS, K).buffers for _ in range(parts)
            ]
            plan = launch_plan_gather(
                tokens=1, slots=slots, K=K, experts=EXPERTS, x=FLOATS["bfloat16"],
                parts=[part(form, "bfloat16", COLUMNS, out="bfloat16")] * parts,
                shared_x=not mix, mix=mix,
            )  # fmt: skip
            scores = [np.ones((1, slots), np.float32)] if mix else []
            inputs = [x, np.array([[2, 0]], np.uint32), *scores, *(a for w in stacks for a in w)]
            y = empty("bfloat16", 1 if mix else slots, COLUMNS)
            ours = run_plan(plan, inputs, [y], mode="counted").launches[0].counters
            theirs = stock.matmul(
                "qmv_fast", x[:1], *(a[0] for a in stacks[0]),
                element="bfloat", bits=bits, group=64, mode="counted",
            ).counters  # fmt: skip
            weights = COLUMNS * K
            mine, others = (c.issue_cost / n for c, n in (
                (ours, weights * slots * parts), (theirs, weights)
            ))  # fmt: skip
            asked = f"{ours.bytes_loaded / (weights * slots * parts):.2f}"
            asked += f" / {theirs.bytes_loaded / weights:.2f}"
            yield f"| {bits} | {name} | {mine:.2f} / {others:.2f} | {mine / others:.2f} | {asked} |"


def stock_experts(
    bits: int, x: np.ndarray, arrays: list[np.ndarray], counts: list[int]
) -> Counters:
    """MLX's affine_gather_qmm_rhs for rows sorted by expert."""
    expression = (
        f"affine_gather_qmm_rhs<bfloat, 64, {bits}, {STOCK_EXPERT_ROWS}, 32, 32, 1, 2, true>"
    )
    library = stock.library(stock.QUANTIZED, (("experts", expression),))
    kernel = library.kernel("experts", constants={f"align_{axis}": True for axis in "MNK"})
    offsets = np.cumsum([0, *counts[:-1]]).astype(np.int32)
    rows, columns = len(x), COLUMNS
    return kernel.run(
        [x, *arrays, offsets, empty("bfloat16", rows, columns), rows, columns, WIDTH, EXPERTS],
        threadgroups=(columns // 32, rows // STOCK_EXPERT_ROWS + EXPERTS, 1),
        threads=(32, 2, 1),
        mode="counted",
    ).counters


def expert_table() -> Iterator[str]:
    """gather_qmm against affine_gather_qmm_rhs, rows spread unevenly over four experts."""
    yield from header("rows an expert")
    for bits in (3, 4, 6):
        for counts in ([20, 9, 3, 16], [70, 40, 64, 82]):
            rows = sum(counts)
            rng = np.random.default_rng(bits)
            form = ("affine", bits, 64)
            x = floats(rng, "bfloat16", rows, WIDTH).buffers[0]
            arrays = weight(rng, form, "bfloat16", EXPERTS, COLUMNS, WIDTH).buffers
            indices = np.repeat(np.arange(EXPERTS, dtype=np.uint32), counts)
            plan = launch_plan_gather(
                tokens=rows, slots=1, K=WIDTH, experts=EXPERTS, x=FLOATS["bfloat16"],
                parts=[part(form, "bfloat16", COLUMNS, out="bfloat16")],
            )  # fmt: skip
            y = empty("bfloat16", rows, COLUMNS)
            report = run_plan(plan, [x, indices, *arrays], [y], mode="counted")
            ours = report.launches[1].counters
            theirs = stock_experts(bits, x, arrays, counts)
            listed = ", ".join(map(str, counts))
            yield f"| {bits} | {listed} | {cells(ours, theirs, rows * COLUMNS * WIDTH)} |"
