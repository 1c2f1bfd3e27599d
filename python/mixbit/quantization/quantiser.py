"""Turning a model's parameters into what the checkpoint stores, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import mlx.core as mx

from mixbit.calibration import Calibration, InputStatistics, layer_and_role
from mixbit.checkpoint import Checkpoint, TensorInfo, read_rows
from mixbit.errors import MixbitError
from mixbit.quantization.embedding import embedding_statistics
from mixbit.quantization.fold import Fold, LayerScales, solve
from mixbit.quantization.journal import Done
from mixbit.quantization.methods import Choice, Packer, StackPacker
from mixbit.quantization.methods.packed import all_finite
from mixbit.quantization.pack import PARTS, Unit
from mixbit.quantization.source import first_non_finite

# Elements of a large matrix worked on at once.
_PIECE = 1 << 24


class Quantiser:
    """Holds the weights that are still to be worked on, unevaluated."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: dict[str, mx.array],
        stored: Mapping[str, TensorInfo],
        choices: Mapping[str, Choice],
        calibration: Calibration | None,
        folds: Mapping[str, Sequence[Fold]],
        readers: Mapping[str, Sequence[str]],
        units: Sequence[Unit],
        done: Done,
    ) -> None:
        """Take over ``weights``: they leave it as they are done, layer by layer.

        Args:
            checkpoint: where they come from, for messages.
            weights: parameters by name.
            stored: where those lie that are a tensor of a file as it stands.
            choices: the method of each module that is packed.
            calibration: of the model.
            folds: by layer, empty for none.
            readers: of each norm, in the model's order; empty where they are not known.
            units: the work on all of them, in the order in which they will be asked for.
            done: takes up what folds changed, and the modules for which the method did not serve.
        """
        self._checkpoint, self._weights, self._stored = checkpoint, weights, stored
        self._choices, self._calibration = choices, calibration
        self._trials = {path: choice.scales for path, choice in choices.items()}
        self._folds, self._readers = folds, readers
        self._specs = {unit.path: unit.spec for unit in units}
        self._dtypes = {unit.path: unit.dtype for unit in units}
        self._layer, self._scales = "", LayerScales()
        self._done = done

    def skip(self, unit: Unit) -> None:
        """Let go of a parameter that is done already, with all of its layer."""
        del self._weights[unit.name]

    def pieces(self, unit: Unit) -> Iterator[dict[str, mx.array]]:
        """What is stored of a parameter, evaluated: itself, or packed weight, scales and biases.

        Some rows after the other, where it is a matrix so large that it would be felt.

        Raises:
            MixbitError: it cannot be read, or is not finite.
        """
        self._enter(unit)
        packer = self._packer(unit)
        for rows in self._rows(unit):
            self._check(unit, rows.astype(unit.dtype))
            value = self._scales.parameter(unit.name, rows)
            if not self._scales.holds(unit.path):
                value = value.astype(unit.dtype)
            stored = self._stored_parts(unit, value, packer)
            mx.eval(stored)
            yield stored
        if packer is not None and packer.reason is not None:
            self._done.fallbacks[unit.path] = packer.reason

    def _rows(self, unit: Unit) -> Iterator[mx.array]:
        value, info = self._weights.pop(unit.name), self._stored.get(unit.name)
        whole = info is None or value.ndim != 2 or value.size <= _PIECE
        if info is None or whole or self._scales.holds(unit.path):
            yield value
            return
        count, width = value.shape
        step = max(1, _PIECE // width)
        for begin in range(0, count, step):
            yield read_rows(info, begin, min(begin + step, count))

    def _enter(self, unit: Unit) -> None:
        """Find the scales of a layer when its first parameter is asked for."""
        layer, _ = layer_and_role(unit.name)
        if layer == self._layer:
            return
        self._layer, self._scales = layer, LayerScales()
        for fold in self._folds.get(layer, ()):
            assert self._calibration is not None
            dtype = self._dtypes[fold.source]
            try:
                scale = solve(
                    fold, self._weights, self._specs, self._calibration, self._trials, dtype
                )
            except MixbitError:
                self._name_non_finite()
                raise
            if scale is not None:
                source = self._weights[f"{fold.source}.weight"]
                self._scales.add(fold, scale, source.astype(dtype) if fold.is_norm else None)
        self._done.changed += self._scales.changed

    def _packer(self, unit: Unit) -> Packer | StackPacker | None:
        """What packs the parameter in the affine mode."""
        if unit.spec is None:
            return None
        choice = self._choices[unit.path]
        if unit.spec.mode == "affine":
            return choice.packer(self._statistics(unit.path))
        if choice.name != "rtn":
            self._done.fallbacks[unit.path] = f"Mode {unit.spec.mode} is rounded to nearest."
        return None

    def _stored_parts(
        self, unit: Unit, value: mx.array, packer: Packer | StackPacker | None
    ) -> dict[str, mx.array]:
        spec = unit.spec
        if spec is None:
            return {unit.name: value.astype(unit.dtype)}
        parts: Sequence[mx.array]
        if packer is None:
            value = value.astype(unit.dtype)
            parts = mx.quantize(value, spec.group_size, spec.bits, mode=spec.mode)
        else:
            parts = packer.pack(value, spec.bits, spec.group_size, unit.dtype)
        return {f"{unit.path}.{p}": a for p, a in zip(PARTS, parts, strict=False)}

    def _statistics(self, path: str) -> InputStatistics | None:
        choice, known = self._choices[path], None
        if self._calibration is not None:
            known = self._calibration.of(path, hessian=choice.feedback)
        if known is not None:
            return self._scales.statistics(path, known)
        if path.endswith("embed_tokens") and choice.name != "rtn":
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
        self._name_non_finite()
        raise MixbitError(
            f"{self._checkpoint.folder}: {unit.name} holds values too large for the target "
            "dtype; choose bfloat16 or float32."
        )

    def _name_non_finite(self) -> None:
        culprit = first_non_finite(self._checkpoint)
        if culprit is not None:
            raise MixbitError(
                f"Tensor {culprit} holds a NaN or an infinity; fetch the model again."
            ) from None
