"""Counters, on kernels whose cost is known by hand."""

from __future__ import annotations

import numpy as np
from metal_runner import Counters, Library

N = 1024
ARGUMENTS = (
    "device const {T}* x [[buffer(0)]], device {T}* y [[buffer(1)]],"
    " constant float& a [[buffer(2)]], uint i [[thread_position_in_grid]]"
)
BODIES = {
    "axpy": ("float", "y[i] = a * x[i] + y[i];"),
    "wide": ("float4", "y[i] = x[i];"),
    "scaled": ("half4", "y[i] = x[i] * half(2);"),
    "strided": ("float", "y[i] = x[(i * 32) % 1024];"),
    "run": (
        "half",
        "half s = 0; for (uint k = 0; k < 8; k++) s += x[8 * (i % 64) + k]; y[i] = s;",
    ),
    "converted": ("float", "y[i] = float(as_type<int>(x[i]) * 3 >> 2) * exp(a);"),
    "shared": (
        "float",
        "threadgroup float t[32]; t[i % 32] = simd_sum(x[i]);"
        " simdgroup_barrier(mem_flags::mem_threadgroup); y[i] = t[(i + 1) % 32] + simd_max(x[i]);"
        " threadgroup_barrier(mem_flags::mem_threadgroup);",
    ),
}
SOURCE = "#include <metal_stdlib>\nusing namespace metal;\n" + "\n".join(
    f"kernel void {name}({ARGUMENTS.format(T=element)}) {{ {body} }}"
    for name, (element, body) in BODIES.items()
)


def counted(name: str, dtype: type = np.float32, size: int = N, threads: int = 128) -> Counters:
    kernel = Library.from_source(SOURCE).kernel(name)
    buffers = [np.ones(size, dtype), np.ones(size, dtype), 2.0]
    return kernel.run(buffers, grid=[N], threads=[threads], mode="counted").counters


def test_bytes_and_fused_products() -> None:
    c = counted("axpy")
    assert dict(c.spaces["device"].loads) == {"4": 2 * N}
    assert dict(c.spaces["device"].stores) == {"4": N}
    assert c.count("fma.float") == c.count("fma") == N
    assert c.count("fadd", "fmul") == 0
    x, y = c.buffers["x"], c.buffers["y"]
    assert (x.bytes_loaded, x.bytes_touched, x.lines) == (4 * N, 4 * N, N // 32)
    assert (y.bytes_loaded, y.bytes_stored, y.bytes_touched) == (4 * N, 4 * N, 4 * N)
    constant = c.buffers["a"]
    assert c.compulsory_bytes == 8 * N + constant.bytes_touched
    assert c.request_ratio == (12 * N + constant.bytes_loaded) / c.compulsory_bytes
    assert c.lines == 2 * N // 32 + 1
    of_x = [s for s in c.sites if s.space == "device" and not s.store]
    assert all(s.where == "source.metal:3" for s in of_x)
    assert all(s.lines == s.simd_accesses and s.lanes == 32 * s.simd_accesses for s in of_x)


def test_vectors_are_one_access() -> None:
    c = counted("wide", size=4 * N)
    assert dict(c.spaces["device"].loads) == dict(c.spaces["device"].stores) == {"16": N}
    assert [s.lines / s.simd_accesses for s in c.sites if not s.store] == [4]
    c = counted("scaled", np.float16, size=4 * N)
    assert dict(c.spaces["device"].loads) == {"8": N}
    assert c.count("fmul.half") == 4 * N


def test_lanes_far_apart_touch_a_line_each() -> None:
    (load,) = (s for s in counted("strided").sites if not s.store)
    assert load.lines == 32 * load.simd_accesses


def test_neighbouring_loads_join() -> None:
    c = counted("run", np.float16)
    assert dict(c.spaces["device"].loads) == {"2": 8 * N}
    assert c.spaces["device"].joined_loads == 2 * N
    assert c.count("fadd.half") in (7 * N, 8 * N)
    assert c.buffers["x"].bytes_touched == 2 * 512


def test_issue_cost_weighs_conversions_shifts_and_integer_products() -> None:
    c = counted("converted")
    assert [c.count(kind) for kind in ("itof", "shift", "special")] == [N, N, N]
    assert c.count("imul") + c.count("iadd") >= N
    cheap = sum(c.instructions.values()) - c.count("itof", "shift", "imul", "special")
    assert c.issue_cost == cheap + 4 * c.count("itof", "shift", "imul", "special")


def test_simdgroup_functions_barriers_and_threadgroup_memory() -> None:
    c = counted("shared", threads=32)
    assert dict(c.simd_functions) == {"simd_max": N // 32, "simd_sum": N // 32}
    assert c.count("simd.reduce") == 2 * N
    assert (c.simdgroup_barriers, c.threadgroup_barriers) == (N // 32, N // 32)
    assert c.count("barrier") == 2 * N
    assert dict(c.spaces["threadgroup"].loads) == {"4": N}
    assert c.threadgroup_bytes == 128
    assert (c.threads, c.simdgroups, c.threadgroups) == (N, N // 32, N // 32)
