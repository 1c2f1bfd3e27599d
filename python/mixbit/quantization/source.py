"""The weights of a model, lazily, under the names of the mlx-lm model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mixbit.checkpoint import Checkpoint, and_more, build_model, parameter_shapes, side_part
from mixbit.errors import MixbitError

_FLOAT_DTYPES = ("BF16", "F16", "F32")
_SIDE_REASONS = {
    "vision": "vision tower, which is not part of the text model",
    "mtp": "multi-token prediction layer, which is not part of the text model",
}


@dataclass(frozen=True)
class SourceWeights:
    """The weights of a checkpoint as the mlx-lm model takes them.

    Attributes:
        weights: every parameter of the model, in the model's order; unevaluated.
        dropped: what the checkpoint holds besides, each name with the reason to leave it out.
    """

    weights: dict[str, mx.array]
    dropped: dict[str, str]


def refuse_quantised(checkpoint: Checkpoint) -> None:
    """Raise if the weights of a checkpoint are not plain floating point.

    Raises:
        MixbitError: the config or a tensor shows that they are quantised already.
    """
    config: Mapping[str, Any] = checkpoint.config
    text = config.get("text_config")
    places = (config, text if isinstance(text, dict) else {})
    declared = any(place.get("quantization_config") for place in places)
    if declared or any(place.get("quantization") for place in places):
        raise MixbitError(
            f"{checkpoint.folder} is quantised already; give the model in bf16, f16 or f32."
        )
    for name, info in checkpoint.tensors.items():
        if info.dtype not in _FLOAT_DTYPES and side_part(name) is None:
            raise MixbitError(
                f"Tensor {name} in {info.file} is {info.dtype}; give the model in bf16, f16 or f32."
            )


def load_weights(checkpoint: Checkpoint) -> SourceWeights:
    """Name and lay out the weights as the model's own ``sanitize`` does; nothing is evaluated.

    Both raw Hugging Face and converted MLX checkpoints are taken.

    Raises:
        MixbitError: the checkpoint lacks a parameter of the model, has one in another shape, or
            holds a tensor that belongs to nothing known.
    """
    model = build_model(checkpoint.config)
    expected = parameter_shapes(model)
    weights = _all_tensors(checkpoint)
    if hasattr(model, "sanitize"):
        try:
            weights = model.sanitize(weights)
        except (KeyError, IndexError, ValueError) as error:
            raise MixbitError(
                f"{checkpoint.folder} does not hold the tensors that mlx-lm expects of a "
                f"{checkpoint.config['model_type']} model ({type(error).__name__}: {error})."
            ) from None
    dropped = {
        name: _SIDE_REASONS[part] for name in checkpoint.tensors if (part := side_part(name))
    }
    for name in [name for name in weights if name not in expected]:
        reason = _leftover(name, weights, expected)
        if reason is None:
            raise MixbitError(
                f"{checkpoint.folder} holds tensor {name}, which is no part of a "
                f"{checkpoint.config['model_type']} model of this config."
            )
        dropped.setdefault(_source_name(name, checkpoint), reason)
        del weights[name]
    _refuse_misfits(weights, expected, checkpoint)
    return SourceWeights({name: weights[name] for name in expected}, dropped)


def first_non_finite(checkpoint: Checkpoint) -> str | None:
    """``tensor in file`` of the first tensor with a NaN or an infinity, or None if all are finite.

    Reads the whole checkpoint, one tensor at a time.
    """
    for file in checkpoint.files:
        tensors = _load(file)
        for name in list(tensors):
            if side_part(name) is None and not mx.isfinite(tensors.pop(name)).all().item():
                return f"{name} in {file}"
    return None


def _all_tensors(checkpoint: Checkpoint) -> dict[str, mx.array]:
    weights: dict[str, mx.array] = {}
    for file in checkpoint.files:
        weights |= _load(file)
    return weights


def _load(file: Any) -> dict[str, mx.array]:
    loaded = mx.load(str(file))
    assert isinstance(loaded, dict)
    return loaded


def _leftover(
    name: str, weights: Mapping[str, mx.array], expected: Mapping[str, tuple[int, ...]]
) -> str | None:
    """Why a tensor that the model does not take may be left out; None if nothing explains it."""
    part = side_part(name)
    if part is not None:
        return _SIDE_REASONS[part]
    if not name.endswith("lm_head.weight"):
        return None
    # A tied model reads its output weights from the embedding.
    embedding = next((key for key in expected if key.endswith("embed_tokens.weight")), None)
    if embedding is None or embedding not in weights:
        return None
    if mx.array_equal(weights[name], weights[embedding]).item():
        return "output head, which the model ties to its embedding"
    return "output head, which differs from the embedding though the config ties the two"


def _source_name(name: str, checkpoint: Checkpoint) -> str:
    """The name that a left-over tensor has in its file: sanitize may have put a prefix before."""
    bare = name.removeprefix("language_model.")
    return name if name in checkpoint.tensors or bare not in checkpoint.tensors else bare


def _refuse_misfits(
    weights: Mapping[str, mx.array],
    expected: Mapping[str, tuple[int, ...]],
    checkpoint: Checkpoint,
) -> None:
    missing = [name for name in expected if name not in weights]
    if missing:
        more = and_more(len(missing) - 1)
        raise MixbitError(f"{checkpoint.folder} lacks tensor {missing[0]}{more}.")
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape:
            raise MixbitError(
                f"{checkpoint.folder}: tensor {name} has shape {tuple(weights[name].shape)}, "
                f"but the config asks for {shape}."
            )
