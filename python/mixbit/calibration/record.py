"""Looking at what goes into a layer while the model runs."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from scipy.linalg import blas

from mixbit import ops
from mixbit.calibration.statistics import InputStatistics

Floats = npt.NDArray[np.float32]

_BLOCK = 256


class Sums:
    """Sums over the inputs of one module, or of each of its experts.

    A batch is summed in fp32; batches are added in fp64, the Hessian's in fp32.
    """

    def __init__(self, in_dims: int, experts: int | None = None, *, hessian: bool = False) -> None:
        """Begin with nothing; ``experts`` of a stack, else None."""
        shape = (in_dims,) if experts is None else (experts, in_dims)
        self._square, self._absolute = np.zeros(shape), np.zeros(shape)
        self._count = np.zeros(shape[:-1])
        self._experts = experts
        # Their upper triangles, until they are asked for.
        self._hessian = np.zeros((*shape, in_dims) if hessian else 0, np.float32)
        self._new: list[mx.array] = []
        self._rows: mx.array | None = None
        self._readers: mx.array | None = None

    def add(self, x: mx.array) -> None:
        """Take in ``x`` [..., in_dims], unevaluated."""
        rows = x.reshape(-1, x.shape[-1]).astype(mx.float32)
        count = mx.array(float(len(rows)))
        self._new = [rows.square().sum(axis=0), rows.abs().sum(axis=0), count]
        self._rows = rows if self._hessian.size else None

    def add_routed(self, x: mx.array, indices: mx.array) -> None:
        """Take in what experts ``indices`` [...] read: ``x``, broadcast to [..., 1, in_dims]."""
        assert self._experts is not None
        x = mx.broadcast_to(x, (*indices.shape, 1, x.shape[-1]))
        rows, experts = x.reshape(-1, x.shape[-1]).astype(mx.float32), indices.flatten()
        # A product with ones and zeros adds up in one order, which scattering does not on a GPU.
        chosen = experts[None] == mx.arange(self._experts)[:, None]
        chosen = chosen.astype(mx.float32)
        square = ops.linear(chosen, mx.contiguous(rows.T.square()))
        absolute = ops.linear(chosen, mx.contiguous(rows.T.abs()))
        self._new = [square, absolute, chosen.sum(axis=1)]
        if self._hessian.size:
            self._rows, self._readers = rows, experts

    def pending(self) -> list[mx.array]:
        """What has to be computed before :meth:`collect`."""
        rows = (self._rows, self._readers)
        return [*self._new, *(values for values in rows if values is not None)]

    def collect(self) -> None:
        """Add what was taken in last."""
        square, absolute, count = self._new
        self._square += np.asarray(square)
        self._absolute += np.asarray(absolute)
        self._count += np.asarray(count)
        if self._rows is not None:
            rows, readers = np.asarray(self._rows), self._readers
            if readers is None:
                _add_products(self._hessian, rows)
            else:
                for expert in np.unique(np.asarray(readers)):
                    _add_products(self._hessian[expert], rows[np.asarray(readers) == expert])
        self._new, self._rows, self._readers = [], None, None

    def statistics(self) -> InputStatistics:
        """The means, at the end: the Hessian, which is large, goes with them."""
        count = np.maximum(self._count, 1)
        hessian, self._hessian = self._hessian, np.zeros(0, np.float32)
        if hessian.size:
            hessian /= count[..., None, None].astype(np.float32)
            for square in hessian.reshape(-1, *hessian.shape[-2:]):
                _mirror(square)
        return InputStatistics(
            mean_square=mx.array((self._square / count[..., None]).astype(np.float32)),
            count=mx.array(self._count.astype(np.float32)),
            mean_abs=mx.array((self._absolute / count[..., None]).astype(np.float32)),
            hessian=mx.array(hessian) if hessian.size else None,
        )


def _add_products(hessian: Floats, rows: Floats) -> None:
    """Add ``rows^T rows`` to the upper triangle of ``hessian``, in place."""
    # BLAS's product is many times MLX's on a CPU. To it this is the lower triangle, in place as
    # float32 in columns one behind the other.
    blas.ssyrk(1, rows.T, beta=1, c=hessian.T, lower=1, overwrite_c=1)


def _mirror(square: Floats) -> None:
    """Fill the lower triangle of a symmetric matrix from the upper, in place."""
    for begin in range(0, len(square), _BLOCK):
        end = begin + _BLOCK
        square[begin:end, :begin] = square[:begin, begin:end].T
        corner = np.triu(square[begin:end, begin:end])
        square[begin:end, begin:end] = corner + np.triu(corner, 1).T


class Recorder(nn.Module):
    """A module and the sums of what it is called with."""

    def __init__(self, module: nn.Module, sums: Sums) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.module, self.sums = module, sums

    def __call__(self, x: mx.array, *indices: mx.array, **options: Any) -> mx.array:
        if indices:
            self.sums.add_routed(x, indices[0])
        else:
            self.sums.add(x)
        return self.module(x, *indices, **options)
