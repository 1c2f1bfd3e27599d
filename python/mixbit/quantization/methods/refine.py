"""Codes, scales and biases made better in turns, each by what the others leave to be done."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

_SWEEPS = 3


@dataclass
class Quantised:
    """A weight's transpose in affine groups, as numbers.

    Attributes:
        codes: float32 [K, n], whole.
        scales: float32 [K / group_size, n], values of the type that they are stored in.
        biases: as ``scales``.
    """

    codes: Floats
    scales: Floats
    biases: Floats

    def values(self) -> Floats:
        """The weights that it stands for, [K, n]."""
        size = len(self.codes) // len(self.scales)
        return np.repeat(self.scales, size, axis=0) * self.codes + np.repeat(
            self.biases, size, axis=0
        )


def refine(target: Floats, start: Quantised, hessian: Floats, bits: int, dtype: mx.Dtype) -> None:
    """Lower the layer's output error over its input, (w - q)^T H (w - q) for each row of weights.

    Group after group, a few times: first scale and bias by least squares for the codes as they are,
    then code after code the best for all else as it is, which is coordinate descent (Behdin et al.,
    QuantEase, 2023). No step makes the error larger.

    Args:
        target: the weight's transpose, [K, n].
        start: what to begin with; changed in place.
        hessian: of the input, damped, [K, K].
        bits: of a code.
        dtype: what scales and biases are stored in.
    """
    size = len(target) // len(start.scales)
    error = target - start.values()
    for _ in range(_SWEEPS):
        pull = hessian @ error  # minus half of the error's gradient, by weight
        for group in range(len(start.scales)):
            part = slice(group * size, (group + 1) * size)
            block = hessian[part, part]
            before = error[part].copy()
            _refit(start, group, part, pull, error, block, dtype)
            pull[part] -= block @ (before - error[part])
            _descend(start, group, part, pull, error, block, 2**bits - 1)
            change = before - error[part]
            pull[: part.start] -= hessian[: part.start, part] @ change
            pull[part.stop :] -= hessian[part.stop :, part] @ change


def _refit(
    q: Quantised,
    group: int,
    part: slice,
    pull: Floats,
    error: Floats,
    block: Floats,
    dtype: mx.Dtype,
) -> None:
    """Scale and bias of a group by least squares, where what can be stored of them is better."""
    codes, scale, bias = q.codes[part], q.scales[group], q.biases[group]
    weighed = block @ codes
    # Steps from scale and bias as they are: [cc c1; c1 11] (ds, db) = (c, 1) . pull
    cc, c1 = (codes * weighed).sum(0, np.float64), weighed.sum(0, np.float64)
    ones = float(block.sum(dtype=np.float64))
    by_scale = (codes * pull[part]).sum(0, np.float64)
    by_bias = pull[part].sum(0, np.float64)
    determinant = cc * ones - c1 * c1
    sound = determinant > 1e-6 * cc * ones
    safe = np.where(sound, determinant, 1)
    new_scale = _stored(scale + np.where(sound, by_scale * ones - by_bias * c1, 0) / safe, dtype)
    ds = new_scale.astype(np.float64) - scale
    new_bias = _stored(bias + (by_bias - c1 * ds) / max(ones, 1e-30), dtype)
    db = new_bias.astype(np.float64) - bias
    gain = 2 * (ds * by_scale + db * by_bias) - (ds * ds * cc + 2 * ds * db * c1 + db * db * ones)
    better = sound & (gain > 0) & (new_scale != 0) & np.isfinite(new_scale) & np.isfinite(new_bias)
    ds, db = np.where(better, ds, 0), np.where(better, db, 0)
    error[part] -= (ds.astype(np.float32) * codes) + db.astype(np.float32)
    q.scales[group], q.biases[group] = (
        np.where(better, new_scale, scale),
        np.where(better, new_bias, bias),
    )


def _descend(
    q: Quantised,
    group: int,
    part: slice,
    pull: Floats,
    error: Floats,
    block: Floats,
    top: int,
) -> None:
    """Each code of a group to what is best with all others as they are."""
    scale = q.scales[group]
    inverse = 1 / np.where(scale == 0, 1, scale)
    own = pull[part]
    for k in range(part.stop - part.start):
        row = part.start + k
        wanted = q.codes[row] + own[k] * (inverse / block[k, k])
        code = np.clip(np.rint(wanted), 0, top)
        step = (code - q.codes[row]) * scale
        q.codes[row] = code
        error[row] -= step
        own -= np.outer(block[:, k], step)


def _stored(values: npt.NDArray[np.float64], dtype: mx.Dtype) -> Floats:
    return np.array(mx.array(values.astype(np.float32)).astype(dtype).astype(mx.float32))
