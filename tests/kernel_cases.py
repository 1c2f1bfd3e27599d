"""Cases for the native matmul, GatedDeltaNet and attention kernels, checked against numpy in fp64.

Run as a script it prints the cases that failed as JSON: the tests start it once per instruction
set, as the choice of kernels is made once per process, and with MIXBIT_BACKEND=metal on the GPU.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from delta_net_fp64 import delta_net, interleaved_order
from mixbit import ops

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
# Half a unit in the last place of the output, and for float32 what sums of a thousand terms lose.
TOLERANCE = {"float32": 1e-6, "float16": 5e-4, "bfloat16": 4e-3}

FORMATS = [("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
FORMATS += [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]


def double(a: mx.array) -> np.ndarray:
    """The values of ``a`` in fp64."""
    return np.array(a.astype(mx.float32)).astype(np.float64)


def relative_error(got: mx.array, want: np.ndarray) -> float:
    """Largest error against the largest value."""
    return float(np.abs(double(got) - want).max() / np.abs(want).max())


def codes_of(packed: np.ndarray, bits: int) -> np.ndarray:
    """Codes of rows that are each one little-endian bit stream."""
    stream = np.unpackbits(packed.view(np.uint8), axis=-1, bitorder="little")
    weights = 1 << np.arange(bits)
    return stream.reshape(*packed.shape[:-1], -1, bits) @ weights


def unpacked(weight: list[mx.array], bits: int, group: int, mode: str) -> np.ndarray:
    """Values of a packed weight in fp64, decoded here and not by MLX."""
    codes = codes_of(np.array(weight[0]), bits)
    if mode == "affine":
        scales, biases = (np.repeat(double(a), group, axis=-1) for a in weight[1:])
        return codes * scales + biases
    scales = np.array(weight[1]).astype(np.int64)
    factor = _e4m3(scales) if mode == "nvfp4" else 2.0 ** (scales - 127)
    values = _e4m3(codes) if mode == "mxfp8" else _e2m1(codes)
    return values * np.repeat(factor, group, axis=-1)


def _minifloat(codes: np.ndarray, exponent_bits: int, mantissa_bits: int) -> np.ndarray:
    mantissa = codes & ((1 << mantissa_bits) - 1)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    sign = np.where(codes >> (mantissa_bits + exponent_bits), -1.0, 1.0)
    bias = (1 << (exponent_bits - 1)) - 1
    fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
    return sign * fraction * 2.0 ** (np.maximum(exponent, 1) - bias)


def _e4m3(codes: np.ndarray) -> np.ndarray:
    return _minifloat(codes, 4, 3)


def _e2m1(codes: np.ndarray) -> np.ndarray:
    return _minifloat(codes, 2, 1)


@dataclass(frozen=True)
class MatmulCase:
    """One product: M rows, K inputs, N outputs; ``mode`` "dense" ignores bits and group."""

    mode: str
    bits: int
    group: int
    dtype: str
    M: int
    K: int
    N: int
    bias: bool

    def run(self) -> float:
        """Relative error of the native product."""
        dtype = DTYPES[self.dtype]
        rng = np.random.default_rng([self.bits, self.group, self.M, self.K, self.N])

        def random(*shape: int) -> mx.array:
            return mx.array(rng.standard_normal(shape, dtype=np.float32)).astype(dtype)

        x, w = random(self.M, self.K), random(self.N, self.K)
        bias = random(self.N) if self.bias else None
        if self.mode == "dense":
            y, values = ops.linear(x, w, bias=bias), double(w)
        else:
            packing = {"group_size": self.group, "bits": self.bits, "mode": self.mode}
            if self.K % 32:  # mx.quantize refuses half a block, checkpoints may hold one
                codes = rng.integers(0, 1 << 32, (self.N, self.K // 8), dtype=np.uint32)
                scales = rng.integers(0x20, 0x50, (self.N, self.K // 16), dtype=np.uint8)
                weight = [mx.array(codes), mx.array(scales)]
            else:
                weight = list(mx.quantize(w, **packing))
            y = ops.quantized_matmul(x, *weight, bias=bias, **packing)
            values = unpacked(weight, self.bits, self.group, self.mode)
        want = double(x) @ values.T + (0 if bias is None else double(bias))
        return relative_error(y, want)


def matmul_cases() -> Iterator[MatmulCase]:
    """Every format and dtype over rows around the kernels' tile sizes and odd widths."""
    shapes = [(1, 384, 13), (2, 1152, 5), (3, 128, 1), (4, 640, 12), (5, 384, 25), (131, 128, 14)]
    for mode, bits, group in FORMATS:
        for dtype in DTYPES:
            for index, (M, K, N) in enumerate(shapes):
                yield MatmulCase(mode, bits, group, dtype, M, K, N, bias=index % 2 == 0)
    for K in (16, 48, 336):  # half a block at the end
        for M in (1, 7):
            yield MatmulCase("nvfp4", 4, 16, "bfloat16", M, K, 9, bias=False)
    for dtype in DTYPES:
        for K in (1, 7, 31, 32, 33, 515, 1030):
            for M in (1, 3, 6):
                yield MatmulCase("dense", 0, 0, dtype, M, K, 11, bias=M == 3)


