"""Quantise and dequantise tensor classes in torch, to see what each costs in KL divergence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

CLASSES: dict[str, str] = {
    "embed_tokens": r"embed_tokens\.weight$",
    "lm_head": r"lm_head\.weight$",
    "linear_attn.in_proj_qkv": r"in_proj_qkv\.weight$",
    "linear_attn.in_proj_z": r"in_proj_z\.weight$",
    "linear_attn.in_proj_ba": r"in_proj_[ab]\.weight$",
    "linear_attn.out_proj": r"linear_attn\.out_proj\.weight$",
    "self_attn.q_proj": r"q_proj\.weight$",
    "self_attn.k_proj": r"k_proj\.weight$",
    "self_attn.v_proj": r"v_proj\.weight$",
    "self_attn.o_proj": r"o_proj\.weight$",
    "mlp.gate_proj": r"gate_proj\.weight$",
    "mlp.up_proj": r"up_proj\.weight$",
    "mlp.down_proj": r"down_proj\.weight$",
}
PLAN: dict[str, int] = {
    "mlp.gate_proj": 3,
    "mlp.up_proj": 3,
    "mlp.down_proj": 3,
    "self_attn.q_proj": 5,
    "self_attn.k_proj": 5,
    "self_attn.v_proj": 5,
    "linear_attn.in_proj_qkv": 5,
    "linear_attn.in_proj_z": 5,
    "linear_attn.in_proj_ba": 5,
    "embed_tokens": 5,
    "lm_head": 6,
}


def fake_quantise(weight: torch.Tensor, bits: int, group: int = 64) -> torch.Tensor:
    """Quantise and dequantise as MLX does with the weight in bfloat16, affine mode."""
    bins = (1 << bits) - 1
    groups = weight.float().reshape(-1, group)
    low, high = groups.min(1, keepdim=True).values, groups.max(1, keepdim=True).values
    low_wins = low.abs() > high.abs()
    scale = ((high - low) / bins).clamp_min(1e-7)
    scale = torch.where(low_wins, scale, -scale)
    edge = torch.where(low_wins, low, high)
    first = torch.round(edge / scale)
    nonzero = first != 0
    scale = torch.where(nonzero, edge / torch.where(nonzero, first, 1.0), scale)
    bias = torch.where(nonzero, edge, 0.0)
    levels = torch.round((groups - bias) / scale).clamp(0, bins)
    stored_scale, stored_bias = scale.bfloat16().float(), bias.bfloat16().float()
    return (levels * stored_scale + stored_bias).bfloat16().float().reshape(weight.shape)


@contextmanager
def quantised(model: torch.nn.Module, plan: dict[str, int]) -> Iterator[float]:
    """Fake-quantise the classes in ``plan`` for a while; yields the mean bits a matrix weight."""
    matrices = {
        name: (parameter, plan.get(label))
        for name, parameter in model.named_parameters()
        for label, pattern in CLASSES.items()
        if re.search(pattern, name)
    }
    total = sum(p.numel() * (16 if bits is None else bits + 0.5) for p, bits in matrices.values())
    saved = {name: p.detach().clone() for name, (p, bits) in matrices.items() if bits is not None}
    with torch.no_grad():
        for parameter, bits in matrices.values():
            if bits is not None:
                parameter.copy_(fake_quantise(parameter, bits))
        yield total / sum(parameter.numel() for parameter, _ in matrices.values())
        for name, value in saved.items():
            matrices[name][0].copy_(value)
