"""Parameters of the model, and what each takes in the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx

from mixbit.checkpoint import DTYPE_NAMES, Layout
from mixbit.plan import QuantSpec

PARTS = ("weight", "scales", "biases")
"""Of a packed weight; of the fp modes only the first two."""


@dataclass(frozen=True)
class Unit:
    """The work on one parameter.

    Attributes:
        name: the parameter, such as ``model.layers.0.mlp.gate_proj.weight``.
        shape: its shape.
        dtype: what it, or its scales and biases, are stored in.
        spec: how it is packed, None for not at all.
    """

    name: str
    shape: tuple[int, ...]
    dtype: mx.Dtype
    spec: QuantSpec | None

    @property
    def path(self) -> str:
        """The module whose weight it is, or the parameter itself if it is no weight."""
        return self.name.removesuffix(".weight")

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        """What is stored of it, by name."""
        outline = mx.zeros(self.shape, dtype=self.dtype)  # never computed
        if self.spec is None:
            stored = {self.name: outline}
        else:
            parts = mx.quantize(outline, self.spec.group_size, self.spec.bits, mode=self.spec.mode)
            stored = {f"{self.path}.{p}": a for p, a in zip(PARTS, parts, strict=False)}
        return {
            name: Layout(DTYPE_NAMES[value.dtype], tuple(value.shape), value.nbytes)
            for name, value in stored.items()
        }

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, packed parts together."""
        return sum(layout.nbytes for layout in self.layouts.values())


def make_unit(name: str, value: mx.array, dtype: mx.Dtype | None, spec: QuantSpec | None) -> Unit:
    """Describe the work on one parameter.

    Args:
        name: the parameter.
        value: its value; nothing of it is computed.
        dtype: what to cast it to before packing, None for no cast. ``A_log`` is never cast: its
            exponential is the decay of the state, where rounding adds up over a sequence.
        spec: how to pack it, None for not at all.
    """
    keeps = dtype is None or name.endswith("A_log")
    return Unit(name, tuple(value.shape), value.dtype if keeps or dtype is None else dtype, spec)
