"""The gated feed-forward block of qwen3_5 and qwen3_next over :mod:`mixbit.ops`."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import qwen3_next

from mixbit import ops
from mixbit.nn.projections import add_product, norm_of, weight_of

__all__ = ["MLP"]


class MLP(qwen3_next.Qwen3NextMLP):
    """``down(SiLU(gate(x)) * up(x))``: [..., hidden] -> [..., hidden]."""

    def __call__(self, x: mx.array) -> mx.array:
        return self.forward(x)

    def forward(
        self, x: mx.array, norm: Any | None = None, residual: mx.array | None = None
    ) -> mx.array:
        """``residual + self(norm(x))``, either of them left out where ``None``."""
        gate, up = weight_of(self.gate_proj), weight_of(self.up_proj)
        fused = norm_of(norm)
        if norm is not None and (fused is None or gate is None or up is None):
            x, fused = norm(x), None
        if gate is None or up is None:
            y = super().__call__(x)
            return y if residual is None else residual + y
        return add_product(residual, ops.swiglu(x, gate, up, norm=fused), self.down_proj)
