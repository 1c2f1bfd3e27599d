"""Stacks of expert matrices over :mod:`mixbit.ops`."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn
from mlx_lm.models import switch_layers as stock

from mixbit import ops
from mixbit.nn.linear import packed_weight

__all__ = ["QuantizedSwitchLinear", "SwitchLinear"]


class QuantizedSwitchLinear(stock.QuantizedSwitchLinear):
    """mlx-lm's ``QuantizedSwitchLinear``: x [..., M, in_dims], indices [...] -> [..., M, out_dims].

    A layer with a global scale (nvfp4 of mlx >= 0.32.1) keeps to stock MLX.
    """

    activation_bits = 16
    """As :class:`mixbit.ops.Weight` has it."""

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        if self.global_scale is not None:
            return super().__call__(x, indices, sorted_indices)
        stack = packed_weight(self)._replace(bias=None)
        y = ops.gather_matmul(x, stack, indices, sorted_indices=sorted_indices)
        return y + mx.expand_dims(self["bias"][indices], -2) if "bias" in self else y


class SwitchLinear(stock.SwitchLinear):
    """mlx-lm's ``SwitchLinear``: x [..., M, in_dims], indices [...] -> [..., M, out_dims]."""

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        y = ops.gather_linear(x, self["weight"], indices, sorted_indices=sorted_indices)
        return y + mx.expand_dims(self["bias"][indices], -2) if "bias" in self else y

    def to_quantized(
        self,
        group_size: int = 64,
        bits: int = 4,
        mode: str = "affine",
        global_scale: bool = False,
    ) -> nn.Module:
        """As mlx-lm's, giving :class:`QuantizedSwitchLinear`."""
        layer = super().to_quantized(group_size, bits, mode, global_scale)
        layer.__class__ = QuantizedSwitchLinear
        return layer
