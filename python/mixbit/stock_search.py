"""The search for scales of affine groups in numpy: what serves where there is no native module.

It takes the steps of ``csrc/cpu/quantize_search.cpp`` in fp64, so the two agree but for rounding.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import numpy.typing as npt

__all__ = ["quantize_search"]

Array = npt.NDArray[np.float64]

# Ends of the codes' range, moved inwards from the extreme weights by so many steps of the grid.
_INWARD = (0.0, 0.5, 1.0, 1.5)
_ROUNDS = 3
# Weights worked on at once, so that the fp64 temporaries stay small.
_CHUNK = 1 << 20


def quantize_search(
    w: mx.array, importance: mx.array | None, group_size: int, bits: int, dtype: mx.Dtype
) -> tuple[mx.array, mx.array, mx.array]:
    """As :func:`mixbit.ops.quantize_search`."""
    *leading, K = w.shape
    weights = np.asarray(w.astype(mx.float32)).reshape(-1, K)
    if importance is None:
        importance = mx.ones((*leading[:-1], K))
    channels = np.asarray(importance.astype(mx.float32)).reshape(-1, K)
    h = np.broadcast_to(channels[:, None], (len(channels), leading[-1], K)).reshape(-1, K)
    rows = max(1, _CHUNK // K)
    parts = [
        _rows(weights[i : i + rows], h[i : i + rows], group_size, bits, dtype)
        for i in range(0, len(weights), rows)
    ]
    codes, scales, biases = (mx.concatenate(list(part)) for part in zip(*parts, strict=True))
    return (
        codes.reshape(*leading, -1),
        scales.reshape(*leading, -1),
        biases.reshape(*leading, -1),
    )


def _rows(
    w: npt.NDArray[np.float32],
    h: npt.NDArray[np.float32],
    group_size: int,
    bits: int,
    dtype: mx.Dtype,
) -> tuple[mx.array, mx.array, mx.array]:
    search = _Search(w.reshape(-1, group_size), h.reshape(-1, group_size), bits, dtype)
    scale, bias = search.run()
    codes = search.codes(scale, bias).astype(np.uint8).reshape(len(w), -1)
    bit_rows = np.unpackbits(codes[..., None], axis=-1, bitorder="little")[..., :bits]
    packed = np.packbits(bit_rows.reshape(len(w), -1), axis=-1, bitorder="little")
    return (
        mx.array(packed.view(np.uint32)),
        mx.array(scale.astype(np.float32)).astype(dtype).reshape(len(w), -1),
        mx.array(bias.astype(np.float32)).astype(dtype).reshape(len(w), -1),
    )


class _Search:
    """Groups of weights ``w`` and importances ``h``, both [G, size]; fits are [G, 1] each."""

    def __init__(
        self,
        w: npt.NDArray[np.float32],
        h: npt.NDArray[np.float32],
        bits: int,
        dtype: mx.Dtype,
    ) -> None:
        self.w, self.dtype, self.top = w.astype(np.float64), dtype, float(2**bits - 1)
        total = h.sum(axis=1, keepdims=True, dtype=np.float64)
        self.h = np.where(total > 0, h / np.where(total > 0, total, 1), 1 / h.shape[1])
        self.low = self.w.min(axis=1, keepdims=True)
        self.high = self.w.max(axis=1, keepdims=True)

    def codes(self, scale: Array, bias: Array) -> Array:
        """The nearest code of each weight."""
        with np.errstate(all="ignore"):  # what divides by zero is not chosen
            return np.clip(np.rint((self.w - bias) / scale), 0, self.top)

    def run(self) -> tuple[Array, Array]:
        """The best storable scale and bias of each group."""
        stored = self._rounding_fit()
        found = [*stored, self._error(*stored)]
        step = (self.high - self.low) / self.top
        for up in _INWARD:
            for down in _INWARD:
                scale, bias = step * (self.top - up - down) / self.top, self.low + up * step
                for _ in range(_ROUNDS):
                    self._keep_better(found, scale, bias)
                    scale, bias = self._refit(scale, bias)
        best = [*stored, self._error(*stored)]
        codes = self.codes(found[0], found[1])
        for scale_ulps in (-1, 0, 1):
            scale = self._neighbour(found[0], scale_ulps)
            bias = (self.h * (self.w - scale * codes)).sum(axis=1, keepdims=True)
            for bias_ulps in (-1, 0, 1):
                self._keep_better(best, scale, self._neighbour(bias, bias_ulps))
        return best[0], best[1]

    def _error(self, scale: Array, bias: Array) -> Array:
        """Weighted squared error with the nearest codes; infinite where scale or bias is unusable.

        fp32 holds them, so a scale whose reciprocal overflows there is unusable.
        """
        with np.errstate(all="ignore"):
            usable = np.isfinite(bias) & np.isfinite(np.float32(1) / scale.astype(np.float32))
            miss = self.w - (scale * self.codes(scale, bias) + bias)
            error: Array = (self.h * miss**2).sum(axis=1, keepdims=True)
        return np.where(usable, error, np.inf)

    def _keep_better(self, kept: list[Array], scale: Array, bias: Array) -> None:
        error = self._error(scale, bias)
        better = error < kept[2]
        for i, new in enumerate((scale, bias, error)):
            kept[i] = np.where(better, new, kept[i])

    def _refit(self, scale: Array, bias: Array) -> tuple[Array, Array]:
        """Weighted least squares for the nearest codes; the same fit where these are all equal."""
        c = self.codes(scale, bias) - self.top / 2
        hc = (self.h * c).sum(axis=1, keepdims=True)
        hcc = (self.h * c * c).sum(axis=1, keepdims=True)
        hw = (self.h * self.w).sum(axis=1, keepdims=True)
        hcw = (self.h * c * self.w).sum(axis=1, keepdims=True)
        determinant = hcc - hc**2
        sound = determinant > 1e-9 * hcc
        new_scale = (hcw - hc * hw) / np.where(sound, determinant, 1)
        new_bias = hw - new_scale * hc - new_scale * self.top / 2
        return np.where(sound, new_scale, scale), np.where(sound, new_bias, bias)

    def _rounding_fit(self) -> tuple[Array, Array]:
        """What ``mx.quantize`` chooses."""
        scale = np.maximum((self.high - self.low) / self.top, 1e-7)
        from_low = np.abs(self.low) > np.abs(self.high)
        scale = np.where(from_low, scale, -scale)
        edge = np.where(from_low, self.low, self.high)
        steps = np.rint(edge / scale)
        has_zero = steps == 0
        scale = np.where(has_zero, scale, edge / np.where(has_zero, 1, steps))
        return self._neighbour(scale, 0), self._neighbour(np.where(has_zero, 0, edge), 0)

    def _neighbour(self, v: Array, ulps: int) -> Array:
        """``v`` rounded to the storage type, and so many values of that type further out."""
        stored = mx.array(v.astype(np.float32)).astype(self.dtype)
        bits = stored.view(mx.uint32 if self.dtype == mx.float32 else mx.uint16)
        step = mx.array(ulps).astype(bits.dtype)  # wraps, as two's complement does
        return np.asarray((bits + step).view(self.dtype).astype(mx.float32)).astype(np.float64)
