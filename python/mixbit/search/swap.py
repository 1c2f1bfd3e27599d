"""Packed modules in the place of dense ones, for a while, in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten

from mixbit.calibration import Calibration, InputStatistics, readers_of_norms
from mixbit.checkpoint import ModelStructure
from mixbit.errors import MixbitError
from mixbit.plan import QuantSpec
from mixbit.quantization.embedding import embedding_statistics
from mixbit.quantization.methods import Choice

Change = Mapping[str, QuantSpec | None]
"""Module paths to what they are packed to; ``None`` and what is not named stay dense."""


@dataclass(frozen=True)
class Packing:
    """How weights are packed."""

    method: Choice = Choice.of("rtn")  # noqa: RUF009  # it is frozen
    """In the affine mode; MLX's own packing serves the others."""
    calibration: Calibration | None = None
    """Statistics of what modules read, for methods that go by them."""
    embedding: InputStatistics | None = None
    """For the embedding, of which calibration has none; see :meth:`fitted`."""

    def fitted(self, model: nn.Module, structure: ModelStructure) -> Packing:
        """The same for a dense model, whose embedding is packed as ``quantize`` would.

        Raises:
            MixbitError: the method moves scales between modules, so that none is packed alone, or
                has no calibration to go by.
        """
        if self.method.fold:
            raise MixbitError(
                f"{self.method.name} moves scales between modules, so parts cannot be tried one by "
                "one; take rtn, search or gptq here, and awq when the plan is quantised."
            )
        if self.method.calibrated and self.calibration is None:
            raise MixbitError(
                f"Method {self.method.name} needs a calibration; make one with mixbit calibrate."
            )
        if self.method.name == "rtn":
            return self
        weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
        readers = readers_of_norms(shape.path for shape in structure.modules)
        return replace(self, embedding=embedding_statistics(weights, readers))

    def pack(self, path: str, weight: mx.array, spec: QuantSpec) -> Sequence[mx.array]:
        """Codes, scales and, in the affine mode, biases of a module's weight."""
        if spec.mode != "affine":
            return mx.quantize(weight, spec.group_size, spec.bits, mode=spec.mode)
        statistics = None
        if self.calibration is not None:
            statistics = self.calibration.of(path, hessian=self.method.feedback)
        if statistics is None and path.endswith("embed_tokens"):
            statistics = self.embedding
        bits, group_size = spec.bits, spec.group_size
        packed, _ = self.method.pack(weight, statistics, bits, group_size, weight.dtype)
        return packed

    def identity(self) -> dict[str, Any]:
        """What tells it from others, JSON-ready."""
        return {
            "name": self.method.name,
            "calibration": None if self.calibration is None else self.calibration.provenance,
        }


@dataclass(frozen=True)
class KeptPacking(Packing):
    """Packing that keeps what it last made of each module, for plans that differ in few of them.

    Takes the memory of one packed model.
    """

    kept: dict[str, tuple[QuantSpec, Sequence[mx.array]]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """By path: how it was packed, and what came out."""

    def pack(self, path: str, weight: mx.array, spec: QuantSpec) -> Sequence[mx.array]:
        """As :meth:`Packing.pack`."""
        known = self.kept.get(path)
        if known is None or known[0] != spec:
            known = self.kept[path] = spec, super().pack(path, weight, spec)
        return known[1]


@contextmanager
def swapped(model: nn.Module, change: Change, packing: Packing) -> Iterator[None]:
    """The model with some of its modules packed; afterwards it has its own again."""
    modules = dict(model.named_modules())
    own = {path: modules[path] for path, spec in change.items() if spec is not None}
    try:
        for path, module in own.items():
            spec = change[path]
            assert spec is not None
            _place(model, path, _packed(path, module, spec, packing))
        yield
    finally:
        for path, module in own.items():
            _place(model, path, module)


def _packed(path: str, module: Any, spec: QuantSpec, packing: Packing) -> Any:
    # Its own packing is never computed.
    packed = module.to_quantized(group_size=spec.group_size, bits=spec.bits, mode=spec.mode)
    parts = packing.pack(path, module.weight, spec)
    for name, value in zip(("weight", "scales", "biases"), parts, strict=False):
        packed[name] = value
    return packed


def _place(model: nn.Module, path: str, module: Any) -> None:
    model.update_modules(tree_unflatten([(path, module)]))
