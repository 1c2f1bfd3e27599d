"""Describing a model from its config."""

from copy import deepcopy
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from mixbit.checkpoint import ModelStructure, build_model, describe, parameter_shapes
from mixbit.errors import MixbitError
from models import MODEL_TYPES, build, config

# The text part of the published 27B model; nothing smaller would show an evaluation.
LARGE = {
    "model_type": "qwen3_5",
    "text_config": {
        "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64,
        "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256,
        "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "vocab_size": 248320,
    },
}  # fmt: skip


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("tied", [False, True])
def test_agrees_with_the_built_model(model_type: str, tied: bool) -> None:
    model = build(model_type, tie_word_embeddings=tied)
    structure = describe(config(model_type, tie_word_embeddings=tied))
    modules = dict(tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module))
    quantisable = {path for path, module in modules.items() if hasattr(module, "to_quantized")}

    assert structure.model_type == model_type
    assert {shape.path for shape in structure.modules} == quantisable
    for shape in structure.modules:
        weight = modules[shape.path].weight
        assert (shape.out_dims, shape.in_dims) == weight.shape[-2:]
        assert shape.params == weight.size
        assert (shape.kind == "switch") == (weight.ndim == 3)
        assert (shape.kind == "embedding") == isinstance(modules[shape.path], nn.Embedding)
    assert structure.params == sum(w.size for _, w in tree_flatten(model.parameters()))


def test_paths_are_those_after_sanitize() -> None:
    paths = {shape.path for shape in describe(config("qwen3_5_moe")).modules}
    assert {
        "language_model.model.embed_tokens",
        "language_model.lm_head",
        "language_model.model.layers.0.linear_attn.out_proj",
        "language_model.model.layers.3.self_attn.o_proj",
        "language_model.model.layers.0.mlp.gate",
        "language_model.model.layers.0.mlp.switch_mlp.down_proj",
        "language_model.model.layers.0.mlp.shared_expert.up_proj",
        "language_model.model.layers.0.mlp.shared_expert_gate",
    } <= paths
    assert not any("conv1d" in path or "norm" in path for path in paths)


def test_computes_no_weight() -> None:
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    structure = describe(LARGE)
    assert 26e9 < structure.params < 27.5e9
    assert mx.get_peak_memory() - before < 1 << 20


def test_leaves_the_config_as_it_was() -> None:
    given = config("qwen3_5")
    before = deepcopy(given)
    describe(given)
    assert given == before


def test_parameter_shapes_name_every_parameter() -> None:
    shapes = parameter_shapes(build_model(config("qwen3_next")))
    assert shapes["model.layers.0.linear_attn.conv1d.weight"] == (256, 4, 1)
    assert shapes["model.layers.0.linear_attn.A_log"] == (4,)


def test_json_round_trip() -> None:
    structure = describe(config("qwen3_5_moe"))
    assert ModelStructure.from_json(structure.to_json()) == structure


@pytest.mark.parametrize(
    "change",
    [
        {"params": 0},
        {"params": True},
        {"modules": {"a": {"kind": "conv", "out_dims": 1, "in_dims": 1, "experts": 1}}},
        {"modules": {"a": {"kind": "linear", "out_dims": 1.5, "in_dims": 1, "experts": 1}}},
    ],
)
def test_from_json_refuses_odd_values(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"kind|whole number"):
        ModelStructure.from_json({"model_type": "x", "params": 1, "modules": {}} | change)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "names no model_type"),
        ({"model_type": 3}, "names no model_type"),
        ({"model_type": "../../os"}, "names no model_type"),
        ({"model_type": "no_such_model"}, "cannot build a no_such_model"),
        ({"model_type": "base"}, "cannot build a base"),
        ({"model_type": "qwen3_next"}, "cannot build a qwen3_next"),
        ({"model_type": "qwen3_5", "model_file": "evil.py"}, r"own code \(evil\.py\)"),
        (
            {"model_type": "qwen3_5", "text_config": {"linear_num_key_heads": 3}},
            "must be divisible",
        ),
        ({"model_type": "qwen3_next", "num_hidden_layers": 10**9}, "asks for 1000000000 layers"),
        (
            {"model_type": "qwen3_5", "text_config": {"num_hidden_layers": 4097}},
            "asks for 4097 layers",
        ),
    ],
)
def test_refuses_configs_that_describe_no_model(document: dict[str, Any], message: str) -> None:
    with pytest.raises(MixbitError, match=message):
        describe(document)
