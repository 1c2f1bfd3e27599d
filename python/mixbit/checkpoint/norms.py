"""Whether the norms of a hybrid model have been converted from Hugging Face's form, and once only.

Hugging Face stores the gain of these norms minus one, MLX the gain itself, and neither marks which
it is. mlx-lm decides by the layout of the convolutions, which is wrong for a file in which the two
do not go together: it loads, and talks nonsense. So the gains are looked at as well, afterwards.
"""

from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx

from mixbit.errors import MixbitError

_SUFFIXES = (".input_layernorm.weight", ".post_attention_layernorm.weight")

# Trained gains scatter around one and hardly any is negative. Gains that were never shifted scatter
# around zero, half of them below it; shifted twice, they average two and none is much below one.
_NEGATIVE_SHARE = 0.01
_LOW_SHARE = 0.001
_RAW_MEAN, _DOUBLE_MEAN, _LOW_GAIN = 0.5, 1.5, 0.9


def raw_convolutions(weights: Mapping[str, mx.array], folder: Path) -> bool:
    """Whether the convolutions are ``[channels, 1, taps]``, Hugging Face's layout.

    Raises:
        MixbitError: some are and some are not.
    """
    layouts = {
        value.ndim == 3 and value.shape[-1] != 1: name
        for name, value in weights.items()
        if name.endswith("conv1d.weight")
    }
    if len(layouts) == 2:
        raise MixbitError(
            f"{folder} holds {layouts[True]} in Hugging Face's layout and {layouts[False]} in "
            "MLX's; fetch or convert the model again."
        )
    return True in layouts


def check_gains(weights: Mapping[str, mx.array], were_raw: bool, folder: Path) -> None:
    """Look at the gains that mlx-lm's ``sanitize`` has arrived at.

    Args:
        weights: the model's weights; of them only the norms before attention and FFN are computed.
        were_raw: what :func:`raw_convolutions` said of the file.
        folder: the model, for messages.

    Raises:
        MixbitError: the gains are clearly shifted twice or not at all.
    """
    found = [value for name, value in weights.items() if name.endswith(_SUFFIXES)]
    if not found:
        return
    gains = mx.concatenate([value.astype(mx.float32).flatten() for value in found])
    mean = _mean(gains)
    if mean < _RAW_MEAN and _mean(gains < 0) >= _NEGATIVE_SHARE:
        raise MixbitError(
            f"{folder}: the convolutions are in MLX's layout, but the norms are not shifted by one "
            f"(mean gain {mean:.2f}); fetch or convert the model again."
        )
    if mean < _DOUBLE_MEAN or _mean(gains < _LOW_GAIN) >= _LOW_SHARE:
        return
    if were_raw:
        raise MixbitError(
            f"{folder}: the convolutions are in Hugging Face's layout, but the norms are shifted "
            f"by one already (mean gain {mean - 1:.2f}); fetch or convert the model again."
        )
    raise MixbitError(
        f"{folder}: the norms are shifted by one twice (mean gain {mean:.2f}); fetch or convert "
        "the model again."
    )


def _mean(values: mx.array) -> float:
    return float(values.mean().item().real)
