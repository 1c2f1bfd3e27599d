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

Floats = npt.NDArray[np.float32]

# Added to the Hessian's diagonal, as a share of its mean, in turn until it can be factored.
_DAMPING = (0.01, 0.1, 1.0)
# Weights worked on at once, in fp32.
_CHUNK = 1 << 23


class HessianError(MixbitError):
    """The Hessian is missing or cannot be factored; another method has to serve."""


@dataclass(frozen=True)
class Feedback:
    """How what a column loses can be made good by those after it.

    Attributes:
        factor: float32 [K, K], upper triangular U with U^T U the inverse of the damped Hessian.
    """

    factor: Floats

    @classmethod
    def of(cls, statistics: InputStatistics | None) -> Feedback:
        """That of an input.

        Raises:
            HessianError: there is no Hessian, or it is not that of any input.
        """
        return cls(_factor(None if statistics is None else statistics.hessian))


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
    their part.

    Args:
        weight, bits, group_size, dtype: as a :class:`Method` takes them; ``weight`` is [N, K].
        feedback: of the layer's input.
        scales: the method that chooses scales and biases.

    Raises:
        MixbitError: as a :class:`Method`.
    """
    check_weight(weight, bits, group_size)
    factor = feedback.factor
    step = max(1, _CHUNK // weight.shape[1])
    parts = [
        _rows(weight[i : i + step], factor, bits, group_size, scales, dtype or weight.dtype)
        for i in range(0, len(weight), step)
    ]
    return Packed(*(mx.concatenate(list(part)) for part in zip(*parts, strict=True)))


def _rows(
    weight: mx.array, factor: Floats, bits: int, group_size: int, scales: Method, dtype: mx.Dtype
) -> Packed:
    """Some rows, [n, K]; none takes part in another's."""
    left = np.array(weight.astype(mx.float32))  # what is still to be rounded, errors added
    costs = mx.array(1 / np.diagonal(factor) ** 2)
    parts: list[Packed] = []
    codes = np.empty(left.shape, np.uint8)
    for begin in range(0, left.shape[1], group_size):
        end = begin + group_size
        seen = InputStatistics(costs[begin:end], mx.array(1.0))
        packed = scales(mx.array(left[:, begin:end]), seen, bits, group_size, dtype=dtype)
        mx.eval(packed)
        parts.append(packed)
        errors = _round_group(left, codes, packed, factor, begin, end, 2**bits - 1)
        left[:, end:] -= errors @ factor[begin:end, end:]
    packed = Packed(
        _packed_codes(codes, bits),
        mx.concatenate([part.scales for part in parts], axis=1),
        mx.concatenate([part.biases for part in parts], axis=1),
    )
    mx.eval(packed)
    return packed


def _factor(hessian: mx.array | None) -> Floats:
    """Upper triangular U, [K, K], with U^T U the inverse of the damped Hessian."""
    if hessian is None:
        raise HessianError("There is no Hessian; calibrate with --hessian.")
    h = np.asarray(hessian)
    diagonal = np.diagonal(h).astype(np.float64)
    if not np.isfinite(h).all() or (diagonal < 0).any() or not diagonal.any():
        raise HessianError("The Hessian is not finite, or has no positive diagonal.")
    for damping in _DAMPING:
        # With rows and columns reversed: h = L L^T, and U = L^-1. All in the place of one copy.
        work = h[::-1, ::-1].astype(np.float64, order="F")
        np.fill_diagonal(work, (diagonal + damping * diagonal.mean())[::-1])
        work, failed = lapack.dpotrf(work, lower=1, overwrite_a=1)
        if not failed:
            work, failed = lapack.dtrtri(work, lower=1, overwrite_c=1)
        if not failed:
            return work[::-1, ::-1].astype(np.float32, order="C")
    raise HessianError("The Hessian is not positive, even damped.")


def _round_group(
    left: Floats,
    codes: npt.NDArray[np.uint8],
    packed: Packed,
    factor: Floats,
    begin: int,
    end: int,
    top: int,
) -> Floats:
    """Round columns [begin, end) of ``left``, those after each within the group adjusted.

    Returns:
        [N, end - begin]: each column's error over its diagonal element of ``factor``.
    """
    scale, bias = (np.array(a.astype(mx.float32))[:, 0] for a in packed[1:])
    errors = np.empty((len(left), end - begin), np.float32)
    for column in range(begin, end):
        values = left[:, column]
        code = np.clip(np.rint((values - bias) / scale), 0, top)
        codes[:, column] = code
        error = (values - (scale * code + bias)) / factor[column, column]
        left[:, column + 1 : end] -= np.outer(error, factor[column, column + 1 : end])
        errors[:, column - begin] = error
    return errors


def _packed_codes(codes: npt.NDArray[np.uint8], bits: int) -> mx.array:
    """Codes [N, K] as rows of one little-endian bit stream each."""
    bit_rows = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
    stream = np.packbits(bit_rows.reshape(len(codes), -1), axis=-1, bitorder="little")
    return mx.array(stream.view(np.uint32))
