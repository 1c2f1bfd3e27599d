"""Swap mixbit's layers into a loaded model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from mlx import nn as stock_nn
from mlx_lm.models import qwen3_5, qwen3_next, switch_layers

from mixbit import backend, nn

__all__ = ["AccelerateReport", "accelerate"]

_REPLACEMENTS: dict[type, type] = {
    stock_nn.Linear: nn.Linear,
    stock_nn.Embedding: nn.Embedding,
    stock_nn.QuantizedLinear: nn.QuantizedLinear,
    stock_nn.QuantizedEmbedding: nn.QuantizedEmbedding,
    switch_layers.SwitchLinear: nn.SwitchLinear,
    switch_layers.QuantizedSwitchLinear: nn.QuantizedSwitchLinear,
    qwen3_next.Qwen3NextAttention: nn.Attention,
    qwen3_next.Qwen3NextMLP: nn.MLP,
    qwen3_next.Qwen3NextSparseMoeBlock: nn.SparseMoeBlock,
    qwen3_5.GatedDeltaNet: nn.GatedDeltaNet,
    qwen3_next.Qwen3NextGatedDeltaNet: nn.Qwen3NextGatedDeltaNet,
    qwen3_5.DecoderLayer: nn.DecoderLayer,
    qwen3_next.Qwen3NextDecoderLayer: nn.Qwen3NextDecoderLayer,
    qwen3_5.TextModel: nn.TextModel,
    qwen3_next.Model: nn.Qwen3NextTextModel,
}


@dataclass(frozen=True)
class AccelerateReport:
    """What :func:`accelerate` did.

    Attributes:
        backend: ``"cpu"`` or ``"metal"`` where native kernels serve the default device, else
            ``"stock"``.
        swapped: class name -> number of layers that were given that class.
        kept: class name -> number of layers left as they were though they derive from a class
            that mixbit replaces; someone else's subclasses are not touched.
    """

    backend: str
    swapped: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        layers = ", ".join(f"{count} {name}" for name, count in sorted(self.swapped.items()))
        text = f"{self.backend} backend: {layers or 'no layers'} swapped"
        if self.kept:
            kept = ", ".join(f"{count} {name}" for name, count in sorted(self.kept.items()))
            text += f"; kept {kept}"
        return text


def accelerate(model: Any) -> AccelerateReport:
    """Give the layers of a loaded mlx-lm model mixbit's implementations, in place.

    A layer keeps its identity, parameters and attributes; only its class changes to the subclass in
    :mod:`mixbit.nn`. So nothing is copied, references elsewhere stay valid, and doing it twice does
    nothing more.
    """
    swapped: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    originals, ours = tuple(_REPLACEMENTS), tuple(_REPLACEMENTS.values())
    for _, module in model.named_modules():
        replacement = _REPLACEMENTS.get(type(module))
        if replacement is not None:
            module.__class__ = replacement
            swapped[replacement.__name__] += 1
        elif isinstance(module, originals) and not isinstance(module, ours):
            kept[type(module).__qualname__] += 1
    return AccelerateReport(
        backend=backend.name_here(),
        swapped=dict(swapped),
        kept=dict(kept),
    )
