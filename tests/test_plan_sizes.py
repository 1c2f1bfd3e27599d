"""Sizes under the unsloth recipe against arithmetic from the shapes, at real and at tiny sizes."""

from typing import Any

import mlx.core as mx
import pytest

from mixbit.checkpoint import describe
from mixbit.plan import Plan
from models import MODEL_TYPES, config

BASES = (2, 3, 4, 5, 6, 7, 8)
REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "27B": ("qwen3_5", {
        "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64,
        "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256,
        "linear_num_key_heads": 16, "linear_num_value_heads": 48,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "vocab_size": 248320}),
    "35B-A3B": ("qwen3_5_moe", {
        "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "vocab_size": 248320}),
    "80B-A3B": ("qwen3_next", {
        "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "vocab_size": 151936}),
    "397B-A17B": ("qwen3_5_moe", {
        "hidden_size": 4096, "num_hidden_layers": 60, "num_attention_heads": 32,
        "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,
        "linear_num_value_heads": 64, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024, "vocab_size": 248320}),
}  # fmt: skip
CASES = {name: (name, {}) for name in MODEL_TYPES} | REAL


def snap(bits: int) -> int:
    return 8 if bits >= 7 else bits


def by_arithmetic(text: dict[str, Any], base: int) -> tuple[int, int]:
    """Parameters and bytes of a model under ``unsloth-2026-03``, from its dimensions alone."""
    hidden, layers = text["hidden_size"], text["num_hidden_layers"]
    full = layers // text["full_attention_interval"]
    gdn = layers - full
    heads = text["linear_num_value_heads"]
    keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    values = heads * text["linear_value_head_dim"]
    queries = text["num_attention_heads"] * text["head_dim"]
    pairs = text["num_key_value_heads"] * text["head_dim"]
    if "num_experts" in text:
        experts = text["num_experts"] * text["moe_intermediate_size"]
        ffn = layers * hidden * (experts + text["shared_expert_intermediate_size"])
        routers = layers * hidden * (text["num_experts"] + 1)
    else:
        ffn, routers = layers * hidden * text["intermediate_size"], 0
    table = text["vocab_size"] * hidden
    attention = full * hidden * (2 * queries + 2 * pairs)
    linear = gdn * hidden * (2 * keys + 2 * values)
    sensitive = full * hidden * queries + gdn * hidden * values + gdn * hidden * 2 * heads
    rest = (
        hidden * (2 * layers + 1)
        + full * 2 * text["head_dim"]
        + gdn * ((2 * keys + values) * text["linear_conv_kernel_dim"] + 2 * heads)
        + gdn * text["linear_value_head_dim"]
    )
    packed = [
        (2 * ffn, snap(base)),
        (ffn, snap(base + 1)),
        (table + attention + linear, snap(base + 2)),
        (table, snap(base + 3)),
        (routers, 8),
    ]
    # In halves of a bit: groups of 64 add 32 / 64 to the width.
    bits = sum(weights * (2 * width + 1) for weights, width in packed) + (sensitive + rest) * 32
    params = 3 * ffn + 2 * table + attention + linear + routers + sensitive + rest
    assert bits % 16 == 0
    return params, bits // 16


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("base", BASES)
def test_bytes_and_bpw_are_what_the_shapes_give(name: str, base: int) -> None:
    model_type, sizes = CASES[name]
    settings = config(model_type, **sizes)
    params, nbytes = by_arithmetic(settings.get("text_config", settings), base)
    report = Plan.load(f"unsloth-2026-03@{base}", model=settings).report()
    assert (report["params"], report["bytes"]) == (params, nbytes)
    assert report["bpw"] == 8 * nbytes / params


def test_27b_at_3_bits_is_the_published_size() -> None:
    """Parameters in billions, bits with scales, and gigabytes, as published: rounded."""
    model_type, sizes = REAL["27B"]
    rows = Plan.load("unsloth-2026-03@3", model=config(model_type, **sizes)).report()["classes"]
    published = {
        ("mlp.gate_proj", "mlp.up_proj"): (11.4, 3.5, 5.0),
        ("mlp.down_proj",): (5.7, 4.5, 3.2),
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
         "linear_attn.in_proj_qkv", "linear_attn.in_proj_z"): (5.2, 5.5, 3.6),
        ("linear_attn.out_proj", "self_attn.o_proj"): (2.0, 16, 4.0),
        ("embed_tokens",): (1.27, 5.5, 0.9),
        ("lm_head",): (1.27, 6.5, 1.0),
    }  # fmt: skip
    for names, (params, bits, gigabytes) in published.items():
        members = [row for row in rows if row["class"] in names]
        assert len(members) == len(names)
        assert {row["bpw"] for row in members} == {bits}
        digits = 2 if params == 1.27 else 1
        assert round(sum(row["params"] for row in members) / 1e9, digits) == params
        assert abs(sum(row["bytes"] for row in members) / 1e9 - gigabytes) <= 0.06
    listed = [row for row in rows if any(row["class"] in names for names in published)]
    assert round(sum(row["bytes"] for row in listed) / 1e9, 1) == 17.7
    assert round(sum(row["params"] for row in listed) / 1e9, 1) == 26.9


def test_a_397b_model_is_planned_from_its_config_without_memory() -> None:
    model_type, sizes = REAL["397B-A17B"]
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    structure = describe(config(model_type, **sizes))
    assert round(structure.params / 1e9) == 396
    assert Plan.load("unsloth@3", model=structure).report()["bytes"] > 150e9
    assert mx.get_peak_memory() - before < 1 << 20
