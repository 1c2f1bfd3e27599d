"""A forward pass over transformers' parameters that is quicker to train on a CPU.

It computes what transformers' own forward computes; against the torch fallback there it has

* the depthwise causal convolution as shifted in-place multiply-adds in ``[B, T, C]``;
* chunks of 32 with one small triangular inverse (own backward) per chunk;
* key-key and query-key products once per key head, not per value head;
* hand-written backward passes for the convolution and the RMS norms.

``max_abs_difference`` checks it against transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM

CHUNK = 32


class _UnitLowerInverse(torch.autograd.Function):
    """Inverse of a batch of unit lower-triangular matrices, given their strict lower part."""

    @staticmethod
    def forward(ctx: Any, strict: Tensor) -> Tensor:
        size = strict.shape[-1]
        eye = torch.eye(size, dtype=strict.dtype).expand_as(strict)
        inverse = torch.linalg.solve_triangular(strict, eye, upper=False, unitriangular=True)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        return -(transposed @ grad @ transposed).tril(-1)


class _CausalConvSilu(torch.autograd.Function):
    """SiLU of a depthwise causal convolution over ``[B, T, C]`` with weight ``[C, K]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        taps = weight.shape[1]
        out = x * weight[:, -1]
        for lag in range(1, taps):
            out[:, lag:].addcmul_(x[:, :-lag], weight[:, taps - 1 - lag])
        ctx.save_for_backward(x, weight, out)
        return functional.silu(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, out = ctx.saved_tensors
        grad = torch.ops.aten.silu_backward(grad, out)
        taps = weight.shape[1]
        grad_x = grad * weight[:, -1]
        grad_weight = torch.empty_like(weight)
        grad_weight[:, -1] = (grad * x).sum((0, 1))
        for lag in range(1, taps):
            grad_x[:, :-lag].addcmul_(grad[:, lag:], weight[:, taps - 1 - lag])
            grad_weight[:, taps - 1 - lag] = (grad[:, lag:] * x[:, :-lag]).sum((0, 1))
        return grad_x, grad_weight


class _Rms(torch.autograd.Function):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + eps).rsqrt_()
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, scale, weight = ctx.saved_tensors
        product = grad * normed
        grad_weight = product.sum(tuple(range(product.ndim - 1)))
        inner = (product @ weight.unsqueeze(-1)) / product.shape[-1]
        return (grad * weight).addcmul_(normed, inner, value=-1).mul_(scale), grad_weight, None


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _Rms.apply(x, weight, eps)


def _unit(x: Tensor, scale: float = 1.0) -> Tensor:
    """L2 normalisation over the last dimension with transformers' epsilon."""
    dim = x.shape[-1]
    return _Rms.apply(x, x.new_full((dim,), scale * dim**-0.5), 1e-6 / dim)


