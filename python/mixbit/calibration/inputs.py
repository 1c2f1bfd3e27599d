"""Which modules of the hybrid models read one and the same vector."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MIXER_NORM = "input_layernorm"
_FFN_NORM = "post_attention_layernorm"

# Modules of a layer that read the same vectors over the same tokens, and the norm that makes them.
# Experts are apart from the rest: each sees only its own tokens.
_SHARED: tuple[tuple[str, tuple[str, ...]], ...] = (
    (_MIXER_NORM, ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_b",
                   "linear_attn.in_proj_a")),
    (_MIXER_NORM, ("linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba")),
    (_MIXER_NORM, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    (_FFN_NORM, ("mlp.gate_proj", "mlp.up_proj")),
    (_FFN_NORM, ("mlp.gate", "mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj",
                 "mlp.shared_expert_gate")),
    (_FFN_NORM, ("mlp.switch_mlp.gate_proj", "mlp.switch_mlp.up_proj")),
)  # fmt: skip
_PLACE_OF = {role: roles[0] for _, roles in _SHARED for role in roles}
_ROUTED = {"mlp.switch_mlp.gate_proj", "mlp.switch_mlp.up_proj"}
_NORM_OF = {role: norm for norm, roles in _SHARED for role in roles}


def layer_and_role(path: str) -> tuple[str, str]:
    """``x.layers.3.mlp.gate`` as ``x.layers.3.`` and ``mlp.gate``; no layer outside of them."""
    match = re.match(r"(?:.*\.)?layers\.\d+\.", path)
    layer = match[0] if match else ""
    return layer, path.removeprefix(layer)


def place_of(path: str) -> str:
    """The module at which the input of ``path`` is measured: the first of those that share it."""
    layer, role = layer_and_role(path)
    return layer + _PLACE_OF.get(role, role)


def hessian_place_of(path: str) -> str:
    """The module at which the Hessian for ``path`` is measured.

    That of :func:`place_of`, but for the first two matrices of experts the router: theirs is that
    of all tokens of the layer. One for each expert would take more memory than the weights.
    """
    layer, role = layer_and_role(path)
    return place_of(f"{layer}mlp.gate" if role in _ROUTED else path)


def readers_of_norms(paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Path of each norm before a layer's mixer or feed-forward block -> all its readers."""
    found: dict[str, tuple[str, ...]] = {}
    for path in paths:
        layer, role = layer_and_role(path)
        if role in _NORM_OF:
            norm = layer + _NORM_OF[role]
            found[norm] = (*found.get(norm, ()), path)
    return found
