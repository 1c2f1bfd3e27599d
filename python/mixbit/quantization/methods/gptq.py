"""Codes column by column, what each loses made good by those that follow."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack

from mixbit.calibration import InputStatistics
from mixbit.errors import MixbitError
from mixbit.quantization.methods.packed import Method, Packed, check_weight
from mixbit.quantization.methods.refine import Quantised, refine

Floats = npt.NDArray[np.float32]

# Added to the Hessian's diagonal, as a share of its mean, in turn until it can be factored.
_DAMPING = (0.01, 0.1, 1.0)
# Weights worked on at once, in fp32.
_CHUNK = 1 << 22


class HessianError(MixbitError):
    """The Hessian is missing or cannot be factored; another method has to serve."""


@dataclass(frozen=True)
class Feedback:
    """How what a column loses can be made good by those after it.

    Attributes:
        factor: float32 [K, K], upper triangular U with U^T U the inverse of ``hessian``.
        hessian: float32 [K, K], damped, and off the diagonal n / (n + K) of what n inputs gave:
            with few of them, how two channels go together is mostly chance.
    """

    factor: Floats
    hessian: Floats

    @staticmethod
    def of(statistics: InputStatistics | None) -> Feedback:
        """That of an input.

        Raises:
            HessianError: there is no Hessian, or it is not that of any input.
        """
        if statistics is None or statistics.hessian is None:
            raise HessianError("It has no Hessian: calibrate with --hessian.")
        return _feedback(np.asarray(statistics.hessian), float(statistics.count.sum().item().real))


def gptq(
    weight: mx.array,
    feedback: Feedback,
    bits: int,
    group_size: int,
    *,
    scales: Method,
    dtype: mx.Dtype | None = None,
) -> Packed:
    """GPTQ (Frantar et al., 2022) without reordering, so that groups stay MLX's.

    Columns are rounded from first to last. What a column's rounding changes in the layer's output
    over calibration text is made up for as far as the columns after it can, which is a step of the
    Cholesky factor of the inverse Hessian. A group's scales are those that ``scales`` chooses when
    its turn comes, each channel weighed by what its error costs after all later ones have done
    their part. In the end :func:`refine` goes over all of them again.

    Args:
        weight, bits, group_size, dtype: as a :class:`Method` takes them.
        feedback: of the layer's input.
        scales: the method that chooses scales and biases.

    Raises:
        MixbitError: as a :class:`Method`.
    """
    check_weight(weight, bits, group_size)
    *leading, K = weight.shape
    rows, step = weight.reshape(-1, K), max(1, _CHUNK // K)
    parts = [
        _rows(rows[i : i + step], feedback, bits, group_size, scales, dtype or weight.dtype)
        for i in range(0, len(rows), step)
    ]
    joined = (mx.concatenate(list(part)) for part in zip(*parts, strict=True))
    return Packed(*(part.reshape(*leading, -1) for part in joined))


def _rows(
    weight: mx.array,
    feedback: Feedback,
    bits: int,
    group_size: int,
    scales: Method,
    dtype: mx.Dtype,
) -> Packed:
    """Some rows, [n, K]; none takes part in another's."""
    target = np.array(weight.T.astype(mx.float32))
    factor, left = feedback.factor, target.copy()  # what is still to be rounded, errors added
    costs = mx.array(1 / np.diagonal(factor) ** 2)
    shape = (len(left) // group_size, left.shape[1])
    found = Quantised(np.empty_like(left), np.empty(shape, np.float32), np.empty(shape, np.float32))
    for group in range(len(found.scales)):
        part = slice(group * group_size, (group + 1) * group_size)
        seen = InputStatistics(costs[part], mx.array(1.0))
        packed = scales(mx.array(left[part]).T, seen, bits, group_size, dtype=dtype)
        for own, chosen in zip((found.scales, found.biases), packed[1:], strict=True):
            own[group] = np.array(chosen.astype(mx.float32))[:, 0]
        errors = _round_group(left, found, group, part, factor, 2**bits - 1)
        left[part.stop :] -= factor[part, part.stop :].T @ errors
    del left, errors
    refine(target, found, feedback.hessian, bits, dtype)
    packed = Packed(
        _packed_codes(found.codes.T.astype(np.uint8), bits),
        mx.array(found.scales.T).astype(dtype),
        mx.array(found.biases.T).astype(dtype),
    )
    mx.eval(packed)
    return packed


def _feedback(h: Floats, inputs: float) -> Feedback:
    diagonal = np.diagonal(h).astype(np.float64)
    if not np.isfinite(h).all() or (diagonal < 0).any() or not diagonal.any() or not inputs > 0:
        raise HessianError("The Hessian is not finite, or has no positive diagonal.")
    share = np.float32(1 / (1 + len(h) / inputs))
    for damping in _DAMPING:
        # With rows and columns reversed: h = L L^T, and U = L^-1. All in the place of one copy.
        work = h[::-1, ::-1].astype(np.float64, order="F")
        work *= share
        np.fill_diagonal(work, (diagonal + damping * diagonal.mean())[::-1])
        work, failed = lapack.dpotrf(work, lower=1, overwrite_a=1)
        if not failed:
            work, failed = lapack.dtrtri(work, lower=1, overwrite_c=1)
        if not failed:
            factor = work[::-1, ::-1].astype(np.float32, order="C")
            del work  # before the next one of its size
            damped = h * share
            np.fill_diagonal(damped, diagonal + damping * diagonal.mean())
            return Feedback(factor, damped)
    raise HessianError("The Hessian is not positive, even damped.")


def _round_group(
    left: Floats, found: Quantised, group: int, part: slice, factor: Floats, top: int
) -> Floats:
    """Codes of a group's columns, those after each within the group adjusted.

    Returns:
        [group_size, n]: each column's error over its diagonal element of ``factor``.
    """
    scale, bias = found.scales[group], found.biases[group]
    errors = np.empty((part.stop - part.start, left.shape[1]), np.float32)
    for column in range(part.start, part.stop):
        values, after = left[column], slice(column + 1, part.stop)
        code = np.clip(np.rint((values - bias) / scale), 0, top)
        found.codes[column] = code
        error = (values - (scale * code + bias)) / factor[column, column]
        left[after] -= np.outer(factor[column, after], error)
        errors[column - part.start] = error
    return errors


def _packed_codes(codes: npt.NDArray[np.uint8], bits: int) -> mx.array:
    """Codes [N, K] as rows of one little-endian bit stream each."""
    bit_rows = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
    stream = np.packbits(bit_rows.reshape(len(codes), -1), axis=-1, bitorder="little")
    return mx.array(stream.view(np.uint32))
