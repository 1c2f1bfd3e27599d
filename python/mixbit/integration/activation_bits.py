"""What the packed layers of a loaded model round activations to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mixbit import nn
from mixbit.errors import MixbitError

__all__ = ["check_activation_bits", "rounds_activations", "set_activation_bits"]

_PACKED = (nn.QuantizedLinear, nn.QuantizedEmbedding, nn.QuantizedSwitchLinear)


def check_activation_bits(bits: int) -> None:
    """Raises ``MixbitError`` for other bits than 8 and 16."""
    if bits not in (8, 16):
        raise MixbitError(f"activation_bits must be 8 or 16, not {bits}.")


def set_activation_bits(model: Any, bits: int) -> None:
    """Give all packed layers of ours that many ``activation_bits``, 8 or 16."""
    for layer in _packed_layers(model):
        layer.activation_bits = bits


def rounds_activations(model: Any) -> bool:
    """Whether some product of the model rounds activations to 8 bits."""
    return any(layer.activation_bits != 16 for layer in _packed_layers(model))


def _packed_layers(model: Any) -> Iterator[Any]:
    return (module for _, module in model.named_modules() if isinstance(module, _PACKED))
