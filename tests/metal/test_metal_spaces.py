"""The address space check refuses what Apple's compiler would, and nothing else."""

from __future__ import annotations

import pytest
from metal_runner import Library, stock

HEAD = """#include <metal_stdlib>
using namespace metal;
constant float table[4] = {1, 2, 3, 4};
struct P { uint n; float s; };
struct Sum { float v; void add(float x) thread { v += x; } float get() const { return v; } };
template <typename T> T sum2(device const T* a, threadgroup T* b) { return a[0] + b[0]; }
inline float first(constant P& p) { return p.s; }
inline void put(thread float& r, float v) { r = v; }
template <typename T> inline void copy(device const T* a, threadgroup T* b, uint n) {
  for (uint i = 0; i < n; i++) b[i] = a[i];
}
kernel void f(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
              constant P& p [[buffer(2)]], device const float4* v [[buffer(3)]],
              device P* ps [[buffer(4)]], uint i [[thread_position_in_grid]]) {
  threadgroup float s[32];
  threadgroup half h[8][4];
  """
SOUND = [
    "s[i] = x[i]; y[i] = sum2(x, s) + first(p) + table[i & 3];",
    "float r[4]; put(r[0], x[i]); y[i] = r[0];",
    "copy(x, s, 4); copy(x, s + 4, 4); threadgroup_barrier(mem_flags::mem_threadgroup);"
    " y[i] = simd_sum(s[i]);",
    "auto q = x + 4; auto t = &s[3]; y[i] = q[0] + *t; const device float* z = q; y[i] += z[1];",
    "float4 a = v[i]; a.xy = a.zw; y[i] = dot(a, v[i + 1]) + a[2] + v[i].xz.y;"
    " *(device float4*)(y + 4 * i) = a;",
    "P l = p; P m = ps[i]; ps[i] = l; Sum a{0}; a.add(l.s); y[i] = l.s + m.s + a.get();",
    "simdgroup_float8x8 a, b; simdgroup_load(a, x, 8); simdgroup_load(b, s, 4);"
    " simdgroup_multiply(a, a, b); simdgroup_store(a, y, 8);",
    "h[1][2] = half(x[i]); threadgroup half* hp = &h[0][0]; y[i] = float(hp[6]);",
    "const device uchar* b = (const device uchar*)x; uint u = *(const device uint*)(b + 4);"
    " y[i] = b[3] + u;",
    "bfloat b = bfloat(x[i]); y[i] = b * 2.0f + float(as_type<half>(ushort(3)));"
    " y[i] += clamp(x[i], 0.0f, 1.0f) * exp(x[i]) * 1.5;",
    "float e[2]; int k; e[0] = frexp(x[i], k); y[i] = e[0] + k;",
]
REFUSED = {
    "device where threadgroup is wanted": "y[i] = sum2(x, x);",
    "threadgroup where device is wanted": "y[i] = sum2(s, s);",
    "threadgroup as a device pointer": "device float* q = s; y[i] = q[0];",
    "constant where device is wanted": "const device float* q = &p.s; y[i] = *q;",
    "device where constant is wanted": "y[i] = first(ps[0]);",
    "device reference as thread reference": "put(y[i], 1.0f);",
    "cast between spaces": "y[i] = *(threadgroup float*)x;",
    "thread method of a device object": "device Sum* a = (device Sum*)y; a->add(1.0f);",
    "store through const device": "device const float* q = y; q[0] = 1;",
    "store to constant": "p.s = 1;",
    "float to bfloat without a cast": "bfloat b = x[i]; y[i] = b;",
    "double": "double d = x[i]; y[i] = d;",
    "vector types mixed": "float4 a = v[i]; int4 b = int4(1); a = a + b; y[i] = a.x;",
    "simd_sum of 64 bits": "y[i] = simd_sum(long(i));",
    "simdgroup_load of another type": "simdgroup_half8x8 a; simdgroup_load(a, x, 8);",
    "thread variable kept as device": "float t = 1; device float* q = &t; y[i] = *q;",
    "undeclared name": "y[i] = z;",
}


def errors(text: str) -> list[str]:
    return Library.from_source(text).address_space_errors()


def test_accepts_sound_code() -> None:
    for body in SOUND:
        assert errors(f"{HEAD}{body}\n}}\n") == [], body


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    told = errors(f"{HEAD}{REFUSED[name]}\n}}\n")
    assert any("error:" in line for line in told), told
    assert any(line.startswith("source.metal:17:") for line in told), told


def test_refuses_a_parameter_without_space() -> None:
    told = errors(HEAD.replace("thread float& r", "float& r") + "}\n")
    assert told == ["source.metal:8: error: no address space in 'float & r'"]


def test_refuses_a_threadgroup_variable_outside_of_kernels() -> None:
    inside = "{ threadgroup float q[4]; q[0] = v; r = q[0]; }"
    told = errors(HEAD.replace("{ r = v; }", inside) + "}\n")
    assert told == ["source.metal:8: error: threadgroup variable q outside of a kernel"]


def test_accepts_mlx() -> None:
    constants = dict.fromkeys(("align_M", "align_N", "align_K"), True)
    assert stock.quantized_library("half", 3, 64).address_space_errors(constants) == []
