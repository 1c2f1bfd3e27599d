"""Methods by name, and put together: ``awq+gptq+search``."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from mixbit.calibration import InputStatistics
from mixbit.errors import MixbitError
from mixbit.plan import method_fault
from mixbit.quantization.methods.clip import clip
from mixbit.quantization.methods.gptq import Feedback, HessianError, gptq
from mixbit.quantization.methods.packed import Method, Packed
from mixbit.quantization.methods.rtn import rtn
from mixbit.quantization.methods.search import search


@dataclass(frozen=True)
class Choice:
    """What to do with each weight.

    Attributes:
        name: as it was asked for.
        scales: chooses scales and biases.
        feedback: whether gptq chooses the codes.
        fold: whether awq moves scales between layers first.
    """

    name: str
    scales: Method
    feedback: bool
    fold: bool

    @property
    def calibrated(self) -> bool:
        """Whether it needs a calibration."""
        return self.feedback or self.fold

    @classmethod
    def of(cls, name: str) -> Choice:
        """Read the names of methods, joined by ``+``.

        Raises:
            MixbitError: one is unknown, or they do not go together.
        """
        if fault := method_fault(name):
            raise MixbitError(f"{fault[0].upper()}{fault[1:]}.")
        parts = name.split("+")
        fold = "awq" in parts
        rounding = clip if fold else rtn
        return cls(name, search if "search" in parts else rounding, "gptq" in parts, fold)

    def packer(self, statistics: InputStatistics | None) -> Packer | StackPacker:
        """What packs a weight whose input has these statistics, or parts of it."""
        if not self.feedback:
            return Packer(self.scales, statistics)
        hessian = None if statistics is None else statistics.hessian
        if statistics is not None and hessian is not None and hessian.ndim == 3:
            return StackPacker(self, statistics)
        try:
            return Packer(self.scales, None, Feedback.of(statistics))
        except HessianError as error:
            return Packer(self.scales, statistics, reason=str(error))

    def pack(
        self,
        weight: mx.array,
        statistics: InputStatistics | None,
        bits: int,
        group_size: int,
        dtype: mx.Dtype,
    ) -> tuple[Packed, str | None]:
        """Quantise as a :class:`Method` does.

        Returns:
            The packed weight and, where gptq could not be had, why.

        Raises:
            MixbitError: as a :class:`Method`.
        """
        packer = self.packer(statistics)
        packed = packer.pack(weight, bits, group_size, dtype)
        return packed, packer.reason


@dataclass(frozen=True)
class Packer:
    """A choice, ready for one weight; rows of it may come one part after the other.

    Attributes:
        scales: chooses scales and biases.
        statistics: of the weight's input; with feedback nothing is asked of them.
        feedback: what chooses the codes; None for those nearest.
        reason: why there is no feedback, where it was asked for.
    """

    scales: Method
    statistics: InputStatistics | None
    feedback: Feedback | None = None
    reason: str | None = None

    def pack(self, weight: mx.array, bits: int, group_size: int, dtype: mx.Dtype) -> Packed:
        """Quantise as a :class:`Method` does.

        Raises:
            MixbitError: as a :class:`Method`.
        """
        if self.feedback is None:
            return self.scales(weight, self.statistics, bits, group_size, dtype=dtype)
        return gptq(weight, self.feedback, bits, group_size, scales=self.scales, dtype=dtype)


@dataclass
class StackPacker:
    """A choice, ready for a stack of experts that have a Hessian each.

    Attributes:
        choice: what to do with each.
        statistics: of their inputs.
        reason: how many of them gptq could not be had for, when they are packed.
    """

    choice: Choice
    statistics: InputStatistics
    reason: str | None = None

    def pack(self, weight: mx.array, bits: int, group_size: int, dtype: mx.Dtype) -> Packed:
        """Quantise [E, N, K] as a :class:`Method` does.

        Raises:
            MixbitError: as a :class:`Method`.
        """
        parts, left_out = [], 0
        for index, rows in enumerate(weight):
            own = self.statistics.of_expert(index)
            packed, reason = self.choice.pack(rows, own, bits, group_size, dtype)
            mx.eval(packed)
            parts.append(packed)
            left_out += reason is not None
        if left_out:
            self.reason = (
                f"{left_out} of {len(weight)} experts have no usable Hessian: calibration gave "
                "them no token."
            )
        return Packed(*(mx.stack(list(part)) for part in zip(*parts, strict=True)))