def gated_delta_net(layer: nn.Module, x: Tensor) -> Tensor:
    """Training forward of one Qwen3.5 linear-attention block.

    Shapes: ``B`` batch, ``K`` key heads, ``R`` value heads per key head, ``N``
    chunks, ``C`` positions in a chunk, ``D`` head dimension.
    """
    num_k, num_v, k_dim, v_dim = (
        layer.num_k_heads,
        layer.num_v_heads,
        layer.head_k_dim,
        layer.head_v_dim,
    )
    repeat = num_v // num_k
    batch, length, _ = x.shape
    chunks = length // CHUNK
    mixed = _CausalConvSilu.apply(layer.in_proj_qkv(x), layer.conv1d.weight.squeeze(1))
    query, key, value = mixed.split([num_k * k_dim, num_k * k_dim, num_v * v_dim], dim=-1)

    def lay(t: Tensor, count: int, dim: int) -> Tensor:
        return t.reshape(batch, chunks, CHUNK, count, dim).permute(0, 3, 1, 2, 4).contiguous()

    query = _unit(lay(query, num_k, k_dim), k_dim**-0.5)
    key = _unit(lay(key, num_k, k_dim))
    value = lay(value, num_v, v_dim).view(batch, num_k, repeat, chunks, CHUNK, v_dim)

    def gates(t: Tensor) -> Tensor:
        return t.view(batch, chunks, CHUNK, num_k, repeat).permute(0, 3, 4, 1, 2).contiguous()

    beta = gates(layer.in_proj_b(x).sigmoid())
    total = gates(
        -layer.A_log.exp() * functional.softplus(layer.in_proj_a(x) + layer.dt_bias)
    ).cumsum(-1)
    upper = torch.ones(CHUNK, CHUNK, dtype=torch.bool).triu(1)
    pairwise = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(upper, float("-inf")).exp()
    key_t = key.transpose(-1, -2)
    intra = (query @ key_t).unsqueeze(2) * pairwise
    strict = ((key @ key_t).unsqueeze(2) * pairwise * beta.unsqueeze(-1)).tril(-1)
    inverse = _UnitLowerInverse.apply(strict) * beta.unsqueeze(-2)
    decay = total.exp()
    new_values = inverse @ value
    key_wide = key.unsqueeze(2)
    k_cum = (inverse * decay.unsqueeze(-2)) @ key_wide
    q_decayed = query.unsqueeze(2) * decay.unsqueeze(-1)
    last = total[..., -1:]
    k_last = (key_wide * (last - total).exp().unsqueeze(-1)).transpose(-1, -2)
    chunk_decay = last.exp().unsqueeze(-1)
    state = x.new_zeros(batch, num_k, repeat, k_dim, v_dim)
    fresh_parts, read_parts = [], []
    parts = zip(
        new_values.unbind(3),
        k_cum.unbind(3),
        q_decayed.unbind(3),
        k_last.unbind(3),
        chunk_decay.unbind(3),
        strict=True,
    )
    for new_value, cum, read, write, keep in parts:
        fresh = new_value - cum @ state
        read_parts.append(read @ state)
        fresh_parts.append(fresh)
        state = state * keep + write @ fresh
    core = torch.stack(read_parts, dim=3) + intra @ torch.stack(fresh_parts, dim=3)
    core = (
        core.view(batch, num_v, chunks, CHUNK, v_dim)
        .permute(0, 2, 3, 1, 4)
        .contiguous()
        .view(batch, length, num_v, v_dim)
    )
    gate = functional.silu(layer.in_proj_z(x)).view(batch, length, num_v, v_dim)
    gated = _rms(core, layer.norm.weight, layer.layer_norm_epsilon) * gate
    return layer.out_proj(gated.view(batch, length, num_v * v_dim))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    dim = cos.shape[-1]
    rotary, rest = x[..., :dim], x[..., dim:]
    half = dim // 2
    turned = torch.cat((-rotary[..., half:], rotary[..., :half]), dim=-1)
    return torch.cat((rotary * cos + turned * sin, rest), dim=-1)


def full_attention(layer: nn.Module, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Training forward of one gated full-attention block."""
    batch, length, _ = x.shape
    dim = layer.head_dim
    eps = layer.q_norm.eps
    query, gate = layer.q_proj(x).view(batch, length, -1, 2 * dim).chunk(2, dim=-1)
    query = _rms(query, 1.0 + layer.q_norm.weight, eps).transpose(1, 2)
    key = layer.k_proj(x).view(batch, length, -1, dim)
    key = _rms(key, 1.0 + layer.k_norm.weight, eps).transpose(1, 2)
    value = layer.v_proj(x).view(batch, length, -1, dim).transpose(1, 2)
    query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
    groups = layer.num_key_value_groups
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    out = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    out = out.transpose(1, 2).reshape(batch, length, -1) * torch.sigmoid(
        gate.reshape(batch, length, -1)
    )
    return layer.o_proj(out)


def fast_hidden(model: Qwen3_5ForCausalLM, input_ids: Tensor) -> Tensor:
    """Final normalised hidden states; the length must be a multiple of ``CHUNK``."""
    text = model.model
    length = input_ids.shape[1]
    positions = torch.arange(length, dtype=torch.float32)
    angles = positions[:, None] * text.rotary_emb.inv_freq[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    cos, sin = angles.cos(), angles.sin()
    hidden = text.embed_tokens(input_ids)
    for block in text.layers:
        eps = block.input_layernorm.eps
        normed = _rms(hidden, 1.0 + block.input_layernorm.weight, eps)
        if block.block_type == "linear_attention":
            hidden = hidden + gated_delta_net(block.linear_attn, normed)
        else:
            hidden = hidden + full_attention(block.self_attn, normed, cos, sin)
        normed = _rms(hidden, 1.0 + block.post_attention_layernorm.weight, eps)
        mlp = block.mlp
        hidden = hidden + mlp.down_proj(
            functional.silu(mlp.gate_proj(normed)) * mlp.up_proj(normed)
        )
    return _rms(hidden, 1.0 + text.norm.weight, text.norm.eps)


def fast_logits(model: Qwen3_5ForCausalLM, input_ids: Tensor) -> Tensor:
    """Logits of the fast forward."""
    return model.lm_head(fast_hidden(model, input_ids))


@torch.no_grad()
def max_abs_difference(model: Qwen3_5ForCausalLM, length: int = 256, seed: int = 1) -> float:
    """Largest absolute logit difference between the fast and the transformers forward."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, model.config.vocab_size, (2, length), generator=generator)
    return (model(ids, use_cache=False).logits - fast_logits(model, ids)).abs().max().item()
