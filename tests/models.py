"""Random tiny models of every hybrid architecture, small enough to build in each test.

The weights come from numpy and a seed, named and laid out as published Hugging Face checkpoints
are, so that transformers and mlx-lm read the very same numbers. They are chosen so that the
recurrent state matters (slow decay, strong convolution) and every head differs from the others;
with a framework's default initialisation, code that loses the state would still pass.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes

from mixbit.data import tiny_model

MODEL_TYPES = ("qwen3_5", "qwen3_5_moe", "qwen3_next")

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

_TEXT: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "hidden_act": "silu",
}

_EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}


def config(model_type: str, **overrides: Any) -> dict[str, Any]:
    """``config.json`` of a tiny model; ``overrides`` replace fields of its text part."""
    text = _TEXT | (_EXPERTS if model_type != "qwen3_5" else {})
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    if model_type == "qwen3_next":
        text = text | rope | {"rope_parameters": rope}
        return {"model_type": model_type, "architectures": ["Qwen3NextForCausalLM"]} | deepcopy(
            text | {"layer_types": _layer_types(text | overrides)} | overrides
        )
    text |= {
        "model_type": f"{model_type}_text",
        # Half of the rotary pairs, shared out among time, height and width.
        "rope_parameters": rope | {"mrope_section": [2, 1, 1], "mrope_interleaved": True},
    }
    text |= {"layer_types": _layer_types(text | overrides)} | overrides
    family = "Qwen3_5MoeForCausalLM" if model_type == "qwen3_5_moe" else "Qwen3_5ForCausalLM"
    return {
        "model_type": model_type,
        "architectures": [family],
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": deepcopy(text),
    }


def build(
    model_type: str, *, seed: int = 0, dtype: mx.Dtype = mx.float32, **overrides: Any
) -> nn.Module:
    """A stock mlx-lm model with the seeded weights in ``dtype``; ``A_log`` stays float32."""
    settings = config(model_type, **overrides)
    model = _empty(settings)
    raw = {name: mx.array(value) for name, value in raw_weights(settings, seed).items()}
    weights = model.sanitize(raw)
    model.load_weights([(k, _cast(k, v, dtype)) for k, v in weights.items()])
    mx.eval(model.parameters())
    return model.eval()


def save_checkpoint(model: nn.Module, folder: Path) -> Path:
    """Save an unquantised model of ``build`` in MLX layout and return ``folder``.

    The tiny model's tokenizer lies beside it so that ``mlx_lm.load`` takes the folder; its ids
    go up to 2047, so only a model with ``vocab_size=2048`` can be given real text.
    """
    weights = dict(tree_flatten(model.parameters()))
    settings = asdict(model.args)
    _write_folder(folder, settings, weights)
    return folder


def save_raw(
    model_type: str,
    folder: Path,
    *,
    seed: int = 0,
    dtype: mx.Dtype = mx.float32,
    **overrides: Any,
) -> Path:
    """Save the weights of ``build`` in raw Hugging Face layout and return ``folder``."""
    settings = config(model_type, **overrides)
    weights = {
        name: _cast(name, mx.array(value), dtype)
        for name, value in raw_weights(settings, seed).items()
    }
    _write_folder(folder, settings, weights)
    return folder


def raw_weights(settings: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Float32 weights of the model that ``settings`` (a ``config``) describes, in raw layout.

    Norm gains are stored minus one and the convolution as ``[channels, 1, taps]``. ``RandomState``
    is numpy's frozen generator: the same numbers in every version.
    """
    text = settings.get("text_config", settings)
    nested = "text_config" in settings
    root = "model.language_model" if nested else "model"
    rng = np.random.RandomState(seed)
    hidden, vocab = text["hidden_size"], text["vocab_size"]
    tied = text["tie_word_embeddings"]
    weights: dict[str, np.ndarray] = {
        f"{root}.embed_tokens.weight": rng.normal(0, hidden**-0.5 if tied else 1, (vocab, hidden)),
        f"{root}.norm.weight": rng.normal(0, 0.1, hidden),
    }
    if not tied:
        weights["lm_head.weight"] = _matrix(rng, vocab, hidden)
    for index, kind in enumerate(text["layer_types"]):
        prefix = f"{root}.layers.{index}"
        weights[f"{prefix}.input_layernorm.weight"] = rng.normal(0, 0.1, hidden)
        weights[f"{prefix}.post_attention_layernorm.weight"] = rng.normal(0, 0.1, hidden)
        if kind == "linear_attention":
            parts = _linear_attention(rng, text, fused=not nested)
            weights |= {f"{prefix}.linear_attn.{name}": value for name, value in parts}
        else:
            weights |= {f"{prefix}.self_attn.{k}": v for k, v in _attention(rng, text)}
        if "num_experts" not in text:
            parts = _mlp(rng, hidden, text["intermediate_size"])
        else:
            parts = _experts(rng, text, fused=nested)
        weights |= {f"{prefix}.mlp.{name}": value for name, value in parts}
    return {name: value.astype(np.float32) for name, value in weights.items()}


