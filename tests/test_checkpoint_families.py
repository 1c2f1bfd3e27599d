"""Shapes by arithmetic: what mlx-lm's model has, without building or importing it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixbit.checkpoint import build_model, structure_of
from mixbit.checkpoint.families import family_structure
from models import MODEL_TYPES, config

_small = st.integers(1, 5)


@st.composite
def _overrides(draw: st.DrawFn) -> dict[str, Any]:
    key_heads = draw(_small)
    layers = draw(st.integers(1, 6))
    return {
        "vocab_size": draw(st.integers(2, 40)),
        "hidden_size": draw(st.integers(2, 40)),
        "intermediate_size": draw(st.integers(1, 40)),
        "num_hidden_layers": layers,
        "full_attention_interval": draw(_small),
        "num_attention_heads": draw(_small),
        "num_key_value_heads": draw(_small),
        "head_dim": draw(st.sampled_from([8, 12, 16])),
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * draw(_small),
        "linear_key_head_dim": draw(_small),
        "linear_value_head_dim": draw(_small),
        "linear_conv_kernel_dim": draw(_small),
        "tie_word_embeddings": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "num_experts": draw(_small),
        "num_experts_per_tok": 1,
        "moe_intermediate_size": draw(_small),
        "shared_expert_intermediate_size": draw(_small),
        "decoder_sparse_step": draw(st.integers(1, 3)),
        "mlp_only_layers": draw(st.lists(st.integers(0, layers), max_size=2)),
    }


@given(st.sampled_from(MODEL_TYPES), _overrides(), st.booleans())
def test_agrees_with_mlx_lm(model_type: str, overrides: dict[str, Any], sparse: bool) -> None:
    if not sparse and model_type == "qwen3_5":
        del overrides["num_experts"]
    document = config(model_type, **overrides)
    assert family_structure(document) == structure_of(build_model(document), model_type)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 0},
        {"hidden_size": "64"},
        {"head_dim": None},
        {"num_experts": True},
        {"tie_word_embeddings": "no"},
        {"linear_num_value_heads": 5},
    ],
)
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_leaves_odd_configs_to_mlx_lm(model_type: str, change: dict[str, Any]) -> None:
    assert family_structure(config(model_type, **change)) is None


def test_leaves_out_no_dimension() -> None:
    document = config("qwen3_next")
    for key in ("vocab_size", "linear_conv_kernel_dim", "num_experts", "rope_theta"):
        assert family_structure({k: v for k, v in document.items() if k != key}) is None
    assert family_structure({"model_type": "llama"}) is None


def test_the_largest_model_needs_no_slow_import(tmp_path: Path) -> None:
    source = tmp_path / "config.json"
    source.write_text(
        json.dumps(config("qwen3_5_moe", num_hidden_layers=60, num_experts=512, hidden_size=4096))
    )
    program = (
        "import sys; from mixbit.cli import main;"
        f"code = main(['plan', 'show', 'unsloth@3', '--model', {str(source)!r}]);"
        "slow = {'transformers', 'mlx_lm', 'torch'} & sys.modules.keys();"
        "sys.exit(code or ' '.join(slow) or None)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "recipe: unsloth-2026-03@3" in run.stdout
