"""Costs of the Metal kernels, counted on a CPU, beside those of MLX's kernels.

python bench/metal_cost.py prints the tables of RESULTS.md; --group and --rows choose what times are
predicted for. The kernels of both sides run in the
test suite's runner; per weight their costs are a line in 1 / K, found from two widths. Times are
predicted: the longer of weight bytes over 90 % of the memory's bandwidth and of issued operations
over the rate at which the cores issue them.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / folder) for folder in ("metal", "")]

from metal_runner import Counters, stock  # noqa: E402
from product_cases import single  # noqa: E402

from metal_tile_cost import decode_table, expert_table, tile_table  # noqa: E402

BITS = (2, 3, 4, 5, 6, 8)
COLUMNS = 64  # rows of the counted weight; every threadgroup does the same
WIDTHS = (1024, 2048)
TILE = 8  # rows of x that our kernel serves with one reading of the weights
WIDE = 4  # the same of qmv_wide
MATVEC_ROWS = 5  # from the next on MLX takes its matrix product on some devices


@dataclass(frozen=True)
class Device:
    """Memory in GB/s, fp32 in TFLOP/s; ``wide``: MLX has qmv_wide there (M3 and later)."""

    name: str
    bandwidth: float
    tflops: float
    wide: bool

    def seconds(self, read: float, issued: float) -> tuple[float, str]:
        """The bound, and which it is: "b" of bandwidth, "i" of issue rate."""
        memory = read / (0.9e9 * self.bandwidth)
        cores = issued / (0.5e12 * self.tflops)  # an FMA is two FLOP and one operation
        return (memory, "b") if memory >= cores else (cores, "i")


DEVICES = (
    Device("M1 Max", 400, 10.4, False),
    Device("M2 Pro", 200, 6.8, False),
    Device("M3 Ultra", 819, 28, True),
    Device("M4 Max", 546, 14, True),
    Device("M5 Max", 614, 16, True),  # estimated from its cores; the matrix units do not count here
)


@dataclass(frozen=True)
class Cost:
    """Of one launch, per weight."""

    issued: float
    requested: float  # bytes, of all buffers
    itof: float
    shifts: float
    floats: float
    logic: float

    @classmethod
    def of(cls, c: Counters, weights: int) -> Cost:
        """Divided by the number of weights."""
        counts = (c.issue_cost, c.bytes_loaded, c.count("itof"), c.count("shift", "imul"),
                  c.count("fma", "fadd", "fmul", "fcvt"), c.count("logic"))  # fmt: skip
        return cls(*(n / weights for n in counts))


@functools.cache
def ours(bits: int, group: int, M: int, K: int) -> Cost:
    """Of matvec."""
    case = single(("affine", bits, group), "float16", M, K, COLUMNS)
    return Cost.of(case.check(mode="counted").launches[0].counters, COLUMNS * K)


@functools.cache
def mlx(bits: int, group: int, M: int, K: int, wide: bool) -> Cost:
    """Of affine_qmv_fast for each row of x, or affine_qmv_wide."""
    case = single(("affine", bits, group), "float16", M, K, COLUMNS)
    (x, *weight), _ = case.operands()
    report = stock.matmul(
        "qmv_wide" if wide else "qmv_fast", x, *weight,
        element="half", bits=bits, group=group, mode="counted",
    )  # fmt: skip
    return Cost.of(report.counters, COLUMNS * K)


def issued(cost: Callable[[int], Cost], K: int) -> float:
    """Issue cost per weight at a width."""
    narrow, wide = (cost(width).issued for width in WIDTHS)
    once = (narrow - wide) / (1 / WIDTHS[0] - 1 / WIDTHS[1])
    return wide + once * (1 / K - 1 / WIDTHS[1])


@dataclass(frozen=True)
class Model:
    """Text dimensions of a Qwen3.5 model."""

    name: str
    hidden: int
    delta_layers: int
    attention_layers: int
    ff: int  # of the shared expert, in a mixture
    heads: int
    kv_heads: int
    k_heads: int
    v_heads: int
    experts: int = 0

    def products(self) -> Iterator[tuple[int, int]]:
        """(weights, K) of everything that a token goes through but routed experts."""
        h, values, queries = self.hidden, 128 * self.v_heads, 256 * self.heads
        layers = self.delta_layers + self.attention_layers
        qkv = 256 * self.k_heads + values
        yield self.delta_layers * h * (qkv + values + 2 * self.v_heads), h
        yield self.delta_layers * h * values, values
        yield self.attention_layers * h * (2 * queries + 512 * self.kv_heads), h
        yield self.attention_layers * h * queries, queries
        yield layers * h * (2 * self.ff + self.experts), h
        yield layers * h * self.ff, self.ff
        yield 248_320 * h, h


MODELS = (
    Model("0.8B", 1024, 18, 6, 3584, 8, 2, 16, 16),
    Model("4B", 2560, 24, 8, 9216, 16, 4, 16, 32),
    Model("9B", 4096, 24, 8, 12288, 16, 4, 16, 32),
    Model("27B", 5120, 48, 16, 17408, 24, 4, 16, 48),
    Model("35B-A3B", 2048, 30, 10, 512, 16, 2, 16, 32, experts=256),
)


def kernel_table() -> Iterator[str]:
    """One row of x at K = 2048: mixbit / MLX."""
    yield (
        "| bits | group | issue cost | ratio | int to float | shift, int product "
        "| float | and, or | bytes requested | bytes stored |"
    )
    yield "| ---: |" + " ---: |" * 9
    for bits in BITS:
        for group in (32, 64, 128):
            mine, theirs = ours(bits, group, 1, WIDTHS[1]), mlx(bits, group, 1, WIDTHS[1], False)
            cells = [
                f"{getattr(mine, name):.2f} / {getattr(theirs, name):.2f}"
                for name in ("issued", "itof", "shifts", "floats", "logic", "requested")
            ]
            cells.insert(1, f"{mine.issued / theirs.issued:.2f}")
            yield f"| {bits} | {group} | {' | '.join(cells)} | {bits / 8 + 4 / group:.2f} |"


def rows_table() -> Iterator[str]:
    """Several rows of x at K = 2048, groups of 64."""
    yield "| bits | M | mixbit | qmv_wide | qmv_fast | readings of the weights |"
    yield "| ---: |" + " ---: |" * 5
    for bits in BITS:
        for M in (WIDE, TILE):
            costs = [ours(bits, 64, M, WIDTHS[1])]
            costs += [mlx(bits, 64, M, WIDTHS[1], wide) for wide in (True, False)]
            issue = " | ".join(f"{c.issued:.2f}" for c in costs)
            yield f"| {bits} | {M} | {issue} | {-(-M // TILE)}, {-(-M // WIDE)}, {M} |"


def prediction(model: Model, bits: int, group: int, M: int, device: Device) -> str:
    """Milliseconds of both sides, what bounds them, and their ratio."""
    times, bounds = [0.0, 0.0], ["", ""]
    wide = device.wide and M > 1
    readings = (-(-M // TILE), -(-M // WIDE) if wide else M)
    costs = (
        lambda K: ours(bits, group, M, K),
        lambda K: mlx(bits, group, M, K, wide),
    )
    for weights, K in model.products():
        for side in (0, 1):
            read = weights * (bits / 8 + 4 / group) * readings[side]
            seconds, bound = device.seconds(read, weights * issued(costs[side], K))
            times[side] += 1e3 * seconds
            bounds[side] = bound if bounds[side] in ("", bound) else "b, i"
    mine, theirs = (f"{t:.2f} {b}" for t, b in zip(times, bounds, strict=True))
    return f"{mine} / {theirs} = {times[1] / times[0]:.2f}"


def model_table(group: int, M: int) -> Iterator[str]:
    """All products of a token, or of M rows, in milliseconds."""
    yield "| model | bits | " + " | ".join(device.name for device in DEVICES) + " |"
    yield "| --- | ---: |" + " ---: |" * len(DEVICES)
    for model in MODELS:
        for bits in BITS:
            cells = " | ".join(prediction(model, bits, group, M, device) for device in DEVICES)
            yield f"| {model.name} | {bits} | {cells} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--group", type=int, choices=(32, 64, 128), default=64)
    parser.add_argument(
        "--rows", type=int, choices=range(1, MATVEC_ROWS + 1), nargs="+", default=[1, WIDE]
    )
    args = parser.parse_args()
    print("Per weight, fp16, one row of x, K = 2048, mixbit / MLX:\n")
    print("\n".join(kernel_table()))
    print("\nSeveral rows of x, issue cost per weight, groups of 64:\n")
    print("\n".join(rows_table()))
    for M in args.rows:
        print(f"\nPredicted ms for the products of {M} row(s), mixbit / MLX = ratio:\n")
        print("\n".join(model_table(args.group, M)))
    print("\nPer 1000 multiplications, many rows, bf16, groups of 64, mixbit / MLX:\n")
    print("\n".join(tile_table()))
    print("\nThe same for rows sorted by expert:\n")
    print("\n".join(expert_table()))
    print("\nPer weight, the experts of one token:\n")
    print("\n".join(decode_table()))


if __name__ == "__main__":
    main()
