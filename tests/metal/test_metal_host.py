"""The GPU host's own parts: what it hands the compiler, what it binds, and how it tries kernels."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from metal_runner import METAL, Library, from_bfloat, run_plan
from operands import FLOATS, empty, raw

from kernel_cases import FORMATS, TOLERANCE

core = importlib.import_module("mixbit._core")
NAMES = {dtype: name for name, dtype in FLOATS.items()}


def noise(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal(shape).astype(dtype)


def weight(mode: str, bits: int, group: int, stored: mx.Dtype, N: int, K: int, **rest: Any) -> Any:
    """Random, packed or (mode "dense") not."""
    w = noise(N, K, dtype=stored)
    if mode == "dense":
        return core.Weight(w, **rest)
    packing = {"bits": bits, "group_size": group, "mode": mode}
    return core.Weight(*mx.quantize(w, **packing), **packing, **rest)


def several() -> list[Any]:
    """Formats, scales, biases and outputs of every type."""
    return [
        weight("affine", 3, 64, mx.float16, 5, 256, bias=noise(5), dtype=mx.float32),
        weight("dense", 0, 0, mx.bfloat16, 3, 256),
        weight("nvfp4", 4, 16, mx.bfloat16, 9, 256, bias=noise(9, dtype=mx.float16)),
        weight("affine", 8, 128, mx.float32, 1, 256, dtype=mx.float16),
    ]


def gated() -> list[Any]:
    """Gate and up."""
    bias = noise(7, dtype=mx.bfloat16)
    return [weight("affine", 4, 32, mx.bfloat16, 7, 256, bias=b) for b in (bias, None)]


def agree(outputs: list[mx.array]) -> None:
    """The launches for an operation's outputs give what the CPU gives."""
    plan, inputs = core.launches_of(outputs[0])
    shapes = [(-1, y.shape[-1]) for y in outputs]
    kept = [
        np.zeros(y.shape, np.uint32) if y.dtype == mx.uint32 else empty(NAMES[y.dtype], *y.shape)
        for y in outputs
    ]
    kept = [a.reshape(shape) for a, shape in zip(kept, shapes, strict=True)]
    run = run_plan(plan, [raw(a) for a in inputs], kept)
    for got, y in zip(run.outputs, outputs, strict=True):
        want = raw(y).reshape(got.shape)
        if y.dtype == mx.uint32:
            assert np.array_equal(got, want)
            continue
        name = NAMES[y.dtype]
        if name == "bfloat16":
            got, want = from_bfloat(got), from_bfloat(want)
        # Both round once; the CPU's sums of 16-bit x are off by another 3e-5.
        error = np.abs(got.astype(np.float64) - want).max() / np.abs(want).max()
        assert error < 2 * TOLERANCE[name] + 5e-5


def products() -> list[mx.array]:
    """Every kind of weight, bias and output; x is not contiguous."""
    x = noise(256, 2, 3, dtype=mx.bfloat16).transpose(1, 2, 0)
    norm = core.Norm(noise(256, dtype=mx.float16), 0.01)
    return core.matmul(x, several(), norm=norm)


def with_residual() -> list[mx.array]:
    x, w = noise(3, 256), weight("mxfp8", 8, 32, mx.float32, 9, 256, bias=noise(9))
    return core.matmul(x, [w], residual=noise(3, 9, dtype=mx.bfloat16))


def gated_product() -> list[mx.array]:
    norm = core.Norm(noise(256), 0.01)
    return [core.swiglu(noise(2, 256, dtype=mx.float16), *gated(), norm=norm)]


def stack(mode: str, bits: int, group: int, stored: mx.Dtype, N: int, K: int) -> Any:
    """Weights of six experts."""
    w = noise(6, N, K, dtype=stored)
    if mode == "dense":
        return core.Weight(w)
    packing = {"bits": bits, "group_size": group, "mode": mode}
    return core.Weight(*mx.quantize(w, **packing), **packing)


def experts(*shape: int) -> mx.array:
    return mx.random.randint(0, 6, shape)


def gathered_for_tokens() -> list[mx.array]:
    x = noise(2, 3, 1, 1, 128, dtype=mx.bfloat16)
    pair = [stack("affine", bits, 64, mx.bfloat16, 7, 128) for bits in (3, 5)]
    return [core.gather_swiglu(x, *pair, experts(2, 3, 4))]


