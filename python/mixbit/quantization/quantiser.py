"""Turning a model's parameters into what the checkpoint stores, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mlx.core as mx

from mixbit.calibration import Calibration, InputStatistics, layer_and_role
from mixbit.checkpoint import Checkpoint
from mixbit.errors import MixbitError
from mixbit.quantization.embedding import embedding_statistics
from mixbit.quantization.fold import Fold, LayerScales, solve
from mixbit.quantization.methods import Choice
from mixbit.quantization.methods.packed import all_finite
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
        folds: Mapping[str, Sequence[Fold]],
        readers: Mapping[str, Sequence[str]],
        units: Sequence[Unit],
    ) -> None:
        """Take over ``weights``: they leave it as they are done, layer by layer.

        Args:
            checkpoint: where they come from, for messages.
            weights: parameters by name.
            choice: the method.
            calibration: of the model.
            folds: by layer, empty for none.
            readers: of each norm, in the model's order; empty where they are not known.
            units: the work on all of them, in the order in which they will be asked for.
        """
        self._checkpoint, self._weights = checkpoint, weights
        self._choice, self._calibration = choice, calibration
        self._folds, self._readers = folds, readers
        self._specs = {unit.path: unit.spec for unit in units}
        self._dtypes = {unit.path: unit.dtype for unit in units}
        self._layer, self._scales = "", LayerScales()
        self.changed = 0
        """Tensors that folds have changed so far."""
        self.fallbacks: dict[str, str] = {}
        """Modules that were quantised by less than what was asked for, each with the reason."""

    def skip(self, unit: Unit) -> None:
        """Let go of a parameter that is done already."""
        self._enter(unit)
        del self._weights[unit.name]

    def tensors(self, unit: Unit) -> dict[str, mx.array]:
        """What is stored of a parameter: itself, or packed weight, scales and biases; evaluated.

        Raises:
            MixbitError: it cannot be read, or is not finite.
        """
        self._enter(unit)
        value = self._weights.pop(unit.name)
        self._check(unit, value.astype(unit.dtype))
        value = self._scales.parameter(unit.name, value)
        if unit.spec is None:
            stored = {unit.name: value.astype(unit.dtype)}
        else:
            parts = self._packed(unit, value)
            stored = {f"{unit.path}.{p}": a for p, a in zip(_PARTS, parts, strict=False)}
        mx.eval(stored)
        return stored

    def _enter(self, unit: Unit) -> None:
        """Find the scales of a layer when its first parameter is asked for."""
        layer, _ = layer_and_role(unit.name)
        if layer == self._layer:
            return
        self._layer, self._scales = layer, LayerScales()
        for fold in self._folds.get(layer, ()):
            assert self._calibration is not None
            dtype = self._dtypes[fold.source]
            scale = solve(
                fold, self._weights, self._specs, self._calibration, self._choice.scales, dtype
            )
            if scale is not None:
                source = self._weights[f"{fold.source}.weight"]
                self._scales.add(fold, scale, source.astype(dtype) if fold.is_norm else None)
        self.changed += self._scales.changed

    def _packed(self, unit: Unit, value: mx.array) -> tuple[mx.array, ...]:
        spec = unit.spec
        assert spec is not None
        if spec.mode != "affine":
            if self._choice.name != "rtn":
                self.fallbacks[unit.path] = f"Mode {spec.mode} is rounded to nearest."
            value = value.astype(unit.dtype)
            return tuple(mx.quantize(value, spec.group_size, spec.bits, mode=spec.mode))
        if unit.path not in self._scales.columns and unit.path not in self._scales.rows:
            value = value.astype(unit.dtype)
        packed, reason = self._choice.pack(
            value, self._statistics(unit.path), spec.bits, spec.group_size, unit.dtype
        )
        if reason is not None:
            self.fallbacks[unit.path] = reason
        return packed

    def _statistics(self, path: str) -> InputStatistics | None:
        known = None if self._calibration is None else self._calibration.of(path)
        if known is not None:
            return self._scales.statistics(path, known)
        if path.endswith("embed_tokens") and self._choice.name != "rtn":
            return embedding_statistics(self._weights, self._readers)
        return None

    def _check(self, unit: Unit, value: mx.array) -> None:
        try:
            finite = all_finite(value)
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
