"""One table of every spelling of a module's path.

The canonical path is mlx-lm's own, the one that its ``sanitize`` leads to. Published files spell
the same module in the Hugging Face namespace, with or without a prefix, with ``.weight`` behind,
as one entry per expert, under llama.cpp's GGUF names, and with the projections of GatedDeltaNet
fused (Qwen3-Next) or split (Qwen3.5).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mixbit.checkpoint import PREFIXES, ModelStructure, side_part, stem_of

_FUSED = {
    "linear_attn.in_proj_qkvz": ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
    "linear_attn.in_proj_ba": ("linear_attn.in_proj_b", "linear_attn.in_proj_a"),
}
_SPLIT = {part: whole for whole, parts in _FUSED.items() for part in parts}

_EXPERT = re.compile(r"mlp\.experts\.(?:(\d+)\.)?(gate|up|down)_proj")
_FUSED_EXPERTS = ("mlp.switch_mlp.gate_proj", "mlp.switch_mlp.up_proj")

_GGUF_LAYER = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_out": "linear_attn.out_proj",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_exps": "mlp.switch_mlp.gate_proj",
    "ffn_up_exps": "mlp.switch_mlp.up_proj",
    "ffn_down_exps": "mlp.switch_mlp.down_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ssm_norm": "linear_attn.norm",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
}
_GGUF_TOP = {"token_embd": "embed_tokens", "output": "lm_head", "output_norm": "norm"}
_GGUF_OF = {role: name for name, role in (_GGUF_LAYER | _GGUF_TOP).items()}
_GGUF_NAME = re.compile(r"blk\.(\d+)\.(\w+)")
# llama.cpp's names of the MTP layer's own tensors and of a vision tower.
_GGUF_SIDE = re.compile(r"blk\.\d+\.nextn\b.*|(v|mm)\..+")

_FIXED = ("input_layernorm", "post_attention_layernorm", "norm", "q_norm", "k_norm", "conv1d",
          "dt_bias", "A_log")  # fmt: skip

Kind = Literal["module", "fixed", "tied", "side"]


@dataclass(frozen=True)
class Meaning:
    """What a key stands for in a model.

    Attributes:
        kind: ``"module"``, something that can be quantised; ``"fixed"``, a tensor that never is
            (norms, convolution, decay); ``"tied"``, the output head of a model that has none of
            its own; ``"side"``, a part that the text model lacks (vision tower, MTP).
        paths: the canonical modules; several where the key fuses what the model keeps apart.
        part: the part of the module that is meant, where the model fuses what the key keeps apart:
            a projection's name, or the number of an expert. Empty for the whole.
    """

    kind: Kind
    paths: tuple[str, ...] = ()
    part: str = ""


class PathTable:
    """The modules of one model under all their spellings."""

    def __init__(self, structure: ModelStructure) -> None:
        self.paths = tuple(shape.path for shape in structure.modules)
        self.model_type = structure.model_type
        self._experts = {shape.path: shape.experts for shape in structure.modules}
        self._by_stem = {stem_of(path): path for path in self.paths}

    def find(self, key: str) -> Meaning | None:
        """What a key stands for, or None if it is nothing of this model."""
        name = key.removesuffix(".weight")
        if name in self._experts:
            return Meaning("module", (name,))
        if side_part(name) or _GGUF_SIDE.fullmatch(name):
            return Meaning("side")
        stem = _mlx_stem(name)
        if stem in self._by_stem:
            return Meaning("module", (self._by_stem[stem],))
        return self._related(stem) or self._outside(stem)

    def parts(self, path: str, named: Iterable[str]) -> tuple[str, ...]:
        """All parts that a fused module consists of, given some of them."""
        if any(part.isdecimal() for part in named):
            return tuple(map(str, range(self._experts[path])))
        layer, role = _split_layer(stem_of(path))
        return _FUSED.get(role, ()) if layer else ()

    def hf_names(self, path: str) -> tuple[tuple[str, ...], ...]:
        """Hugging Face module names of a module: alternatives, each a set that makes up the whole.

        The canonical path itself is the first alternative, so that patterns written for either
        namespace match.
        """
        layer, role = _split_layer(stem_of(path))
        roots = ("model.language_model.", "model.") if layer or role == "embed_tokens" else ("",)
        spelled: list[tuple[str, ...]] = [(path,)]
        for root in roots:
            spelled += [
                tuple(f"{root}{layer}{name}" for name in names)
                for names in self._hf_roles(path, role)
            ]
        return tuple(spelled)

    def gguf_names(self, path: str) -> tuple[str, ...]:
        """GGUF tensor names that make up a module; empty if GGUF has none for it."""
        layer, role = _split_layer(stem_of(path))
        roles = (role,) if role not in _FUSED or role == "linear_attn.in_proj_ba" else _FUSED[role]
        names = [_GGUF_OF.get(role) for role in roles]
        if None in names:
            return ()
        prefix = layer.replace("layers.", "blk.")
        return tuple(f"{prefix}{name}.weight" for name in names)

    def _hf_roles(self, path: str, role: str) -> list[tuple[str, ...]]:
        """Alternatives for the part of the name after the layer."""
        if "switch_mlp." not in role:
            return [(role,), *([_FUSED[role]] if role in _FUSED else [])]
        name = role.rpartition(".")[2]
        stacked = "gate_up_proj" if name != "down_proj" else name
        each = tuple(f"mlp.experts.{e}.{name}" for e in range(self._experts[path]))
        return [(f"mlp.experts.{stacked}",), each]

    def _related(self, stem: str) -> Meaning | None:
        """A fused, split or per-expert spelling."""
        layer, role = _split_layer(stem)
        whole = self._by_stem.get(layer + _SPLIT.get(role, ""))
        if whole is not None:
            return Meaning("module", (whole,), role)
        several = _FUSED.get(role, _FUSED_EXPERTS if role == "mlp.experts.gate_up_proj" else ())
        paths = [self._by_stem.get(layer + other) for other in several]
        if paths and None not in paths:
            return Meaning("module", tuple(path for path in paths if path))
        match = _EXPERT.fullmatch(role)
        path = self._by_stem.get(f"{layer}mlp.switch_mlp.{match[2]}_proj") if match else None
        if match is None or path is None:
            return None
        expert = match[1] or ""
        if expert and int(expert) >= self._experts[path]:
            return None
        return Meaning("module", (path,), str(int(expert)) if expert else "")

    def _outside(self, stem: str) -> Meaning | None:
        if stem == "lm_head":
            return Meaning("tied")
        layer, role = _split_layer(stem)
        known = stem == "norm" or any(other.startswith(layer) for other in self._by_stem)
        fixed = role.rpartition(".")[2] in _FIXED and (layer or stem == "norm")
        return Meaning("fixed") if fixed and known else None


def spellings(table: PathTable, path: str) -> tuple[tuple[str, ...], ...]:
    """Every spelling of a module that :meth:`PathTable.find` understands.

    Each is a set of keys that together make up the module; ``.weight`` may follow each of them.
    """
    stem = stem_of(path)
    prefixed = [(f"{prefix}{stem}",) for prefix in (*PREFIXES, "")]
    gguf = table.gguf_names(path)
    return (*prefixed, *table.hf_names(path), *([gguf] if gguf else []))


def fixed_gguf_names(table: PathTable) -> list[str]:
    """GGUF names of the tensors that are never quantised, for every layer of the model."""
    stems = (_split_layer(stem_of(path))[0] for path in table.paths)
    layers = dict.fromkeys(stem for stem in stems if stem)
    roles = [name for name, role in _GGUF_LAYER.items() if role.rpartition(".")[2] in _FIXED]
    return [
        f"{layer.replace('layers.', 'blk.')}{name}.weight" for layer in layers for name in roles
    ] + ["output_norm.weight"]


def _mlx_stem(name: str) -> str:
    match = _GGUF_NAME.fullmatch(name.removesuffix(".bias"))
    if match and match[2] in _GGUF_LAYER:
        return f"layers.{int(match[1])}.{_GGUF_LAYER[match[2]]}"
    return _GGUF_TOP.get(name) or stem_of(name)


def _split_layer(stem: str) -> tuple[str, str]:
    """``layers.3.mlp.gate`` as ``layers.3.`` and ``mlp.gate``; an empty layer outside of them."""
    match = re.match(r"layers\.\d+\.", stem)
    layer = match[0] if match else ""
    return layer, stem.removeprefix(layer)
