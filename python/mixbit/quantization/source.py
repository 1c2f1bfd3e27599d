"""What may be quantised: plain floating-point models."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from mixbit.checkpoint import Checkpoint, load_file, side_part
from mixbit.errors import MixbitError

_FLOAT_DTYPES = ("BF16", "F16", "F32")


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


def first_non_finite(checkpoint: Checkpoint) -> str | None:
    """``tensor in file`` of the first tensor with a NaN or an infinity, or None if all are finite.

    Reads the whole checkpoint, one tensor at a time.
    """
    for file in checkpoint.files:
        tensors = load_file(file)
        for name in list(tensors):
            if side_part(name) is None and not mx.isfinite(tensors.pop(name)).all().item():
                return f"{name} in {file}"
    return None
