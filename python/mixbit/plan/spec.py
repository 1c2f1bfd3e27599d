"""What one module is quantised to, and which combinations can be packed."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class _Mode:
    bits: tuple[int, ...]
    group_sizes: tuple[int, ...]
    default: tuple[int, int]
    """Bits and group size where neither is given."""
    overhead: int
    """Bits of scale and bias per group, with 16-bit scales in the affine mode."""


_MODES = {
    "affine": _Mode((2, 3, 4, 5, 6, 8), (32, 64, 128), (4, 64), 32),
    "mxfp4": _Mode((4,), (32,), (4, 32), 8),
    "mxfp8": _Mode((8,), (32,), (8, 32), 8),
    "nvfp4": _Mode((4,), (16,), (4, 16), 8),
}


@dataclass(frozen=True)
class QuantSpec:
    """How a module's weight is packed: MLX's ``bits``, ``group_size`` and ``mode``.

    Any values can be held, so that a plan can be read before it is judged;
    :meth:`violation` and :func:`mixbit.plan.check` judge.
    """

    bits: int
    group_size: int
    mode: str = "affine"

    @property
    def bits_per_weight(self) -> float:
        """Bits stored per weight, scales included: ``bits + 32 / group_size`` if affine.

        Affine scales and biases are counted at 16 bits each; the scales of the fp modes take 8.
        """
        return self.bits + _MODES[self.mode].overhead / self.group_size

    def violation(self, in_dims: int | None = None) -> str | None:
        """Why rows of ``in_dims`` weights cannot be packed so, or None when they can.

        Without ``in_dims`` only the combination itself is judged.
        """
        mode = _MODES.get(self.mode)
        if mode is None:
            return f"mode {self.mode!r} is not one of {', '.join(_MODES)}"
        if self.bits not in mode.bits:
            return f"mode {self.mode} takes {_either(mode.bits)} bits, not {self.bits}"
        if self.group_size not in mode.group_sizes:
            sizes = _either(mode.group_sizes)
            return f"mode {self.mode} takes groups of {sizes}, not {self.group_size}"
        if in_dims is not None and in_dims % self.group_size:
            return f"rows of {in_dims} weights do not split into groups of {self.group_size}"
        return None

    def to_json(self) -> dict[str, Any]:
        """``{"bits", "group_size", "mode"}``, as plan files and mlx-lm's config spell it."""
        return asdict(self)

    def __str__(self) -> str:
        """Short form for messages: ``affine 4/64``."""
        return f"{self.mode} {self.bits}/{self.group_size}"


def default_spec(mode: str) -> QuantSpec | None:
    """The bits and group size that MLX takes for a mode when none are given; None if unknown."""
    if mode not in _MODES:
        return None
    bits, group_size = _MODES[mode].default
    return QuantSpec(bits, group_size, mode)


def _either(values: Sequence[int]) -> str:
    *head, last = map(str, values)
    return f"{', '.join(head)} or {last}" if head else last