def gathered_for_slots() -> list[mx.array]:
    x, scores = noise(2, 3, 4, 1, 96), mx.abs(noise(2, 3, 4))
    return [core.gather_matmul(x, stack("nvfp4", 4, 16, mx.float32, 5, 96), experts(2, 3, 4),
                               scores=scores)]  # fmt: skip


def gathered_for_sorted() -> list[mx.array]:
    """As mlx-lm calls it for a prompt: one row of sorted indices."""
    x = noise(50, 1, 64, dtype=mx.float16)
    return [core.gather_matmul(x, stack("dense", 0, 0, mx.float16, 9, 64), mx.sort(experts(50)))]


def gathered_otherwise() -> list[mx.array]:
    """Blocks of x repeat along the first dimension of the indices."""
    return [core.gather_matmul(noise(3, 2, 64), stack("affine", 4, 32, mx.float32, 5, 64),
                               experts(4, 3))]  # fmt: skip


def gathered_for_one() -> list[mx.array]:
    w = stack("affine", 4, 32, mx.float32, 5, 64)
    return [core.gather_matmul(noise(1, 64), w, experts(3))]


def chosen() -> list[mx.array]:
    return list(core.route(noise(2, 3, 40, dtype=mx.bfloat16), 5, normalise=True))


def compared() -> list[mx.array]:
    """Two models with heads of their own."""
    p, q = noise(5, 64, dtype=mx.bfloat16), noise(5, 96)
    heads = (weight("affine", 8, 32, mx.bfloat16, 50, n, bias=noise(50)) for n in (64, 96))
    return [core.kl_divergence(p, next(heads), q, next(heads), mx.arange(5), vocabulary=49)]


def compared_by_one_head() -> list[mx.array]:
    p, q = noise(70, 77, dtype=mx.float16), noise(70, 77)
    head = weight("dense", 0, 0, mx.float16, 50, 77)
    return [core.kl_divergence(p, head, q, None, mx.arange(70), vocabulary=50)]


def delta_net(T: int, **more: Any) -> list[mx.array]:
    """Two key heads, four value heads."""
    B, Hk, Hv, Dk, Dv = 2, 2, 4, 32, 48
    C, x = 2 * Hk * Dk + Hv * Dv, mx.bfloat16
    return list(
        core.delta_net(
            noise(B, T, C, dtype=x), noise(B, T, Hv * Dv, dtype=x), noise(B, T, Hv),
            noise(B, T, Hv), noise(C, 4, 1, dtype=x), noise(Hv), noise(Hv, dtype=x), noise(Dv),
            num_k_heads=Hk, eps=1e-6, **more,
        )
    )  # fmt: skip


def delta_net_step() -> list[mx.array]:
    """Decoding."""
    return delta_net(1, conv_state=noise(2, 3, 320, dtype=mx.bfloat16), state=noise(2, 4, 48, 32))


def delta_net_drafts() -> list[mx.array]:
    """All that there may be."""
    mask, lengths = noise(2, 5) > -1, mx.array([3, 5], mx.int32)
    return delta_net(5, state=noise(2, 4, 48, 32), mask=mask, lengths=lengths, keep_steps=True)


def delta_net_prompt() -> list[mx.array]:
    """Three launches."""
    return delta_net(40)


def delta_net_interleaved() -> list[mx.array]:
    """As qwen3_next's projections give it: two key heads, six value heads."""
    Hk, Hv, Dk, Dv, x = 2, 6, 32, 48, mx.bfloat16
    C = 2 * Hk * Dk + Hv * Dv
    return list(
        core.delta_net(
            noise(2, 40, C + Hv * Dv, dtype=x), None, noise(2, 40, 2 * Hv), None,
            noise(C, 4, 1, dtype=x), noise(Hv), noise(Hv, dtype=x), noise(Dv),
            num_k_heads=Hk, eps=1e-6,
        )
    )  # fmt: skip


