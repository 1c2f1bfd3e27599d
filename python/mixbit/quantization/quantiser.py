"""Turning a model's parameters into what the checkpoint stores, one after the other."""

from __future__ import annotations

import mlx.core as mx

from mixbit.calibration import Calibration
from mixbit.checkpoint import Checkpoint
from mixbit.errors import MixbitError
from mixbit.quantization.methods import Choice
from mixbit.quantization.pack import Unit
from mixbit.quantization.source import first_non_finite

_PARTS = ("weight", "scales", "biases")  # of the fp modes only the first two


class Quantiser:
    """Holds the weights that are still to be worked on, unevaluated."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: dict[str, mx.array],
        choice: Choice,
        calibration: Calibration | None,
    ) -> None:
        """Take over ``weights``: they leave it as they are done."""
        self._checkpoint, self._weights = checkpoint, weights
        self._choice, self._calibration = choice, calibration
        self.fallbacks: dict[str, str] = {}
        """Modules that were quantised by less than what was asked for, each with the reason."""

    def skip(self, unit: Unit) -> None:
        """Let go of a parameter that is done already."""
        del self._weights[unit.name]

    def tensors(self, unit: Unit) -> dict[str, mx.array]:
        """What is stored of a parameter: itself, or packed weight, scales and biases; evaluated.

        Raises:
            MixbitError: it cannot be read, or is not finite.
        """
        value = self._weights.pop(unit.name).astype(unit.dtype)
        self._check(unit, value)
        if unit.spec is None:
            stored = {unit.name: value}
        else:
            parts = self._packed(unit, value)
            stored = {f"{unit.path}.{p}": a for p, a in zip(_PARTS, parts, strict=False)}
        mx.eval(stored)
        return stored

    def _packed(self, unit: Unit, value: mx.array) -> tuple[mx.array, ...]:
        spec = unit.spec
        assert spec is not None
        if spec.mode != "affine":
            if self._choice.name != "rtn":
                self.fallbacks[unit.path] = f"Mode {spec.mode} is rounded to nearest."
            return tuple(mx.quantize(value, spec.group_size, spec.bits, mode=spec.mode))
        statistics = None if self._calibration is None else self._calibration.of(unit.path)
        packed, reason = self._choice.pack(
            value, statistics, spec.bits, spec.group_size, unit.dtype
        )
        if reason is not None:
            self.fallbacks[unit.path] = reason
        return packed

    def _check(self, unit: Unit, value: mx.array) -> None:
        try:
            finite = mx.isfinite(value).all().item()
        except RuntimeError as error:
            folder = self._checkpoint.folder
            raise MixbitError(f"{folder}: {unit.name} cannot be read: {error}.") from None
        if finite:
            return
        culprit = first_non_finite(self._checkpoint)
        if culprit is None:
            raise MixbitError(
                f"{self._checkpoint.folder}: {unit.name} holds values too large for the target "
                "dtype; choose bfloat16 or float32."
            )
        raise MixbitError(f"Tensor {culprit} holds a NaN or an infinity; fetch the model again.")
