"""GatedDeltaNet between its projections in fp64."""

from __future__ import annotations

import numpy as np


def silu(v: np.ndarray) -> np.ndarray:
    """``v * sigmoid(v)``."""
    return v / (1.0 + np.exp(-v))


def unit(t: np.ndarray) -> np.ndarray:
    """Divided by its length, as the reference does it."""
    return t / np.sqrt((t**2).sum(-1, keepdims=True) + 1e-6)


def interleaved_order(Hk: int, Hv: int, Dk: int, Dv: int) -> tuple[np.ndarray, np.ndarray]:
    """Of the channels of qkv and z, and of a and b: where ``ops.delta_net`` interleaved has them.

    Element i of a step of the interleaved arrays is element order[i] of q | k | v | z, of a | b.
    """
    keys, values = Hk * Dk, Hv * Dv
    parts = np.split(np.arange(2 * keys + 2 * values), [keys, 2 * keys, 2 * keys + values])
    channels = np.concatenate([part.reshape(Hk, -1) for part in parts], axis=1)
    a, b = np.arange(2 * Hv).reshape(2, Hk, -1)
    return channels.ravel(), np.concatenate([b, a], axis=1).ravel()


def delta_net(
    qkv: np.ndarray, z: np.ndarray, a: np.ndarray, b: np.ndarray, conv_weight: np.ndarray,
    A_log: np.ndarray, dt_bias: np.ndarray, norm_weight: np.ndarray,
    conv_state: np.ndarray | None = None, state: np.ndarray | None = None,
    mask: np.ndarray | None = None, lengths: np.ndarray | None = None, *,
    num_k_heads: int, eps: float = 1e-6, keep_steps: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """``ops.delta_net`` in fp64, from its definition."""
    (B, T, Hv), Dv, (C, taps, _) = a.shape, norm_weight.size, conv_weight.shape
    Dk = (C - Hv * Dv) // 2 // num_k_heads
    mask = np.ones((B, T), bool) if mask is None else mask
    before = np.zeros((B, taps - 1, C)) if conv_state is None else conv_state
    inputs = np.concatenate([before, np.where(mask[..., None], qkv, 0)], axis=1)
    mixed = silu(sum(inputs[:, j : j + T] * conv_weight[:, j, 0] for j in range(taps)))
    q, k, v = np.split(mixed, [num_k_heads * Dk, 2 * num_k_heads * Dk], axis=-1)
    q, k = (unit(t.reshape(B, T, num_k_heads, Dk)) for t in (q, k))
    q, k = (np.repeat(t, Hv // num_k_heads, axis=2) for t in (q / np.sqrt(Dk), k))
    v = v.reshape(B, T, Hv, Dv)
    g = np.exp(-np.exp(A_log) * np.logaddexp(0, a + dt_bias))
    beta = 1 / (1 + np.exp(-b))

    S = np.zeros((B, Hv, Dv, Dk)) if state is None else state
    o, states = np.zeros((B, T, Hv, Dv)), []
    for t in range(T):
        decayed = S * g[:, t, :, None, None]
        delta = (v[:, t] - np.einsum("bhvk,bhk->bhv", decayed, k[:, t])) * beta[:, t, :, None]
        new = decayed + delta[..., None] * k[:, t, :, None]
        S = np.where(mask[:, t, None, None, None], new, S)
        o[:, t] = np.einsum("bhvk,bhk->bhv", S, q[:, t]) * mask[:, t, None, None]
        states.append(S)
    y = o / np.sqrt((o**2).mean(-1, keepdims=True) + eps) * norm_weight
    y = y.reshape(z.shape) * silu(z)
    ends = np.full(B, T) if lengths is None else lengths
    kept = np.stack([rows[end : end + taps - 1] for rows, end in zip(inputs, ends, strict=True)])
    return y, kept, np.stack(states, axis=1) if keep_steps else S
