"""Every planted defect is reported for what it is, and the sound kernel is silent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from metal_runner import KernelError, Library, Report

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
LOAD = "part[lid] = x[tg * 128 + lid];"
SUM = f"""#include <metal_stdlib>
using namespace metal;
kernel void sum(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                uint lid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                uint tg [[threadgroup_position_in_grid]]) {{
  threadgroup float part[128];
  {LOAD}
  {BARRIER}
  for (uint d = 64; d > 0; d /= 2) {{
    if (lid < d) part[lid] += part[lid + d];
    /*loop*/ {BARRIER}
  }}
  if (lid == 0) y[tg] = part[0];
}}
"""
X = np.arange(512, dtype=np.float32)
WANT = X.reshape(4, 128).sum(1)


def run(source: str, x: np.ndarray = X, **how: Any) -> Report:
    """One run over four threadgroups of 128 threads; errors do not raise."""
    kernel = Library.from_source(source).kernel("sum")
    try:
        return kernel.run([x, np.zeros(4, np.float32)], threadgroups=[4], threads=[128], **how)
    except KernelError as error:
        return error.report


def replaced(old: str, new: str) -> str:
    """The sound kernel with one change."""
    assert SUM.count(old) == 1
    return SUM.replace(old, new)


@pytest.mark.parametrize("mode", ["fast", "checked", "counted"])
def test_sound_kernel_is_silent(mode: str) -> None:
    report = run(SUM, mode=mode)
    np.testing.assert_array_equal(report["y"], WANT)
    assert report.findings == ()


LOOP = f"/*loop*/ {BARRIER}"
DEFECTS = {
    "barrier left out": (LOOP, "", "race in threadgroup memory"),
    "barrier of the wrong memory": (
        LOOP,
        "threadgroup_barrier(mem_flags::mem_device);",
        "race in threadgroup memory",
    ),
    "barrier of the simdgroup only": (
        LOOP,
        "simdgroup_barrier(mem_flags::mem_threadgroup);",
        "race in threadgroup memory",
    ),
    "lockstep taken for granted": (
        LOOP,
        f"if (d > 16) {BARRIER}",
        "race in threadgroup memory within a simdgroup",
    ),
    "barrier in a branch": (LOOP, f"if (lid < 64) {BARRIER}", "divergent threadgroup_barrier"),
    "return before a barrier": (
        "  for (uint",
        "  if (lid >= 64) return;\n  for (uint",
        "divergent threadgroup_barrier",
    ),
    "threadgroup memory never written": (
        LOAD,
        f"if (lid < 100) {LOAD}",
        "uninitialised threadgroup read",
    ),
    "threadgroup index": (
        "part[lid + d]",
        "part[lid + d + 64]",
        "threadgroup access out of bounds",
    ),
    "store past the end": ("y[tg] =", "y[tg + 1] =", "device store out of bounds"),
    "load before the beginning": (
        "x[tg * 128 + lid]",
        "x[int(lid) - 1]",
        "device load out of bounds",
    ),
    "threadgroups store to one place": (
        "y[tg] =",
        "y[0] =",
        "device memory written by two threads",
    ),
    "all lanes store one value": (
        "if (lid == 0) y[tg] =",
        "y[tg] =",
        "device memory written by two threads with the same value",
    ),
    "threadgroups talk to each other": (
        "y[tg] = part[0];",
        "y[tg] = part[0] + (tg > 0 ? y[tg - 1] : 0.0f);",
        "race in device memory",
    ),
    "misaligned vector": (
        "x[tg * 128 + lid]",
        "(*(device const float4*)(x + tg * 96 + lid % 90)).x",
        "undefined behaviour",
    ),
    "division by zero": (
        "y[tg] = part[0];",
        "y[tg] = int(part[0]) / int(lid);",
        "undefined behaviour",
    ),
    "shift too far": ("part[0];", "part[0] + float(1u << (lid + 32));", "undefined behaviour"),
    "index outside a thread's array": (
        LOAD,
        f"float a[4] = {{1, 2, 3, 4}}; y[tg] = a[lid & 7]; {LOAD}",
        "undefined behaviour",
    ),
    "reduction in a branch": (
        LOAD,
        "float v = x[tg * 128 + lid]; if (lane < 20) v = simd_sum(v); part[lid] = v;",
        "divergent simdgroup function",
    ),
    "broadcast from an inactive lane": (
        LOAD,
        "float v = x[tg * 128 + lid]; if (lane < 20) v = simd_broadcast(v, 25); part[lid] = v;",
        "divergent simdgroup function",
    ),
    "store to constant data": (
        "y[tg] =",
        "((device float*)x)[tg] =",
        "store to a read-only buffer",
    ),
    "another thread's variable": (
        LOAD,
        f"threadgroup ulong at[1]; float v = lid; if (lid == 0) at[0] = ulong(&v); {BARRIER}"
        " part[lid] = *(thread float*)at[0];",
        "access to another thread's memory",
    ),
    "shuffle from beyond the simdgroup": (
        LOAD,
        f"{LOAD} float v = simd_shuffle(1.0f, lane + 1); if (lane < 31) part[lid] *= v;",
        "simdgroup function reads a lane that takes no part",
    ),
    "ordered by a simdgroup function only": (
        LOAD,
        f"{LOAD} float v = simd_sum(1.0f); part[lid] = part[lid ^ 1] + v;",
        "threadgroup memory ordered only by a simdgroup function",
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_defect_is_reported(name: str) -> None:
    old, new, kind = DEFECTS[name]
    report = run(replaced(old, new), mode="checked")
    assert kind in {finding.kind for finding in report.findings}
    assert all(finding.where.startswith("source.metal:") for finding in report.findings)


def test_load_past_the_end_is_exact_to_the_byte() -> None:
    assert run(SUM, X[:511], mode="checked").errors[0].kind == "device load out of bounds"


FAULTS = {
    "far store": ("y[tg] =", "y[tg + 100000] =", "an access outside of buffer 1"),
    "far load": ("x[tg * 128", "x[tg * 1280000", "an access outside of buffer 0"),
    "too much threadgroup memory": ("part[128]", "part[8193]", ""),
    "stack overflow": (
        LOAD,
        "volatile float a[100000]; for (uint i = 0; i < 100000; i++) a[i] = lid;"
        " part[lid] = a[lid];",
        "an overflow of the thread's stack",
    ),
    "store to constant data": (
        "y[tg] =",
        "((device float*)x)[tg] =",
        "a store to read-only buffer 0",
    ),
    "near store": ("y[tg] =", "y[int(tg) - 1] =", "a store outside of buffer 1"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fast_mode_faults(name: str) -> None:
    old, new, text = FAULTS[name]
    kernel = Library.from_source(replaced(old, new)).kernel("sum")
    with pytest.raises(KernelError, match=text or "32772 bytes of threadgroup memory with part"):
        kernel.run([X, np.zeros(4, np.float32)], threadgroups=[4], threads=[128])


def test_order_of_threads_shows_a_missing_barrier() -> None:
    buffers = [X, np.zeros(4, np.float32)]
    how: dict[str, Any] = {"threadgroups": [4], "threads": [128]}
    Library.from_source(SUM).kernel("sum").run_in_orders(buffers, **how)
    with pytest.raises(KernelError, match="depends on the order"):
        Library.from_source(replaced(LOOP, "")).kernel("sum").run_in_orders(buffers, **how)


def test_unset_variable_is_nan() -> None:
    source = replaced("y[tg] = part[0];", "{ float a[2]; if (tg < 2) a[1] = 1; y[tg] = a[1]; }")
    y = run(source)["y"]
    np.testing.assert_array_equal(y, [1, 1, np.nan, np.nan])


@pytest.mark.parametrize("memory", ["device", "threadgroup"])
@pytest.mark.parametrize("barrier", ["threadgroup_barrier", "simdgroup_barrier"])
def test_barrier_orders_the_memory_it_names(barrier: str, memory: str) -> None:
    place = "threadgroup float t[64];" if memory == "threadgroup" else "device float* t = y;"
    kernels = "".join(
        f"kernel void swap_{flags}(device float* y [[buffer(0)]],"
        f" uint i [[thread_position_in_grid]]) {{ {place} t[i] = i;"
        f" {barrier}(mem_flags::mem_{flags}); float v = t[i ^ 1];"
        f" {barrier}(mem_flags::mem_{flags}); t[i] = v; y[i] = t[i]; }}\n"
        for flags in ("none", "device", "threadgroup")
    )
    library = Library.from_source(f"#include <metal_stdlib>\nusing namespace metal;\n{kernels}")
    for flags in ("none", "device", "threadgroup"):
        kernel = library.kernel(f"swap_{flags}")
        buffers = [np.zeros(64, np.float32)]
        if flags == memory:
            y = kernel.run(buffers, grid=[64], threads=[64], mode="checked")["y"]
            np.testing.assert_array_equal(y, np.arange(64) ^ 1)
        else:
            with pytest.raises(KernelError, match=f"race in {memory} memory"):
                kernel.run(buffers, grid=[64], threads=[64], mode="checked")
