"""Scales on a layer's parameters."""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx

from mixbit.calibration import InputStatistics
from mixbit.quantization.fold.folds import Fold


@dataclass
class LayerScales:
    """What is to be done with the parameters of a layer. Scales are float32.

    Attributes:
        columns: module path -> [K] or [E, K] that multiplies its columns.
        rows: module path -> [N] or [E, N] that divides its rows and its bias.
        norms: norm path -> its new weight.
    """

    columns: dict[str, mx.array] = field(default_factory=dict)
    rows: dict[str, mx.array] = field(default_factory=dict)
    norms: dict[str, mx.array] = field(default_factory=dict)

    def add(self, fold: Fold, scale: mx.array, norm: mx.array | None) -> None:
        """Take in the scale of a fold, and of a fold into a norm the norm's weight.

        Args:
            fold: the fold.
            scale: positive, [outer * inner], or [E, outer * inner] for experts.
            norm: the norm's weight in the type that it is stored in.
        """
        if norm is not None:
            scale, self.norms[fold.source] = _storable(scale, norm)
        else:
            self.rows[fold.source] = scale
        outer, repeats, inner = fold.heads
        spread = scale.reshape(*scale.shape[:-1], outer, 1, inner)
        spread = mx.broadcast_to(spread, (*scale.shape[:-1], outer, repeats, inner))
        for reader in fold.readers:
            self.columns[reader] = spread.reshape(*scale.shape[:-1], -1)

    def parameter(self, name: str, value: mx.array) -> mx.array:
        """A parameter with its scales on it, in float32; ``value`` itself where there are none."""
        path, _, last = name.rpartition(".")
        if last == "weight" and path in self.norms:
            return self.norms[path]
        columns, rows = self.columns.get(path), self.rows.get(path)
        if last == "weight" and columns is not None:
            value = value.astype(mx.float32) * _aligned(columns, value, -2)
        if last == "weight" and rows is not None:
            value = value.astype(mx.float32) / rows[..., None]
        if last == "bias" and rows is not None:
            value = value.astype(mx.float32) / rows
        return value

    def statistics(self, path: str, statistics: InputStatistics) -> InputStatistics:
        """Statistics of what a module reads once the source of its input is scaled."""
        s = self.columns.get(path)
        if s is None:
            return statistics
        absolute, hessian = statistics.mean_abs, statistics.hessian
        return InputStatistics(
            mean_square=statistics.mean_square / s.square(),
            count=statistics.count,
            mean_abs=None if absolute is None else absolute / s,
            hessian=None if hessian is None else hessian / (s[..., None] * s[..., None, :]),
        )

    def holds(self, path: str) -> bool:
        """Whether there are scales for the module's weight."""
        return path in self.columns or path in self.rows

    @property
    def changed(self) -> int:
        """How many tensors are changed."""
        return len(self.columns.keys() | self.rows.keys()) + len(self.norms)


def _aligned(columns: mx.array, weight: mx.array, axis: int) -> mx.array:
    """Column scales [K] or [E, K] beside a weight [N, K] or [E, N, K]."""
    return columns if columns.ndim < weight.ndim - 1 else mx.expand_dims(columns, axis)


def _storable(scale: mx.array, norm: mx.array) -> tuple[mx.array, mx.array]:
    """The norm's weight divided by the scale as it can be stored, and the scale that this is.

    So nothing is lost where the norm has 16 bits. A weight of zero stays, with a scale of one.
    """
    wide = norm.astype(mx.float32)
    divided = (wide / scale).astype(norm.dtype)
    back = divided.astype(mx.float32)
    sound = (back != 0) & mx.isfinite(back)
    return mx.where(sound, wide / mx.where(sound, back, 1), 1), mx.where(sound, divided, norm)