OPERATIONS = [
    delta_net_step,
    delta_net_drafts,
    delta_net_prompt,
    delta_net_interleaved,
    products,
    with_residual,
    gated_product,
    gathered_for_tokens,
    gathered_for_slots,
    gathered_for_sorted,
    gathered_otherwise,
    gathered_for_one,
    chosen,
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_launches_of_an_operation_give_its_result(
    operation: Callable[[], list[mx.array]],
) -> None:
    agree(operation())


@pytest.mark.parametrize("operation", [*OPERATIONS, compared, compared_by_one_head])
def test_a_small_case_of_any_operation_runs(operation: Callable[[], list[mx.array]]) -> None:
    assert core.try_kernels(operation()[0], stream=mx.cpu) == ""


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("mode", "bits", "group"), [*FORMATS, ("dense", 0, 0)])
def test_noise_stands_for_finite_weights(mode: str, bits: int, group: int, dtype: str) -> None:
    x, w = noise(40, 256), weight(mode, bits, group, FLOATS[dtype], 50, 256)
    assert core.try_kernels(core.matmul(x, [w])[0], stream=mx.cpu) == ""


@pytest.mark.parametrize(("mode", "bits", "group"), [("affine", 8, 64), ("nvfp4", 4, 16)])
def test_noise_does_not_overflow_half(mode: str, bits: int, group: int) -> None:
    x = noise(40, 17408, dtype=mx.float16)
    pair = [weight(mode, bits, group, mx.float16, 9, 17408) for _ in range(2)]
    for norm in (None, core.Norm(noise(17408), 0.01)):
        assert core.try_kernels(core.swiglu(x, *pair, norm=norm), stream=mx.cpu) == ""


def test_only_operations_have_launches() -> None:
    with pytest.raises(ValueError, match="not one that a kernel of mixbit is yet to compute"):
        core.launches_of(mx.zeros(3) + 1)


@pytest.mark.parametrize(
    ("dtype", "factor", "seen"),
    [
        (mx.float32, 1 + 1e-5, False),
        (mx.float32, 1 + 1e-3, True),
        (mx.float16, 1 + 1e-3, False),
        (mx.float16, 1 + 1e-2, True),
        (mx.bfloat16, 1 + 1e-2, False),
        (mx.bfloat16, 1 + 5e-2, True),
        (mx.float32, float("nan"), True),
        (mx.float32, float("inf"), True),
    ],
)
def test_a_wrong_result_is_seen(dtype: mx.Dtype, factor: float, seen: bool) -> None:
    right = mx.arange(1, 65).astype(dtype)
    wrong = mx.where(mx.arange(64) == 63, right.astype(mx.float32) * factor, right).astype(dtype)
    fault = core.difference([right, wrong], [right, right])
    assert bool(fault) == seen
    if seen:
        assert "instead of 64" in fault


def test_a_library_is_one_text_without_includes() -> None:
    (y,) = core.matmul(noise(2, 96), [weight("affine", 4, 32, mx.float32, 4, 96)])
    plan, inputs = core.launches_of(y)
    (launch,) = plan.launches
    text = core.metal_source(str(METAL), launch)
    assert '#include "' not in text
    for header in METAL.glob("*.h"):
        assert text.count(header.read_text().partition("#pragma once\n")[2].strip()) <= 1
    arrays = [raw(a) for a in inputs]
    bound = {buffer: arrays[i] for buffer, (role, i) in launch.buffers if role == "input"}
    ((buffer, _),) = [b for b in launch.buffers if b[1][0] == "output"]
    kernel = Library.from_source(text).kernel(launch.kernel)
    report = kernel.run(
        {**bound, buffer: empty("float32", 2, 4), core.PARAMS_BUFFER: launch.params},
        threadgroups=launch.threadgroups,
        threads=launch.threads,
    )
    (expected,) = run_plan(plan, arrays, [empty("float32", 2, 4)]).outputs
    assert np.array_equal(report[buffer], expected)


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    (y,) = core.matmul(noise(1, 64), [weight("dense", 0, 0, mx.float32, 4, 64)])
    plan, _ = core.launches_of(y)
    with pytest.raises(RuntimeError, match=rf"{tmp_path}/matvec\.metal cannot be read"):
        core.metal_source(str(tmp_path), plan.launches[0])


def test_copy_moves_bytes() -> None:
    line = 'template [[host_name("copy_uchar")]] [[kernel]] decltype(copy<uchar>) copy<uchar>;'
    kernel = Library.from_file(METAL / "copy.metal", instantiate=[line]).kernel("copy_uchar")
    old = np.arange(300, dtype=np.uint8)
    report = kernel.run([np.zeros_like(old), old], grid=[300], threads=[256], mode="checked")
    assert np.array_equal(report["to"], old)
