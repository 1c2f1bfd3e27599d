"""mlx-lm's gated delta kernels, through mlx-lm's own Python, give what fp64 gives."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from metal_runner.mlx_call import MetalKernel

TOLERANCE = {mx.float32: 2e-6, mx.float16: 1e-3, mx.bfloat16: 8e-3}


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """mlx_lm.models.gated_delta, imported anew where its kernels are the runner's."""
    spec = importlib.util.find_spec("mlx_lm.models.gated_delta")
    assert spec and spec.loader
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx.fast, "metal_kernel", MetalKernel)
    monkeypatch.setattr(MetalKernel, "reports", [], raising=False)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module


def double(a: mx.array) -> np.ndarray:
    return np.array(a.astype(mx.float32)).astype(np.float64)


def gated_delta(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray,
    state: np.ndarray, mask: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The recurrence in fp64: state decays, and is corrected towards v at key k."""
    repeats = v.shape[2] // k.shape[2]
    q, k = np.repeat(q, repeats, 2), np.repeat(k, repeats, 2)
    decay = g[..., None] if g.ndim == 3 else g
    ys = []
    for t in range(v.shape[1]):
        decayed = state * decay[:, t, :, None]
        read = np.einsum("bhvk,bhk->bhv", decayed, k[:, t])
        delta = (v[:, t] - read) * beta[:, t, :, None]
        new = decayed + delta[..., None] * k[:, t, :, None]
        here = mask[:, t, None, None]
        state = np.where(here[..., None], new, state)
        ys.append(np.where(here, np.einsum("bhvk,bhk->bhv", new, q[:, t]), 0))
    return np.stack(ys, 1), state


def inputs(dtype: mx.Dtype, vector_gate: bool) -> list[mx.array]:
    B, T, Hk, Hv, Dk, Dv = 2, 3, 2, 4, 128, 16
    q, k = (mx.random.normal((B, T, Hk, Dk)).astype(dtype) * 0.1 for _ in range(2))
    v = mx.random.normal((B, T, Hv, Dv)).astype(dtype)
    g = mx.random.uniform(shape=(B, T, Hv, Dk) if vector_gate else (B, T, Hv))
    beta = mx.sigmoid(mx.random.normal((B, T, Hv))).astype(dtype)
    state = mx.random.normal((B, Hv, Dv, Dk)) * 0.1
    return [q, k, v, g, beta, state]


def check(function: Any, arrays: list[mx.array], mask: mx.array | None) -> None:
    y, state = function(*arrays, mask)
    every = np.ones(arrays[2].shape[:2], bool) if mask is None else np.array(mask)
    want_y, want_state = gated_delta(*(double(a) for a in arrays), every)
    assert y.dtype == arrays[0].dtype
    assert np.abs(double(y) - want_y).max() < TOLERANCE[y.dtype] * np.abs(want_y).max()
    assert np.abs(double(state) - want_state).max() < 2e-6 * np.abs(want_state).max()


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("name", ["gated_delta_kernel", "gated_delta_kernel_unpacked"])
def test_scalar_gate(kernels: ModuleType, name: str, dtype: mx.Dtype) -> None:
    check(getattr(kernels, name), inputs(dtype, vector_gate=False), None)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("vector_gate", [False, True])
def test_gates_and_masks(kernels: ModuleType, vector_gate: bool, masked: bool) -> None:
    mask = mx.array([[True, False, True], [False, True, True]]) if masked else None
    check(kernels.gated_delta_kernel_unpacked, inputs(mx.float32, vector_gate), mask)


def test_packed_and_explicit_tree_agree_to_the_bit(kernels: ModuleType) -> None:
    arrays = inputs(mx.float32, vector_gate=False)
    packed, tree = kernels.gated_delta_kernel(*arrays), kernels.gated_delta_kernel_xtree(*arrays)
    generic = kernels.gated_delta_kernel_unpacked(*arrays)
    for a, b, c in zip(packed, tree, generic, strict=True):
        assert mx.array_equal(a, b)
        assert mx.array_equal(b, c)


def test_checked_mode_finds_nothing_but_equal_stores(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MetalKernel, "mode", "checked")
    arrays = inputs(mx.float32, vector_gate=False)
    check(kernels.gated_delta_kernel, arrays, None)
    check(kernels.gated_delta_kernel, arrays, mx.array([[True, False, True]] * 2))
    packed, masked = MetalKernel.reports
    assert packed.findings == ()
    # Where the mask says no, all lanes store the same zero.
    kinds = {finding.kind for finding in masked.findings}
    assert kinds == {"device memory written by two threads with the same value"}
