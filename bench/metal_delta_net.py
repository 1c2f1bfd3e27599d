"""Costs of GatedDeltaNet's Metal kernels, counted on a CPU, beside those of mlx-lm and of MLX.

python bench/metal_delta_net.py [MLX] prints the table of RESULTS.md. MLX: the folder ``mlx`` of
its wheel for macOS, whose kernels the Linux wheel lacks; ``make wheel-macos`` leaves one at
build/macos/macos-14/mlx. mlx-lm's and MLX's kernels make the recurrence alone, ours all that is
between the projections.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / folder) for folder in ("metal", "")]

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from delta_net_cases import Net  # noqa: E402
from metal_runner import Counters, Library  # noqa: E402
from metal_runner.mlx_call import MetalKernel, as_buffer  # noqa: E402
from metal_runner.stock import instantiation  # noqa: E402

HK, HV, D = 1, 3, 128  # value heads to a key head as in the 27B model
STEPS = (1, 8, 128)
PRODUCT_CLOCKS = 17.5  # of a SIMD group for 8 x 8 x 8 (philipturner's metal-benchmarks)
MIXED = ("bfloat16", "float32", "bfloat16", "bfloat16")  # types of the layer's parameters


def ours(T: int) -> list[Counters]:
    """Of each launch."""
    net = Net(T, HK, HV, D, D, x="bfloat16", weights=MIXED)
    return [launch.counters for launch in net.operands().run(mode="counted").launches]


def recurrence_inputs(T: int) -> list[mx.array]:
    """q, k, v, g, beta in bf16, and the state."""
    q, k = (mx.random.normal((1, T, HK, D)).astype(mx.bfloat16) * 0.1 for _ in range(2))
    v = mx.random.normal((1, T, HV, D)).astype(mx.bfloat16)
    g, beta = (mx.random.uniform(shape=(1, T, HV)) for _ in range(2))
    return [q, k, v, g, beta.astype(mx.bfloat16), mx.zeros((1, HV, D, D))]


def mlx_lm(T: int) -> list[Counters]:
    """Of its packed kernel."""
    spec = importlib.util.find_spec("mlx_lm.models.gated_delta")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    with (
        mock.patch.object(mx.metal, "is_available", lambda: True),
        mock.patch.object(mx.fast, "metal_kernel", MetalKernel),
        mock.patch.object(MetalKernel, "mode", "counted"),
        mock.patch.object(MetalKernel, "reports", [], create=True),
    ):
        spec.loader.exec_module(module)
        module.gated_delta_kernel(*recurrence_inputs(T))
        return [report.counters for report in MetalKernel.reports]


def mlx(folder: Path, T: int) -> list[Counters]:
    """Of mx.fast.gated_delta_update, which takes its kernel for many steps from nine on."""
    name = "gated_delta_fused_chunk" if T > 8 else "gated_delta_seq"
    library = Library.from_source(
        '#include "mlx/backend/metal/kernels/gated_delta_update.h"\n',
        instantiate=[instantiation("kernel", f"{name}<bfloat, {D}, {D}, {HK}, {HV}, 8>")],
        name="stock.metal",
        folders=[folder / "include"],
    )
    q, k, v, g, beta, state = recurrence_inputs(T)
    arrays = [as_buffer(a) for a in (q, k, v, state, g.astype(mx.bfloat16), beta)]
    outputs = [np.zeros((1, T, HV, D), np.uint16), np.zeros((1, HV, D, D), np.float32)]
    rows = D // 8 if T > 8 else D
    report = library.kernel("kernel", constants={"save_state": False}).run(
        dict(enumerate([*arrays, *outputs, T])),
        grid=(32, rows, HV),
        threads=(32, 4, 1),
        mode="counted",
    )
    return [report.counters]


def cells(launches: list[Counters], T: int) -> str:
    """Per step of a value head."""

    def each(count: float, digits: int = 0) -> str:
        return f"{count / (T * HV):.{digits}f}"

    issued = sum(c.issue_cost for c in launches)
    products = sum(c.count("simd.mma") for c in launches)
    return " | ".join([
        str(len(launches)),
        each(sum(c.bytes_loaded + c.bytes_stored for c in launches)),
        each(sum(c.compulsory_bytes for c in launches)),
        each(products / 32, 1),
        each(sum(c.count("simd.shuffle", "simd.reduce") for c in launches) / 32),
        each(issued / 32),
        each((issued + products * (PRODUCT_CLOCKS - 1)) / 32),
    ])  # fmt: skip


def cost_table(folder: Path | None) -> Iterator[str]:
    """Device bytes and issued operations."""
    yield (
        "| T | kernels | launches | bytes asked for | bytes at least | products of 8 x 8 "
        "| shuffles | operations | slots |"
    )
    yield "| ---: | --- |" + " ---: |" * 7
    for T in STEPS:
        yield f"| {T} | mixbit, all | {cells(ours(T), T)} |"
        yield f"| {T} | mlx-lm, recurrence | {cells(mlx_lm(T), T)} |"
        if folder:
            yield f"| {T} | MLX, recurrence | {cells(mlx(folder, T), T)} |"


def main() -> None:
    """Print the table."""
    mx.set_default_device(mx.cpu)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    print(f"Per step of a value head, D = {D}, {HV} value heads to a key head, bf16:\n")
    print("\n".join(cost_table(folder)))


if __name__ == "__main__":
    main()
