"""Parameters of the model, and what each takes in the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from mixbit.plan import QuantSpec


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

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, packed parts together."""
        outline = mx.zeros(self.shape, dtype=self.dtype)  # never computed
        if self.spec is None:
            return outline.nbytes
        parts = mx.quantize(outline, self.spec.group_size, self.spec.bits, mode=self.spec.mode)
        return sum(part.nbytes for part in parts)


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
