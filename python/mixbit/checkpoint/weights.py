"""The weights of a checkpoint, lazily, under the names of the mlx-lm model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mixbit.checkpoint.files import Checkpoint, TensorInfo
from mixbit.checkpoint.model import parameter_shapes
from mixbit.checkpoint.names import side_part, stem_of
from mixbit.checkpoint.norms import check_gains, raw_convolutions
from mixbit.checkpoint.wording import and_more
from mixbit.errors import MixbitError

HYBRIDS = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
"""The models whose spellings and norms are known."""

_SIDE_REASONS = {
    "vision": "vision tower, which is not part of the text model",
    "mtp": "multi-token prediction layer, which is not part of the text model",
}
_TIED = "output head, which the model ties to its embedding"
TIED_BUT_OTHER = "output head, which differs from the embedding though the config ties the two"
"""The reason to leave out a head that may have been meant to count."""


@dataclass(frozen=True)
class ModelWeights:
    """The weights of a checkpoint as the mlx-lm model names and lays them out.

    Attributes:
        weights: name to array, unevaluated; of packed modules the packed parts.
        left_out: what the file holds besides, each name with the reason.
        stored: where those lie that are, as they stand, a tensor of a file.
    """

    weights: dict[str, mx.array]
    left_out: dict[str, str]
    stored: dict[str, TensorInfo]


def model_weights(checkpoint: Checkpoint, model: nn.Module, model_type: str) -> ModelWeights:
    """Name and lay out the weights as the model's own ``sanitize`` does.

    Raw Hugging Face and converted MLX checkpoints are both taken, whatever the prefix of their
    names. Parts that the text model lacks are left out by rule.

    Raises:
        MixbitError: the checkpoint does not hold what mlx-lm expects, or its norms are not in the
            form that the rest of it is in.
    """
    weights: dict[str, mx.array] = {}
    for file in checkpoint.files:
        weights |= load_file(file)
    loaded = dict(weights)
    left_out = {name: _SIDE_REASONS[part] for name in weights if (part := side_part(name))}
    left_out |= _spare_head(weights, model)
    weights = {name: value for name, value in weights.items() if name not in left_out}
    hybrid = model_type in HYBRIDS
    if hybrid:
        weights = _respelled(weights, model, checkpoint.folder)
    were_raw = hybrid and raw_convolutions(weights, checkpoint.folder)
    weights = _sanitised(weights, model, checkpoint, model_type)
    if hybrid:
        check_gains(weights, were_raw, checkpoint.folder)
    places = {id(value): checkpoint.tensors[name] for name, value in loaded.items()}
    stored = {name: places[id(value)] for name, value in weights.items() if id(value) in places}
    return ModelWeights(weights, left_out, stored)


def settle(
    weights: Mapping[str, mx.array], model: nn.Module, folder: Path, model_type: str
) -> dict[str, mx.array]:
    """The weights in the order of the model's parameters.

    Raises:
        MixbitError: one is missing, is not of the model, or has another shape than the model's.
    """
    expected = parameter_shapes(model)
    missing = [name for name in expected if name not in weights]
    if missing:
        raise MixbitError(f"{folder} lacks tensor {missing[0]}{and_more(len(missing) - 1)}.")
    strays = [name for name in weights if name not in expected]
    if strays:
        raise MixbitError(
            f"{folder} holds tensor {strays[0]}{and_more(len(strays) - 1)}, which is no part of a "
            f"{model_type} model of this config."
        )
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape:
            raise MixbitError(
                f"{folder}: tensor {name} has shape {tuple(weights[name].shape)}, but the config "
                f"asks for {shape}."
            )
    return {name: weights[name] for name in expected}


def load_file(file: Path) -> dict[str, mx.array]:
    """The tensors of a weight file, unevaluated.

    Raises:
        MixbitError: MLX cannot read it.
    """
    try:
        loaded = mx.load(str(file))
    except RuntimeError as error:
        raise MixbitError(f"{file} cannot be read: {error}.") from None
    assert isinstance(loaded, dict)
    return loaded


def _respelled(
    weights: Mapping[str, mx.array], model: nn.Module, folder: Path
) -> dict[str, mx.array]:
    """The weights under the prefix that the model itself uses."""
    embedding = next(name for name in parameter_shapes(model) if "embed_tokens" in name)
    root = embedding.partition("embed_tokens")[0]
    above = root.removesuffix("model.")
    named: dict[str, mx.array] = {}
    for name, value in weights.items():
        stem = stem_of(name)
        if stem.startswith(("layers.", "embed_tokens.", "norm.")):
            own = root + stem
        else:
            own = above + stem if stem.startswith("lm_head.") else name
        if own in named:
            raise MixbitError(f"{folder} holds {own} twice, under different prefixes.")
        named[own] = value
    return named


def _spare_head(weights: Mapping[str, mx.array], model: nn.Module) -> dict[str, str]:
    """The tensors of an output head that the model does not have, and why they may go."""
    if any("lm_head" in name for name in parameter_shapes(model)):
        return {}
    by_stem = {stem_of(name): value for name, value in weights.items()}
    head, embedding = by_stem.get("lm_head.weight"), by_stem.get("embed_tokens.weight")
    is_twin = (
        head is not None and embedding is not None and bool(mx.array_equal(head, embedding).item())
    )
    reason = _TIED if is_twin else TIED_BUT_OTHER
    return {name: reason for name in weights if stem_of(name).startswith("lm_head.")}


def _sanitised(
    weights: dict[str, mx.array], model: Any, checkpoint: Checkpoint, model_type: str
) -> dict[str, mx.array]:
    if not hasattr(model, "sanitize"):
        return weights
    try:
        sanitised = model.sanitize(weights)
    except (KeyError, IndexError, ValueError) as error:
        raise MixbitError(
            f"{checkpoint.folder} does not hold the tensors that mlx-lm expects of a "
            f"{model_type} model ({type(error).__name__}: {error})."
        ) from None
    return dict(sanitised)
