"""What MSL means, against numpy: simdgroup functions, grids, matrices, atomics, types."""

from __future__ import annotations

import numpy as np
import pytest
from metal_runner import KernelError, Library, Mode, SourceError, from_bfloat, to_bfloat

LANE = np.arange(32)
X = np.random.default_rng(0).standard_normal(96).astype(np.float32)
ROWS = X.reshape(-1, 32)
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def from_lanes(source: np.ndarray) -> np.ndarray:
    return ROWS[:, source]


def repeated(column: np.ndarray) -> np.ndarray:
    return np.repeat(column[:, None], 32, 1)


def butterfly(width: int) -> np.ndarray:
    values = X.reshape(-1, width)
    for bit in range(width.bit_length() - 1):
        values = values + values[:, np.arange(width) ^ (1 << bit)]
    return values


SUMS = np.cumsum(ROWS, 1, dtype=np.float32)
FUNCTIONS = {
    "simd_sum(v)": butterfly(32),
    "quad_sum(v)": butterfly(4),
    "simd_max(v)": repeated(ROWS.max(1)),
    "simd_min(v)": repeated(ROWS.min(1)),
    "simd_shuffle(v, (lane * 5) % 32)": from_lanes(LANE * 5 % 32),
    "simd_broadcast(v, 7)": repeated(ROWS[:, 7]),
    "simd_broadcast_first(v)": repeated(ROWS[:, 0]),
    "simd_shuffle_xor(v, 5)": from_lanes(LANE ^ 5),
    "quad_shuffle_xor(v, 1)": from_lanes(LANE ^ 1),
    "quad_broadcast(v, 2)": from_lanes(LANE // 4 * 4 + 2),
    "simd_shuffle_down(v, 3)": from_lanes(np.where(LANE < 29, LANE + 3, LANE)),
    "simd_shuffle_up(v, 3)": from_lanes(np.where(LANE >= 3, LANE - 3, LANE)),
    "simd_shuffle_rotate_down(v, 3)": from_lanes((LANE + 3) % 32),
    "simd_shuffle_rotate_up(v, 3)": from_lanes((LANE - 3) % 32),
    "simd_shuffle_and_fill_down(v, -v, 3)": from_lanes((LANE + 3) % 32)
    * np.where(LANE < 29, 1, -1),
    "simd_shuffle_and_fill_up(v, -v, 3)": from_lanes((LANE - 3) % 32) * np.where(LANE >= 3, 1, -1),
    "simd_shuffle_and_fill_down(v, -v, 3, 8)": from_lanes(LANE // 8 * 8 + (LANE + 3) % 8)
    * np.where(LANE % 8 < 5, 1, -1),
    "simd_prefix_inclusive_sum(v)": SUMS,
    "simd_prefix_exclusive_sum(v)": np.pad(SUMS, ((0, 0), (1, 0)))[:, :-1],
    "simd_prefix_inclusive_product(v)": np.cumprod(ROWS, 1, dtype=np.float32),
    "float(simd_is_first())": np.tile(LANE == 0, (3, 1)),
    "float(simd_any(lane == 3))": np.ones((3, 32)),
    "float(simd_all(lane < 31))": np.zeros((3, 32)),
    "float(popcount(uint(simd_vote::vote_t(simd_ballot(lane % 3 == 0)))))": np.full((3, 32), 11),
}
KERNELS = HEAD + "\n".join(
    f"kernel void f{i}(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],"
    " uint i [[thread_position_in_grid]], ushort lane [[thread_index_in_simdgroup]])"
    f" {{ float v = x[i]; y[i] = {expression}; }}"
    for i, expression in enumerate(FUNCTIONS)
)


@pytest.mark.parametrize("mode", ["fast", "checked"])
def test_simdgroup_functions(mode: Mode) -> None:
    library = Library.from_source(KERNELS)
    for i, (expression, want) in enumerate(FUNCTIONS.items()):
        report = library.kernel(f"f{i}").run_in_orders(
            [X, np.zeros_like(X)], grid=[96], threads=[96], mode=mode, orders=3
        )
        np.testing.assert_array_equal(report["y"], want.reshape(-1), expression)
        assert report.findings == ()


def test_simdgroup_that_is_not_full() -> None:
    kernel = Library.from_source(KERNELS).kernel("f0")
    y = kernel.run([X[:40], np.zeros(40, np.float32)], grid=[40], threads=[40])["y"]
    np.testing.assert_allclose(y[32:], X[32:40].sum(), rtol=1e-5)


MATRICES = f"""{HEAD}
kernel void multiply(device const half* a [[buffer(0)]], device const half* b [[buffer(1)]],
                     device float* c [[buffer(2)]], device half* t [[buffer(3)]]) {{
  simdgroup_half8x8 A, B;
  simdgroup_float8x8 C, D(1.0f);
  simdgroup_load(A, a, 16, ulong2(8, 1));
  simdgroup_load(B, b, 8, 0, true);
  simdgroup_multiply_accumulate(C, A, B, D);
  simdgroup_store(C, c, 8);
  B.thread_elements() *= half(2);
  simdgroup_store(B, t, 12, ulong2(4, 0));
}}
"""


def test_simdgroup_matrices() -> None:
    rng = np.random.default_rng(1)
    a = rng.standard_normal((9, 16)).astype(np.float16)
    b = rng.standard_normal((8, 8)).astype(np.float16)
    buffers = [a, b, np.zeros((8, 8), np.float32), np.zeros((8, 12), np.float16)]
    report = Library.from_source(MATRICES).kernel("multiply").run(buffers, grid=[32], threads=[32])
    want = a[1:, 8:].astype(np.float64) @ b.T.astype(np.float64) + np.eye(8)
    np.testing.assert_allclose(report["c"], want, atol=1e-6)
    np.testing.assert_array_equal(report["t"], np.pad(2 * b.T, ((0, 0), (4, 0))))


TYPES = f"""{HEAD}
kernel void types(device const half* h [[buffer(0)]], device const bfloat* b [[buffer(1)]],
                  device float* y [[buffer(2)]], device half* oh [[buffer(3)]],
                  device bfloat* ob [[buffer(4)]], uint i [[thread_position_in_grid]]) {{
  half a = h[i];
  bfloat c = b[i];
  oh[i] = a * a * half(3) + a;
  ob[i] = c * c + c;
  y[i] = a * 1.1 + c / 3;
}}
kernel void vectors(device const float4* x [[buffer(0)]], device float4* y [[buffer(1)]],
                    device packed_half3* p [[buffer(2)]], uint i [[thread_position_in_grid]]) {{
  float4 a = x[i];
  a.xy = a.wz;
  a.zw += 1;
  float3 b(a.y, a.xw);
  y[i] = select(a, float4(b, 7), a > 0.0f).wzyx;
  p[i] = packed_half3(half3(as_type<float4>(as_type<uint4>(a)).xyz));
}}
kernel void tiny(device float* y [[buffer(0)]]) {{ y[0] *= 0.5f; }}
kernel void integers(device const uint* x [[buffer(0)]], device uint4* y [[buffer(1)]],
                     device int* z [[buffer(2)]], uint i [[thread_position_in_grid]]) {{
  uint v = x[i];
  y[i] = uint4(extract_bits(v, 3, 7), reverse_bits(v), rotate(v, 5u), popcount(v));
  z[i] = clz(v) + 100 * ctz(v) + 10000 * int(mulhi(v, 1u << 31) == v >> 1);
}}
"""


@pytest.mark.parametrize("mode", ["fast", "checked"])
def test_half_and_bfloat_round_each_operation(mode: Mode) -> None:
    h, b = X.astype(np.float16), to_bfloat(X)
    f = from_bfloat(b)
    buffers = [h, b, np.zeros_like(X), np.zeros_like(h), np.zeros_like(b)]
    kernel = Library.from_source(TYPES).kernel("types")
    report = kernel.run(buffers, grid=[96], threads=[32], mode=mode)
    np.testing.assert_array_equal(report["oh"], h * h * np.float16(3) + h)
    square = from_bfloat(to_bfloat(f * f))
    np.testing.assert_array_equal(report["ob"], to_bfloat(square + f))
    third = from_bfloat(to_bfloat(f / np.float32(3)))
    np.testing.assert_array_equal(report["y"], h.astype(np.float32) * np.float32(1.1) + third)


@pytest.mark.parametrize("mode", ["fast", "checked"])
def test_vectors_and_swizzles(mode: Mode) -> None:
    x = X.reshape(-1, 4)
    buffers = [x, np.zeros_like(x), np.zeros((24, 3), np.float16)]
    report = Library.from_source(TYPES).kernel("vectors").run(
        buffers, grid=[24], threads=[24], mode=mode
    )  # fmt: skip
    a = np.stack([x[:, 3], x[:, 2], x[:, 2] + 1, x[:, 3] + 1], 1)
    b = np.stack([a[:, 1], a[:, 0], a[:, 3], np.full(24, 7, np.float32)], 1)
    np.testing.assert_array_equal(report["y"], np.where(a > 0, b, a)[:, ::-1])
    np.testing.assert_array_equal(report["p"], a[:, :3].astype(np.float16))


def test_integer_functions() -> None:
    x = np.array([0x12345678, 0x80000010, 1], np.uint32)
    buffers = [x, np.zeros((3, 4), np.uint32), np.zeros(3, np.int32)]
    report = Library.from_source(TYPES).kernel("integers").run(buffers, grid=[3], threads=[3])
    for v, y, z in zip(x.tolist(), report["y"].tolist(), report["z"].tolist(), strict=True):
        bits = f"{v:032b}"
        rotated = ((v << 5) | (v >> 27)) & 0xFFFFFFFF
        assert y == [(v >> 3) & 127, int(bits[::-1], 2), rotated, bits.count("1")]
        zeros_after = len(bits) - len(bits.rstrip("0"))
        assert z == len(bits) - len(bits.lstrip("0")) + 100 * zeros_after + 10000


def test_denormals_can_be_flushed() -> None:
    kernel = Library.from_source(TYPES).kernel("tiny")
    y = np.array([1.2e-38], np.float32)
    kept = kernel.run([y], grid=[1], threads=[1])["y"]
    flushed = kernel.run([y], grid=[1], threads=[1], flush_denormals=True)["y"]
    assert kept[0] == y[0] / 2 > 0 == flushed[0]


GRIDS = f"""{HEAD}
kernel void place(device uint* y [[buffer(0)]], uint3 p [[thread_position_in_grid]],
                  uint3 n [[threads_per_grid]], ushort3 t [[threads_per_threadgroup]],
                  uint2 g [[threadgroup_position_in_grid]],
                  uint3 l [[thread_position_in_threadgroup]],
                  uint k [[thread_index_in_threadgroup]]) {{
  y[(p.z * n.y + p.y) * n.x + p.x] = (g.x << 24) | (t.x << 16) | (l.y << 8) | k;
}}
kernel void reverse(device const float* x, device float* y, threadgroup float* s [[threadgroup(0)]],
                    uint l [[thread_index_in_threadgroup]], uint n [[threads_per_threadgroup]]) {{
  s[l] = x[l];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[l] = s[n - 1 - l];
}}
kernel void histogram(device const uint* x [[buffer(0)]], device atomic_uint* h [[buffer(1)]],
                      device atomic<float>* f [[buffer(2)]], uint i [[thread_position_in_grid]]) {{
  atomic_fetch_add_explicit(&h[x[i] % 4], 1u, memory_order_relaxed);
  atomic_fetch_add_explicit(f, 0.5f, memory_order_relaxed);
}}
"""


def test_grid_of_threads_has_smaller_threadgroups_at_its_end() -> None:
    kernel = Library.from_source(GRIDS).kernel("place")
    y = kernel.run([np.zeros((2, 3, 10), np.uint32)], grid=[10, 3, 2], threads=[4, 2, 1])["y"]
    assert y[1, 2, 9] == (2 << 24) | (2 << 16) | (0 << 8) | 1
    assert y[0, 1, 6] == (1 << 24) | (4 << 16) | (1 << 8) | 6


def test_threadgroup_argument() -> None:
    kernel = Library.from_source(GRIDS).kernel("reverse")
    buffers = {"x": X[:64], "y": np.zeros(64, np.float32)}
    report = kernel.run(
        buffers, threadgroups=[1], threads=[64], threadgroup_bytes=[256], mode="checked"
    )
    np.testing.assert_array_equal(report["y"], X[63::-1])
    assert report.counters.threadgroup_bytes == 256


@pytest.mark.parametrize("mode", ["fast", "checked"])
def test_atomics(mode: Mode) -> None:
    x = np.random.default_rng(3).integers(0, 100, 200).astype(np.uint32)
    buffers = [x, np.zeros(4, np.uint32), np.zeros(1, np.float32)]
    kernel = Library.from_source(GRIDS).kernel("histogram")
    report = kernel.run_in_orders(buffers, grid=[200], threads=[64], mode=mode)
    np.testing.assert_array_equal(report["h"], np.bincount(x % 4, minlength=4))
    assert report["f"][0] == 100


CONSTANTS = f"""{HEAD}
constant bool flag [[function_constant(0)]];
constant int extra [[function_constant(1)]];
constant bool has_extra = is_function_constant_defined(extra);
template <typename T, int N>
kernel void fill(device T* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {{
  y[i] = T(N + (flag ? 10 : 0) + (has_extra ? extra : 0));
}}
template [[host_name("fill_float")]] [[kernel]] decltype(fill<float, 3>) fill<float, 3>;
template [[host_name("fill_half")]] [[kernel]] void fill<half, 4>(device half*, uint);
"""


def test_function_constants_and_instantiations() -> None:
    library = Library.from_source(CONSTANTS)
    assert library.kernel_names == ["fill_float", "fill_half"]

    def filled(name: str, kind: type, **constants: bool | int) -> float:
        kernel = library.kernel(name, constants=constants)
        return float(kernel.run([np.zeros(1, kind)], grid=[1], threads=[1])["y"][0])

    assert filled("fill_float", np.float32) == 3
    assert filled("fill_half", np.float16, flag=True) == 14
    assert filled("fill_half", np.float16, flag=True, extra=-2) == 12


def test_refusals() -> None:
    library = Library.from_source(CONSTANTS)
    with pytest.raises(SourceError, match="has no kernel fill, but fill_float, fill_half"):
        library.kernel("fill")
    with pytest.raises(SourceError, match="no function constants size"):
        library.kernel("fill_half", constants={"size": 3})
    with pytest.raises(SourceError, match=r"source\.metal:3:.*undeclared"):
        Library.from_source(HEAD + "kernel void f(device int* y) { y[0] = z; }").kernel("f").run(
            [np.zeros(1, np.int32)], grid=[1], threads=[1]
        )
    with pytest.raises(SourceError, match=r"source\.metal:3: parameter n has neither"):
        Library.from_source(HEAD + "kernel void f(int n) {}").kernel("f")
    plain = 'kernel void f() {}\ntemplate [[host_name("f")]] [[kernel]] decltype(f) f;'
    with pytest.raises(SourceError, match=r"source\.metal:4: f is instantiated without arguments"):
        Library.from_source(HEAD + plain).kernel("f")
    kernel = Library.from_source(GRIDS).kernel("reverse")
    with pytest.raises(TypeError, match="x is float, not float64"):
        kernel.run({"x": np.zeros(3)}, grid=[1], threads=[1])
    with pytest.raises(TypeError, match="reverse has no buffers z"):
        kernel.run({"z": X}, grid=[1], threads=[1])
    with pytest.raises(KernelError, match="1025 threads in a threadgroup"):
        kernel.run({"x": X}, threadgroups=[1], threads=[1025])
