"""The gated feed-forward block of qwen3_5 and qwen3_next over :mod:`mixbit.ops`."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import qwen3_next
from mlx_lm.models.activations import swiglu

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
        return add_product(residual, self.inner(x, norm), self["down_proj"])

    def inner(self, x: mx.array, norm: Any | None = None) -> mx.array:
        """What the down projection reads, [..., width of the block]."""
        gate_proj, up_proj = self["gate_proj"], self["up_proj"]
        gate, up = weight_of(gate_proj), weight_of(up_proj)
        fused = norm_of(norm)
        if norm is not None and (fused is None or gate is None or up is None):
            x, fused = norm(x), None
        if gate is None or up is None:
            return swiglu(gate_proj(x), up_proj(x))
        return ops.swiglu(x, gate, up, norm=fused)
