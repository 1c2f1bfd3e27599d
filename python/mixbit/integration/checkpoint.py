"""Loading an MLX checkpoint by what its tensors are, whatever its config says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn

from mixbit.checkpoint import (
    DTYPE_NAMES,
    TIED_BUT_OTHER,
    ModelStructure,
    build_model,
    model_weights,
    open_checkpoint,
    settle,
    structure_of,
)
from mixbit.plan import Plan, QuantSpec
from mixbit.plan.readers.mlx_config import mlx_block
from mixbit.plan.readers.packed import Stored, contradictions, packed_specs
from mixbit.plan.readers.request import block_in

__all__ = ["is_mlx", "load_model"]


def is_mlx(folder: Path, config: dict[str, Any]) -> bool:
    """Whether a model is an MLX checkpoint or an unquantised one.

    Others, packed by another tool, need mlx-lm's own conversion on loading, and so does a model
    that brings its own code or that quantises activations too.
    """
    if config.get("model_file") is not None or config.get("quantize_activations"):
        return False
    if mlx_block(config, folder / "config.json") is not None:
        return True
    foreign = block_in(config, "quantization_config")
    if not foreign:
        return not (folder / "hf_quant_config.json").exists()
    return foreign.get("packing_format") == "mlx"


def load_model(
    folder: Path, config: dict[str, Any], *, lazy: bool
) -> tuple[nn.Module, dict[str, Any], list[str]]:
    """Build the model of a checkpoint folder for which :func:`is_mlx` holds, and load its weights.

    The width of every packed module follows from its tensors and the model's own shape, so missing
    or wrong entries of the config do no harm.

    Returns:
        The mlx-lm model; the config, its ``quantization`` now saying what the tensors are; and one
        line for each thing that the config said otherwise.

    Raises:
        MixbitError: the tensors do not make up the model that the config describes.
    """
    checkpoint = open_checkpoint(folder)
    model = build_model(config)
    model_type = str(config["model_type"])
    structure = structure_of(model, model_type)
    found = model_weights(checkpoint, model, model_type)
    weights = found.weights
    stored = {
        name: Stored(DTYPE_NAMES.get(value.dtype, str(value.dtype)), tuple(value.shape))
        for name, value in weights.items()
    }
    packed = packed_specs(stored, structure, str(folder))
    lines = contradictions(config, packed, structure, str(folder))
    odd = [name for name, reason in found.left_out.items() if reason == TIED_BUT_OTHER]
    if odd:
        lines.append(f"{odd[0]} is left out: {TIED_BUT_OTHER}")
    _quantize(model, packed, weights)
    model.eval()
    model.load_weights(list(settle(weights, model, folder, model_type).items()))
    if not lazy:
        mx.eval(model.parameters())
    return model, _true_config(config, packed, structure), lines


def _quantize(model: nn.Module, packed: dict[str, QuantSpec], weights: dict[str, mx.array]) -> None:
    from mlx_lm.utils import _takes_global_scale

    def parameters(path: str, module: nn.Module) -> dict[str, Any] | bool:
        if path not in packed:
            return False
        scaled = f"{path}.global_scale" in weights and _takes_global_scale(module)
        return packed[path].to_json() | ({"global_scale": True} if scaled else {})

    nn.quantize(model, class_predicate=parameters)


def _true_config(
    config: dict[str, Any], packed: dict[str, QuantSpec], structure: ModelStructure
) -> dict[str, Any]:
    named = {shape.path: packed.get(shape.path) for shape in structure.modules}
    block = Plan(named).to_mlx_config()
    rest = {k: v for k, v in config.items() if k not in ("quantization", "quantization_config")}
    return rest | ({"quantization": block, "quantization_config": block} if block else {})