def delta_rule(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    g: np.ndarray,
    beta: np.ndarray,
    state: np.ndarray | None = None,
    mask: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The gated delta rule in fp64, written as its definition."""
    B, T, Hv, Dv = v.shape
    group = Hv // q.shape[2]
    S = np.zeros((B, Hv, Dv, q.shape[3])) if state is None else state.astype(np.float64)
    y = np.zeros(v.shape)
    for b in range(B):
        for h in range(Hv):
            for t in range(T):
                if mask is not None and not mask[b, t]:
                    continue
                key = k[b, t, h // group]
                decayed = g[b, t, h] * S[b, h]
                change = beta[b, t, h] * (v[b, t, h] - decayed @ key)
                S[b, h] = decayed + np.outer(change, key)
                y[b, t, h] = S[b, h] @ q[b, t, h // group]
    return y, S


@dataclass(frozen=True)
class DeltaCase:
    """One run of the gated delta rule."""

    B: int
    T: int
    Hk: int
    Hv: int
    Dk: int
    Dv: int
    dtype: str = "float32"
    state: bool = False
    mask: str = "none"

    def run(self) -> tuple[float, float]:
        """Relative errors of the output and of the state."""
        rng = np.random.default_rng([self.B, self.T, self.Hk, self.Hv, self.Dk, self.Dv])
        dtype = DTYPES[self.dtype]

        def unit(*shape: int) -> mx.array:
            a = rng.standard_normal(shape)
            return mx.array((a / np.linalg.norm(a, axis=-1, keepdims=True)).astype(np.float32))

        q = unit(self.B, self.T, self.Hk, self.Dk).astype(dtype)
        k = unit(self.B, self.T, self.Hk, self.Dk).astype(dtype)
        v = mx.array(rng.standard_normal((self.B, self.T, self.Hv, self.Dv), np.float32))
        v = v.astype(dtype)
        g = mx.array(rng.uniform(0.9, 1, (self.B, self.T, self.Hv)).astype(np.float32))
        beta = mx.array(rng.uniform(0, 1, (self.B, self.T, self.Hv)).astype(np.float32))
        shape = (self.B, self.Hv, self.Dv, self.Dk)
        state = mx.array(rng.standard_normal(shape, np.float32)) if self.state else None
        steps = np.arange(self.T) + np.zeros((self.B, 1), int)
        row = np.arange(self.B)[:, None]
        masks = {"none": None, "left": steps > row, "right": steps < self.T - 1 - row}
        mask = masks[self.mask]
        y, last = ops.gated_delta(q, k, v, g, beta, state, None if mask is None else mx.array(mask))
        want_y, want_state = delta_rule(
            *(double(a) for a in (q, k, v, g, beta)),
            None if state is None else double(state),
            mask,
        )
        return relative_error(y, want_y), relative_error(last, want_state)


def delta_cases() -> Iterator[DeltaCase]:
    """Head counts, widths that fill no vector, lengths, masks and dtypes."""
    for Hk, Hv in ((2, 4), (1, 3), (3, 3)):
        for Dk, Dv in ((64, 64), (48, 32), (30, 17), (5, 3), (128, 128)):
            yield DeltaCase(2, 9, Hk, Hv, Dk, Dv)
            yield DeltaCase(1, 1, Hk, Hv, Dk, Dv, state=True)
    for mask in ("left", "right"):
        for state in (False, True):
            yield DeltaCase(3, 7, 2, 4, 32, 40, state=state, mask=mask)
    for dtype in ("float16", "bfloat16"):
        yield DeltaCase(2, 20, 2, 6, 64, 64, dtype=dtype, state=True)
    yield DeltaCase(1, 200, 1, 2, 128, 128, state=True)


def interleaved(inputs: dict[str, Any], Hk: int, Dk: int) -> dict[str, Any]:
    """``inputs`` of ``ops.delta_net`` as qwen3_next's projections give them."""
    qkv, z, a, b = (inputs[name] for name in ("qkv", "z", "a", "b"))
    Hv = a.shape[-1]
    channels, gates = interleaved_order(Hk, Hv, Dk, z.shape[-1] // Hv)
    qkvz = mx.concatenate([qkv, z], axis=-1)[..., mx.array(channels)]
    ba = mx.concatenate([a, b], axis=-1)[..., mx.array(gates)]
    return inputs | {"qkv": qkvz, "z": None, "a": ba, "b": None}


@dataclass(frozen=True)
class DeltaNetCase:
    """GatedDeltaNet between its projections, everything of one type but the gates and states."""

    T: int
    Hk: int
    Hv: int
    Dk: int
    Dv: int
    dtype: str = "float32"
    masked: bool = False
    keep_steps: bool = False
    interleaved: bool = False

    def run(self) -> tuple[float, float]:
        """Relative errors of the output and of the state."""
        B, T, Hv = 2, self.T, self.Hv
        C = 2 * self.Hk * self.Dk + Hv * self.Dv
        rng = np.random.default_rng([T, self.Hk, Hv, self.Dk, self.Dv])

        def noise(*shape: int, dtype: str = self.dtype) -> mx.array:
            return mx.array(rng.standard_normal(shape, np.float32)).astype(DTYPES[dtype])

        given = {
            "qkv": noise(B, T, C),
            "z": noise(B, T, Hv * self.Dv),
            "a": noise(B, T, Hv, dtype="float32"),
            "b": noise(B, T, Hv, dtype="float32"),
            "conv_weight": noise(C, 4, 1),
            "A_log": noise(Hv, dtype="float32") - 2,
            "dt_bias": noise(Hv),
            "norm_weight": noise(self.Dv),
            "conv_state": noise(B, 3, C),
            "state": noise(B, Hv, self.Dv, self.Dk, dtype="float32"),
        }
        rest = {"num_k_heads": self.Hk, "keep_steps": self.keep_steps}
        mask = rng.random((B, T)) < 0.7 if self.masked else None
        taken = interleaved(given, self.Hk, self.Dk) if self.interleaved else given
        y, _, state = ops.delta_net(
            **taken, **rest, eps=1e-6, mask=None if mask is None else mx.array(mask)
        )
        want_y, _, want_state = delta_net(
            **{name: double(a) for name, a in given.items()}, **rest, mask=mask
        )
        return relative_error(y, want_y), relative_error(state, want_state)


def delta_net_cases() -> Iterator[DeltaNetCase]:
    """Decoding, drafts and prompts, by every kernel of a GPU."""
    yield DeltaNetCase(1, 2, 4, 128, 128, "bfloat16")
    yield DeltaNetCase(7, 1, 3, 64, 128, masked=True, keep_steps=True)
    yield DeltaNetCase(16, 2, 2, 30, 17, "float16")
    yield DeltaNetCase(70, 1, 2, 128, 128)
    yield DeltaNetCase(33, 2, 4, 48, 64, "bfloat16", masked=True)
    yield DeltaNetCase(20, 1, 2, 50, 33, masked=True)
    yield DeltaNetCase(1, 2, 6, 64, 32, "bfloat16", interleaved=True)
    yield DeltaNetCase(21, 2, 4, 32, 16, masked=True, interleaved=True)


def softmax_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, mask: np.ndarray | None
) -> np.ndarray:
    """Attention in fp64 from its definition; ``mask`` is added, a row of -inf gives zeros."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = scale * q @ k.swapaxes(-1, -2) + (0 if mask is None else mask)
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    total = weights.sum(-1, keepdims=True)
    return (weights / np.where(total > 0, total, 1)) @ v


@dataclass(frozen=True)
class AttentionCase:
    """One attention; ``scale`` of the inputs makes the softmax sharp or flat."""

    B: int
    H: int
    Hk: int
    T: int
    S: int
    D: int
    mask: str = "none"
    dtype: str = "float32"
    spread: float = 1.0
    gated: bool = False

    def run(self) -> float:
        """Relative error of the output."""
        rng = np.random.default_rng([self.B, self.H, self.Hk, self.T, self.S, self.D])
        dtype = DTYPES[self.dtype]

        def random(heads: int, steps: int) -> mx.array:
            # As models have it: heads beside the values in memory, and a cache with room to spare.
            a = rng.standard_normal((self.B, steps + 3, heads, self.D), dtype=np.float32)
            return (mx.array(a * self.spread).astype(dtype)[:, :steps]).transpose(0, 2, 1, 3)

        q, k, v = random(self.H, self.T), random(self.Hk, self.S), random(self.Hk, self.S)
        newest = np.arange(self.T)[:, None] + self.S - self.T
        seen = np.arange(self.S) <= newest
        padded = seen & (np.arange(self.S) >= np.arange(self.B)[:, None, None, None])
        masks: dict[str, tuple[mx.array | str | None, np.ndarray | None]] = {
            "none": (None, None),
            "causal": ("causal", np.where(seen, 0, -np.inf)),
            "bool": (mx.array(padded), np.where(padded, 0, -np.inf)),
        }
        slope = -0.1 * np.arange(self.S, dtype=np.float32)
        masks["float"] = (mx.array(slope).astype(dtype), double(mx.array(slope).astype(dtype)))
        given, added = masks[self.mask]
        gate = random(self.H, self.T).swapaxes(1, 2) if self.gated else None
        y = ops.attention(q, k, v, scale=self.D**-0.5, mask=given, gate=gate)
        want = softmax_attention(double(q), double(k), double(v), self.D**-0.5, added)
        if gate is not None:
            want = want / (1 + np.exp(-double(gate).swapaxes(1, 2)))
        return relative_error(y, want.swapaxes(1, 2))


def attention_cases() -> Iterator[AttentionCase]:
    """Head groups, lengths around the key block, widths that fill no vector, every mask."""
    for mask in ("none", "causal", "bool", "float"):
        for T, S in ((1, 1), (1, 130), (5, 64), (37, 37), (70, 200)):
            yield AttentionCase(2, 4, 2, T, S, 64, mask)
        yield AttentionCase(3, 6, 1, 9, 80, 40, mask)
        yield AttentionCase(1, 3, 3, 9, 9, 5, mask)
    yield AttentionCase(1, 8, 2, 90, 90, 256, "causal", spread=2.0)
    for dtype in ("float16", "bfloat16"):
        yield AttentionCase(2, 4, 2, 33, 70, 64, "causal", dtype)
        yield AttentionCase(2, 4, 2, 33, 70, 60, "causal", dtype, gated=True)
    for T in (1, 37):
        yield AttentionCase(3, 6, 2, T, 70, 40, "bool", gated=True)


def norm_and_turn(
    x: np.ndarray, weight: np.ndarray, eps: float, dims: int, base: float, first: np.ndarray
) -> np.ndarray:
    """RMSNorm and rotary embedding of x [B, T, H, D] in fp64, as [B, H, T, D]."""
    n = x * weight / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    position = first[:, None] + np.arange(x.shape[1])
    angle = position[..., None] * base ** (-2 * np.arange(dims // 2) / dims)
    turn = np.exp(1j * angle)[:, :, None]  # a pair of values as one complex number
    pair = (n[..., : dims // 2] + 1j * n[..., dims // 2 : dims]) * turn
    return np.concatenate([pair.real, pair.imag, n[..., dims:]], -1).swapaxes(1, 2)


@dataclass(frozen=True)
class NormRopeCase:
    """RMSNorm and rotary embedding; ``offset`` is of all rows, or differs from row to row."""

    B: int
    T: int
    H: int
    D: int
    dims: int
    dtype: str = "float32"
    offset: int | tuple[int, ...] = 0

    def run(self) -> float:
        """Relative error of the output."""
        rng = np.random.default_rng([self.B, self.T, self.H, self.D, self.dims])
        a = rng.standard_normal((self.B, self.T, self.H, 2 * self.D), dtype=np.float32)
        x = mx.array(a).astype(DTYPES[self.dtype])[..., : self.D]  # a gate lies beside each head
        weight = mx.array(1 + rng.standard_normal(self.D, dtype=np.float32) / 4)
        offset = mx.array(self.offset) if isinstance(self.offset, tuple) else self.offset
        norm = ops.Norm(weight, 1e-6)
        y = ops.norm_rope(x, norm, dims=self.dims, base=1e6, offset=offset)
        first = np.broadcast_to(np.asarray(self.offset), self.B)
        return relative_error(
            y, norm_and_turn(double(x), double(weight), 1e-6, self.dims, 1e6, first)
        )


def norm_rope_cases() -> Iterator[NormRopeCase]:
    """Partial and whole rotations, far positions, rows at positions of their own."""
    for dims in (2, 16, 40):
        yield NormRopeCase(2, 5, 3, 40, dims)
    yield NormRopeCase(1, 1, 8, 256, 64, offset=200_000)
    yield NormRopeCase(3, 70, 2, 64, 16, offset=(-7, 0, 1000))
    for dtype in ("float16", "bfloat16"):
        yield NormRopeCase(2, 9, 4, 256, 64, dtype, offset=12)


def product_failures() -> list[str]:
    """Every product whose error is above its tolerance."""
    return [
        f"{case}: {error:.2e}"
        for case in matmul_cases()
        if not (error := case.run()) <= TOLERANCE[case.dtype]
    ]


def failures() -> list[str]:
    """Every case whose error is above its tolerance."""
    failed = product_failures()
    for delta in (*delta_cases(), *delta_net_cases()):
        y, state = delta.run()
        if not (y <= TOLERANCE[delta.dtype] and state <= TOLERANCE["float32"]):
            failed.append(f"{delta}: y {y:.2e}, state {state:.2e}")
    failed += [
        f"{case}: {error:.2e}"
        for case in (*attention_cases(), *norm_rope_cases())
        if not (error := case.run()) <= TOLERANCE[case.dtype]
    ]
    return failed


def integer_digest() -> str:
    """Fingerprint of products in integer arithmetic, which are the same bits everywhere."""
    digest = hashlib.sha256()
    rng = np.random.default_rng(0)
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            w = mx.array(rng.standard_normal((15, 384), dtype=np.float32)).astype(mx.float16)
            weight = ops.Weight(
                *mx.quantize(w, group, bits), group_size=group, bits=bits, dtype=mx.float32
            )
            x = mx.array(rng.standard_normal((32, 384), dtype=np.float32)).astype(mx.bfloat16)
            norm = ops.Norm(x[0], 1e-6)
            for rows in (1, 2, 3, 32):
                for products in (
                    ops.matmul(x[:rows], [weight]),
                    ops.matmul(x[:rows], [weight], norm=norm),
                ):
                    digest.update(np.array(products[0]).tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    from mixbit import backend

    if os.environ["MIXBIT_BACKEND"] == "metal":
        mx.set_default_device(mx.gpu)
        print(json.dumps({"failures": product_failures()}))
    else:
        mx.set_default_device(mx.cpu)
        isa = "stock" if backend.native is None else backend.native.isa()
        print(json.dumps({"isa": isa, "failures": failures(), "integers": integer_digest()}))
