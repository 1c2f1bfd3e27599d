"""The mixture-of-experts block of qwen3_5 and qwen3_next over :mod:`mixbit.ops`."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import qwen3_next, switch_layers

from mixbit import ops
from mixbit.nn.linear import packed_weight
from mixbit.nn.projections import project
from mixbit.nn.switch import QuantizedSwitchLinear, SwitchLinear

__all__ = ["SparseMoeBlock"]


class SparseMoeBlock(qwen3_next.Qwen3NextSparseMoeBlock):
    """Routed and shared experts: [..., hidden] -> [..., hidden].

    The router's logits and softmax, the shared experts' gate and all sums are in fp32.
    """

    def __call__(self, x: mx.array) -> mx.array:
        stacks = _stacks_of(self.switch_mlp)
        if stacks is None or self.sharding_group is not None:
            return super().__call__(x)
        gate, up, down = stacks
        logits, shared = project(x, (self.gate, self.shared_expert_gate), (mx.float32, mx.float32))
        indices, scores = ops.route(logits, self.top_k, normalise=self.norm_topk_prob)
        hidden = ops.gather_swiglu(mx.expand_dims(x, (-2, -3)), gate, up, indices)
        y = ops.gather_matmul(hidden, down, indices, scores=scores).squeeze(-2)
        return (y + mx.sigmoid(shared) * self.shared_expert(x)).astype(x.dtype)


def _stacks_of(experts: Any) -> list[ops.Weight] | None:
    """gate, up and down as the operations take them; ``None`` if somebody else's code is there."""
    if type(experts) is not switch_layers.SwitchGLU:
        return None
    if type(experts.activation) is not switch_layers.SwiGLU:
        return None
    layers = (experts.gate_proj, experts.up_proj, experts.down_proj)
    stacks = [_stack_of(layer) for layer in layers]
    known = [stack for stack in stacks if stack is not None]
    return known if len(known) == len(layers) else None


def _stack_of(layer: Any) -> ops.Weight | None:
    if "bias" in layer:
        return None
    if type(layer) is SwitchLinear:
        return ops.Weight(layer["weight"])
    if type(layer) is not QuantizedSwitchLinear or layer.global_scale is not None:
        return None
    return packed_weight(layer)
