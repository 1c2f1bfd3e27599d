"""Packing single tensors, with the semantics of ``mx.quantize``."""

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

from mixbit.plan import QuantSpec


@dataclass(frozen=True)
class Unit:
    """What one parameter of the model becomes in the checkpoint. All arrays are unevaluated.

    Attributes:
        name: the parameter in the unquantised model.
        tensors: what is stored: the parameter, or its packed weight, scales and biases.
        finite: one bool, whether the values that go in are all finite.
    """

    name: str
    tensors: Mapping[str, mx.array]
    finite: mx.array

    @property
    def nbytes(self) -> int:
        """Bytes that the unit takes, known before anything is evaluated."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def make_unit(name: str, value: mx.array, dtype: mx.Dtype | None, spec: QuantSpec | None) -> Unit:
    """Describe the work on one parameter.

    Args:
        name: the parameter, such as ``model.layers.0.mlp.gate_proj.weight``.
        value: its value.
        dtype: what to cast it to before packing, None for no cast. ``A_log`` is never cast: its
            exponential is the decay of the state, where rounding adds up over a sequence.
        spec: how to pack it, None for not at all.
    """
    if dtype is not None and not name.endswith("A_log"):
        value = value.astype(dtype)
    finite = mx.isfinite(value).all()
    if spec is None:
        return Unit(name, {name: value}, finite)
    path = name.removesuffix(".weight")
    # MLX gives no biases in the fp modes.
    parts = ("weight", "scales", "biases")
    packed = mx.quantize(value, spec.group_size, spec.bits, mode=spec.mode)
    return Unit(
        name, {f"{path}.{part}": array for part, array in zip(parts, packed, strict=False)}, finite
    )
