"""The modules of the three hybrid families, by arithmetic on their configs.

mlx-lm would tell the same from a model that it builds, but importing it takes seconds. What the
arithmetic does not know for certain is left to mlx-lm, which then also says what is wrong.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from mixbit.checkpoint.structure import ModelStructure, ModuleShape

_DIMENSIONS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "linear_num_key_heads", "linear_num_value_heads",
    "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim",
)  # fmt: skip
_EXPERT_DIMENSIONS = (
    "num_experts", "moe_intermediate_size", "shared_expert_intermediate_size",
)  # fmt: skip
_FLAGS = ("tie_word_embeddings", "attention_bias")
# Without these mlx-lm builds no qwen3_next, though they change no shape.
_NEXT_OTHERS = ("rms_norm_eps", "rope_theta", "partial_rotary_factor", "num_experts_per_tok",
                "max_position_embeddings", "decoder_sparse_step", "mlp_only_layers")  # fmt: skip


def family_structure(config: Mapping[str, Any]) -> ModelStructure | None:
    """The structure of a qwen3_5, qwen3_5_moe or qwen3_next model as mlx-lm would build it.

    ``None`` for other models, and where the config leaves out a dimension or gives an odd one.
    """
    model_type = config.get("model_type")
    if model_type == "qwen3_next":
        if not all(key in config for key in _NEXT_OTHERS):
            return None
        text, prefix = config, ""
    elif model_type in ("qwen3_5", "qwen3_5_moe"):
        text, prefix = config.get("text_config", config), "language_model."
    else:
        return None
    if not isinstance(text, Mapping) or not _is_sound(text, model_type):
        return None
    family = _Family(model_type, text)
    modules = tuple(
        ModuleShape(prefix + m.path, m.kind, m.out_dims, m.in_dims, m.experts)
        for m in family.modules()
    )
    params = sum(module.params for module in modules) + family.other_params()
    return ModelStructure(model_type, modules, params)


def _is_sound(text: Mapping[str, Any], model_type: str) -> bool:
    needed: tuple[str, ...] = _DIMENSIONS
    if text.get("num_experts", 0) != 0 or model_type == "qwen3_next":
        needed += _EXPERT_DIMENSIONS
    optional = ("full_attention_interval", "decoder_sparse_step")
    sizes = [text.get(key) for key in needed] + [text[key] for key in optional if key in text]
    return (
        all(type(size) is int and size > 0 for size in sizes)
        and text["linear_num_value_heads"] % text["linear_num_key_heads"] == 0
        and all(type(text.get(key, False)) is bool for key in _FLAGS)
        and isinstance(text.get("mlp_only_layers", []), list)
    )


class _Family:
    """One config, read as mlx-lm reads it."""

    def __init__(self, model_type: str, text: Mapping[str, Any]) -> None:
        self.next = model_type == "qwen3_next"
        self.text = text
        self.hidden: int = text["hidden_size"]
        self.keys: int = text["linear_num_key_heads"] * text["linear_key_head_dim"]
        self.values: int = text["linear_num_value_heads"] * text["linear_value_head_dim"]
        self.attention: list[bool] = [
            (layer + 1) % text.get("full_attention_interval", 4) == 0
            for layer in range(text["num_hidden_layers"])
        ]

    def modules(self) -> Iterator[ModuleShape]:
        """Every module that can be quantised, in mlx-lm's order; paths below the text model."""
        vocabulary = self.text["vocab_size"]
        yield ModuleShape("model.embed_tokens", "embedding", vocabulary, self.hidden)
        for layer, is_attention in enumerate(self.attention):
            path = f"model.layers.{layer}"
            mixer = self._attention if is_attention else self._delta_net
            yield from mixer(path)
            if self._is_sparse(layer):
                yield from self._experts(f"{path}.mlp")
            else:
                yield from self._mlp(f"{path}.mlp", self.text["intermediate_size"])
        if not self.text.get("tie_word_embeddings", False):
            yield _linear("lm_head", vocabulary, self.hidden)

    def other_params(self) -> int:
        """Weights that are never quantised: norms, convolutions, gates and biases."""
        text = self.text
        heads, key_value_heads = text["num_attention_heads"], text["num_key_value_heads"]
        attention = 2 * text["head_dim"]
        if text.get("attention_bias", False):
            attention += 2 * (heads + key_value_heads) * text["head_dim"] + self.hidden
        convolution = (2 * self.keys + self.values) * text["linear_conv_kernel_dim"]
        delta_net = convolution + 2 * text["linear_num_value_heads"] + text["linear_value_head_dim"]
        mixers = sum(attention if is_attention else delta_net for is_attention in self.attention)
        return mixers + (2 * len(self.attention) + 1) * self.hidden

    def _is_sparse(self, layer: int) -> bool:
        if self.text.get("num_experts", 0) == 0:
            return False
        if not self.next:
            return True
        step = self.text["decoder_sparse_step"]
        return layer not in self.text["mlp_only_layers"] and (layer + 1) % step == 0

    def _delta_net(self, layer: str) -> Iterator[ModuleShape]:
        path, value_heads = f"{layer}.linear_attn", self.text["linear_num_value_heads"]
        if self.next:
            yield _linear(f"{path}.in_proj_qkvz", 2 * self.keys + 2 * self.values, self.hidden)
            yield _linear(f"{path}.in_proj_ba", 2 * value_heads, self.hidden)
        else:
            yield _linear(f"{path}.in_proj_qkv", 2 * self.keys + self.values, self.hidden)
            yield _linear(f"{path}.in_proj_z", self.values, self.hidden)
            yield _linear(f"{path}.in_proj_b", value_heads, self.hidden)
            yield _linear(f"{path}.in_proj_a", value_heads, self.hidden)
        yield _linear(f"{path}.out_proj", self.hidden, self.values)

    def _attention(self, layer: str) -> Iterator[ModuleShape]:
        path, width = f"{layer}.self_attn", self.text["head_dim"]
        queries = self.text["num_attention_heads"] * width
        keys = self.text["num_key_value_heads"] * width
        yield _linear(f"{path}.q_proj", 2 * queries, self.hidden)  # queries and their gates
        yield _linear(f"{path}.k_proj", keys, self.hidden)
        yield _linear(f"{path}.v_proj", keys, self.hidden)
        yield _linear(f"{path}.o_proj", self.hidden, queries)

    def _mlp(self, path: str, width: int) -> Iterator[ModuleShape]:
        yield _linear(f"{path}.gate_proj", width, self.hidden)
        yield _linear(f"{path}.down_proj", self.hidden, width)
        yield _linear(f"{path}.up_proj", width, self.hidden)

    def _experts(self, path: str) -> Iterator[ModuleShape]:
        experts, width = self.text["num_experts"], self.text["moe_intermediate_size"]
        yield _linear(f"{path}.gate", experts, self.hidden)
        for name, out_dims, in_dims in (
            ("gate_proj", width, self.hidden),
            ("up_proj", width, self.hidden),
            ("down_proj", self.hidden, width),
        ):
            yield ModuleShape(f"{path}.switch_mlp.{name}", "switch", out_dims, in_dims, experts)
        yield from self._mlp(f"{path}.shared_expert", self.text["shared_expert_intermediate_size"])
        yield _linear(f"{path}.shared_expert_gate", 1, self.hidden)


def _linear(path: str, out_dims: int, in_dims: int) -> ModuleShape:
    return ModuleShape(path, "linear", out_dims, in_dims)
