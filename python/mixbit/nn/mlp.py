"""The gated feed-forward block of qwen3_5 and qwen3_next over :mod:`mixbit.ops`."""

from __future__ import annotations

import mlx.core as mx
from mlx_lm.models import qwen3_next

from mixbit import ops
from mixbit.nn.projections import weight_of

__all__ = ["MLP"]


class MLP(qwen3_next.Qwen3NextMLP):
    """``down(SiLU(gate(x)) * up(x))``: [..., hidden] -> [..., hidden]."""

    def __call__(self, x: mx.array) -> mx.array:
        gate, up = weight_of(self.gate_proj), weight_of(self.up_proj)
        if gate is None or up is None:
            return super().__call__(x)
        return self.down_proj(ops.swiglu(x, gate, up))