_Named = Iterator[tuple[str, np.ndarray]]
_Random = np.random.RandomState


def _linear_attention(rng: _Random, text: Mapping[str, Any], *, fused: bool) -> _Named:
    hidden, heads = text["hidden_size"], text["linear_num_value_heads"]
    key = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    value = heads * text["linear_value_head_dim"]
    if fused:
        yield "in_proj_qkvz.weight", _matrix(rng, 2 * key + 2 * value, hidden)
        yield "in_proj_ba.weight", _matrix(rng, 2 * heads, hidden)
    else:
        yield "in_proj_qkv.weight", _matrix(rng, 2 * key + value, hidden)
        yield "in_proj_z.weight", _matrix(rng, value, hidden)
        yield "in_proj_b.weight", _matrix(rng, heads, hidden)
        yield "in_proj_a.weight", _matrix(rng, heads, hidden)
    taps = text["linear_conv_kernel_dim"]
    yield "conv1d.weight", rng.uniform(-5, 5, (2 * key + value, 1, taps))
    # exp(-4) = 0.018: a token loses about 2 % per step, so it is still felt 100 tokens on.
    yield "A_log", rng.normal(-4, 0.25, heads)
    yield "dt_bias", rng.normal(1, 0.25, heads)
    yield "norm.weight", rng.normal(1, 0.1, text["linear_value_head_dim"])
    yield "out_proj.weight", _matrix(rng, hidden, value)


def _attention(rng: _Random, text: Mapping[str, Any]) -> _Named:
    hidden, dim = text["hidden_size"], text["head_dim"]
    query, key = text["num_attention_heads"] * dim, text["num_key_value_heads"] * dim
    yield "q_proj.weight", _matrix(rng, 2 * query, hidden)
    yield "k_proj.weight", _matrix(rng, key, hidden)
    yield "v_proj.weight", _matrix(rng, key, hidden)
    yield "o_proj.weight", _matrix(rng, hidden, query)
    yield "q_norm.weight", rng.normal(0, 0.1, dim)
    yield "k_norm.weight", rng.normal(0, 0.1, dim)


def _mlp(rng: _Random, hidden: int, width: int) -> _Named:
    yield "gate_proj.weight", _matrix(rng, width, hidden)
    yield "up_proj.weight", _matrix(rng, width, hidden)
    yield "down_proj.weight", _matrix(rng, hidden, width)


def _experts(rng: _Random, text: Mapping[str, Any], *, fused: bool) -> _Named:
    hidden, count = text["hidden_size"], text["num_experts"]
    yield "gate.weight", _matrix(rng, count, hidden)
    yield "shared_expert_gate.weight", _matrix(rng, 1, hidden)
    for name, value in _mlp(rng, hidden, text["shared_expert_intermediate_size"]):
        yield f"shared_expert.{name}", value
    experts = [dict(_mlp(rng, hidden, text["moe_intermediate_size"])) for _ in range(count)]
    if fused:
        gate_up = [np.concatenate([e["gate_proj.weight"], e["up_proj.weight"]]) for e in experts]
        yield "experts.gate_up_proj", np.stack(gate_up)
        yield "experts.down_proj", np.stack([e["down_proj.weight"] for e in experts])
        return
    for index, expert in enumerate(experts):
        for name, value in expert.items():
            yield f"experts.{index}.{name}", value


def _matrix(rng: _Random, out_dims: int, in_dims: int) -> np.ndarray:
    return rng.normal(0, in_dims**-0.5, (out_dims, in_dims))


def _layer_types(text: Mapping[str, Any]) -> list[str]:
    every = text["full_attention_interval"]
    return [
        "linear_attention" if (index + 1) % every else "full_attention"
        for index in range(text["num_hidden_layers"])
    ]


def _empty(settings: Mapping[str, Any]) -> nn.Module:
    # mlx-lm edits the rope section that it is given.
    own = deepcopy(dict(settings))
    model_class, args_class = _get_classes(own)
    return model_class(args_class.from_dict(own))


def _cast(name: str, value: mx.array, dtype: mx.Dtype) -> mx.array:
    return value if name.endswith("A_log") else value.astype(dtype)


def _write_folder(
    folder: Path, settings: Mapping[str, Any], weights: Mapping[str, mx.array]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    dtype = next(v.dtype for k, v in weights.items() if k.endswith("embed_tokens.weight"))
    named = {"dtype": str(dtype).removeprefix("mlx.core."), **settings}
    (folder / "config.json").write_text(json.dumps(named, indent=2) + "\n", encoding="utf-8")
    mx.save_safetensors(str(folder / "model.safetensors"), dict(weights), {"format": "mlx"})
    for name in _TOKENIZER_FILES:
        shutil.copyfile(tiny_model() / name, folder / name)
