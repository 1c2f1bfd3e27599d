"""The tiny models: their configurations and their initialisation.

Each is the ordinary transformers model, so parameter names and semantics are exactly those of
Qwen3.5's text model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

VOCAB_SIZE = 2048


@dataclass(frozen=True)
class Size:
    """What the tiny models differ in; heads are counts, ``head_dim`` and so on their widths."""

    hidden: int
    intermediate: int
    layers: int
    interval: int
    attention_heads: int
    key_value_heads: int
    linear_key_heads: int
    linear_value_heads: int
    linear_key_dim: int
    linear_value_dim: int
    copies_by_attention: bool


SIZES = {
    "qwen3_5": Size(256, 256, 8, 4, 4, 2, 2, 4, 64, 64, copies_by_attention=False),
    "attention": Size(192, 256, 6, 2, 4, 2, 2, 4, 32, 48, copies_by_attention=True),
}


def build_config(
    size: Size, *, vocab_size: int = VOCAB_SIZE, eos_token_id: int = 0, pad_token_id: int = 0
) -> Qwen3_5TextConfig:
    """Return the text configuration of a tiny model."""
    return Qwen3_5TextConfig(
        vocab_size=vocab_size,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.attention_heads,
        num_key_value_heads=size.key_value_heads,
        head_dim=64,
        linear_num_key_heads=size.linear_key_heads,
        linear_num_value_heads=size.linear_value_heads,
        linear_key_head_dim=size.linear_key_dim,
        linear_value_head_dim=size.linear_value_dim,
        linear_conv_kernel_dim=4,
        max_position_embeddings=4096,
        full_attention_interval=size.interval,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
        eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
    )


def build_model(size: Size, config: Qwen3_5TextConfig, seed: int = 0) -> Qwen3_5ForCausalLM:
    """Create a freshly initialised model with a small, scaled initialisation."""
    torch.manual_seed(seed)
    model = Qwen3_5ForCausalLM(config)
    depth_scale = (2 * config.num_hidden_layers) ** -0.5
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                parameter.normal_(0.0, 0.02 * depth_scale)
            elif name.endswith("proj.weight") or "in_proj_" in name:
                parameter.normal_(0.0, 0.04)
            elif name.endswith("A_log"):
                # Slow to medium decay: A in [0.05, 2), so that some heads remember for long.
                parameter.copy_(torch.empty_like(parameter).uniform_(0.05, 2.0).log())
            elif name.endswith("dt_bias"):
                parameter.fill_(-2.0)
            elif name.endswith("embed_tokens.weight"):
                parameter.normal_(0.0, 0.05)
            elif name.endswith("lm_head.weight"):
                parameter.normal_(0.0, 0.02)
        if size.copies_by_attention:
            _prepare_induction(model)
        else:
            _prepare_memories(model)
    return model


def _prepare_memories(model: Qwen3_5ForCausalLM) -> None:
    """Start with linear-attention layers that copy."""
    embedding = model.model.embed_tokens.weight
    embedding[:, 0] = 0.1  # a constant channel, which lets gates start open
    model.lm_head.weight.copy_(_turn(embedding))
    model.lm_head.weight[:, 0] = 0.0
    for index, block in enumerate(model.model.layers):
        if block.block_type == "linear_attention":
            _prepare_copy_head(block.linear_attn, wide=index % 4 == 1)
        else:
            _prepare_attention(block.self_attn)


def _prepare_induction(model: Qwen3_5ForCausalLM) -> None:
    """Start with full attention that copies what followed the current token before.

    The hidden channels start as three equal parts: the current token, the token before it and
    the token to write. The first linear layer fills the second part from the first; attention
    compares the first part of the query's position with the second part of earlier ones and
    brings the first part there into the third, which the output layer reads.
    """
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    part = embedding.shape[1] // 3
    embedding[:, part:] *= 0.1
    embedding[:, :part] *= 2.0
    embedding[:, 0] = 0.1
    head.normal_(0.0, 0.004)
    head[:, 2 * part + 1 :] += embedding[:, 1:part]
    for index, block in enumerate(model.model.layers):
        if block.block_type == "linear_attention":
            if index == 0:
                _prepare_shift(block.linear_attn, part)
        else:
            _prepare_match(block.self_attn, part)


def _prepare_shift(layer: nn.Module, part: int) -> None:
    """Start the value heads of the first key head as a shift by one token."""
    repeat = layer.num_v_heads // layer.num_k_heads
    width, first = repeat * layer.head_v_dim, 2 * layer.num_k_heads * layer.head_k_dim
    dim = layer.head_k_dim
    layer.in_proj_qkv.weight[first // 2 : first // 2 + dim].copy_(layer.in_proj_qkv.weight[:dim])
    value = layer.in_proj_qkv.weight[first : first + width]
    value[:, 0] = 0.0
    value[:, part:] = 0.0
    conv = layer.conv1d.weight
    conv.normal_(0.0, 0.1)
    conv[:, 0, -1] += 1.0
    conv[first // 2 : first // 2 + dim].copy_(conv[:dim])
    conv[first : first + width, 0] = torch.tensor([0.0, 0.0, 1.0, 0.0])
    layer.A_log[:repeat] = torch.tensor(16.0).log()
    layer.dt_bias[:repeat] = 1.0
    layer.in_proj_b.weight[:repeat, 0] = 1.0
    layer.in_proj_z.weight[:width].mul_(0.25)
    layer.in_proj_z.weight[:width, 0] = 0.8
    layer.out_proj.weight[part : 2 * part, :width] = 0.3 * value[:, :part].T


def _prepare_match(layer: nn.Module, part: int) -> None:
    """Start attention heads that find the token before and bring the token there."""
    dim, groups = layer.head_dim, layer.num_key_value_groups
    layer.q_norm.weight.fill_(0.5)
    layer.k_norm.weight.fill_(0.5)
    for head in range(layer.o_proj.weight.shape[1] // dim):
        source = (head // groups) * dim
        key = layer.k_proj.weight[source : source + dim]
        value = layer.v_proj.weight[source : source + dim]
        query = layer.q_proj.weight[2 * head * dim : (2 * head + 1) * dim]
        key[:, :part] *= 0.1
        query[:, part:] *= 0.1
        query[:, 1:part] = key[:, part + 1 : 2 * part]
        query[:, 0] = 0.0
        value[:, part:] *= 0.1
        layer.o_proj.weight[2 * part :, head * dim : (head + 1) * dim] += 0.25 * value[:, :part].T


def _turn(weight: Tensor, dim: int = 1) -> Tensor:
    """Rotate channels (all but the constant one) into the space in which copied tokens live."""
    constant, rest = weight.split([1, weight.shape[dim] - 1], dim=dim)
    return torch.cat((constant, rest.roll(127, dims=dim)), dim=dim)


def _prepare_copy_head(layer: nn.Module, wide: bool) -> None:
    """Start the first key head as an associative memory from the last token to the next one.

    The convolution lets the key see the token before the current one and the query the
    current one (``wide``: two tokens each), with equal projections, so that the state maps a
    context to what followed it; the output projection starts as the turned transpose of the
    value projection, so that what is read is close to the token's row of the output layer.
    Training is free to change all of this ("mimetic" initialisation; it makes copying appear
    early in a short run).
    """
    dim, keys = layer.head_k_dim, layer.num_k_heads * layer.head_k_dim
    repeat = layer.num_v_heads // layer.num_k_heads
    width = repeat * layer.head_v_dim
    qkv = layer.in_proj_qkv.weight
    qkv[:, 0] = 0.0
    qkv[keys : keys + dim].copy_(qkv[:dim])
    conv = layer.conv1d.weight  # [channels, 1, taps], last tap is the current token
    conv.normal_(0.0, 0.1)
    conv[:, 0, -1] += 1.0
    before = 0.7 if wide else 0.0
    conv[:dim, 0] = torch.tensor([0.0, 0.0, before, 1.0])
    conv[keys : keys + dim, 0] = torch.tensor([0.0, before, 1.0, 0.0])
    conv[2 * keys : 2 * keys + width, 0] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    layer.A_log[:repeat] = torch.tensor(0.02).log()
    layer.in_proj_a.weight[:repeat] = 0.0
    layer.in_proj_b.weight[:repeat] = 0.0
    layer.in_proj_b.weight[:repeat, 0] = 1.0
    layer.in_proj_z.weight[:width].mul_(0.25)
    layer.in_proj_z.weight[:width, 0] = 0.8
    layer.out_proj.weight[:, :width] = 0.6 * _turn(qkv[2 * keys : 2 * keys + width]).T


def _prepare_attention(layer: nn.Module) -> None:
    """Start the output projection as the transpose of the value projection, per query head."""
    dim, groups = layer.head_dim, layer.num_key_value_groups
    for head in range(layer.o_proj.weight.shape[1] // dim):
        source = (head // groups) * dim
        layer.o_proj.weight[:, head * dim : (head + 1) * dim] = (
            0.25 * _turn(layer.v_proj.weight[source : source + dim]).T
        )
