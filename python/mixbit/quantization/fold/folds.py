"""Where a scale can be moved in the hybrid models without changing what they compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mixbit.calibration import layer_and_role, readers_of_norms
from mixbit.checkpoint import ModelStructure
from mixbit.checkpoint.weights import HYBRIDS
from mixbit.errors import MixbitError

# Products in front of a projection, linear in the first module's rows: SiLU(gate) * up.
_GATED = ("mlp", "mlp.shared_expert", "mlp.switch_mlp")


@dataclass(frozen=True)
class Fold:
    """Channels that one part of a layer makes and others read.

    The columns of every reader are multiplied by a scale, what makes the channels is divided by it.
    Channels are counted [outer, repeats, inner]; those that differ in ``repeats`` alone come of
    one and the same weight and have one scale.

    Attributes:
        readers: paths of all modules that read the channels.
        source: path of the norm, or of the linear module, that makes them.
        is_norm: whether ``source`` is a norm.
        heads: (outer, repeats, inner).
    """

    readers: tuple[str, ...]
    source: str
    is_norm: bool
    heads: tuple[int, int, int]


def folds_of(structure: ModelStructure, config: Mapping[str, Any]) -> dict[str, list[Fold]]:
    """Layer (``x.layers.3.``) -> its folds.

    - The norms before the mixer and before the feed-forward block: everything that reads them, the
      gates of GatedDeltaNet, the router and the shared experts' gate included.
    - The rows of ``up_proj`` and the columns of ``down_proj``, for each expert apart: the product
      with SiLU(gate) is linear in them.
    - The rows of ``v_proj`` and the columns of ``o_proj``: attention is linear in v and the output
      gate multiplies channel by channel; all heads that share a key head share the scale.
    - GatedDeltaNet's norm and the columns of ``out_proj``: all heads share the norm's weight.

    Raises:
        MixbitError: the model is no hybrid, so that other modules may read the same channels.
    """
    if structure.model_type not in HYBRIDS:
        raise MixbitError(
            f"awq knows which modules share an input in {', '.join(HYBRIDS)} models only; choose "
            "another method."
        )
    text = config.get("text_config", config)
    widths = {module.path: module.in_dims for module in structure.modules}
    found: dict[str, list[Fold]] = {}
    for norm, readers in readers_of_norms(widths).items():
        fold = Fold(readers, norm, True, (1, 1, widths[readers[0]]))
        found.setdefault(layer_and_role(norm)[0], []).append(fold)
    for layer, folds in found.items():
        folds += _inner(layer, widths, text)
    return found


def _inner(layer: str, widths: Mapping[str, int], text: Mapping[str, Any]) -> Iterator[Fold]:
    for block in _GATED:
        up, down = f"{layer}{block}.up_proj", f"{layer}{block}.down_proj"
        if down in widths:
            yield Fold((down,), up, False, (1, 1, widths[down]))
    o_proj = f"{layer}self_attn.o_proj"
    if o_proj in widths:
        heads, key_heads = text["num_attention_heads"], text["num_key_value_heads"]
        shared = (key_heads, heads // key_heads, widths[o_proj] // heads)
        yield Fold((o_proj,), f"{layer}self_attn.v_proj", False, shared)
    out_proj = f"{layer}linear_attn.out_proj"
    if out_proj in widths:
        heads = text["linear_num_value_heads"]
        shared = (1, heads, widths[out_proj] // heads)
        yield Fold((out_proj,), f"{layer}linear_attn.norm", True, shared)
