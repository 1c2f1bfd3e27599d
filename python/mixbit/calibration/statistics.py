"""Statistics of the input of one linear layer."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True)
class InputStatistics:
    """What the inputs ``x`` of a linear layer, or of each of a stack of experts, were like.

    Attributes:
        mean_square: float32 [K], or [E, K] for experts: the mean of ``x^2`` of each channel.
        count: float32 [], or [E]: how many ``x`` the means are over. Where it is 0 they are zero;
            it is infinite where they are no sample's.
        mean_abs: the mean of ``|x|``, in the shape of ``mean_square``; None where the source
            (an imatrix) has none.
        hessian: float32 [K, K]: the mean of ``x x^T``; None unless it was asked for. For experts
            [E, K, K], each one's own, or [K, K], that of all tokens of the layer.
    """

    mean_square: mx.array
    count: mx.array
    mean_abs: mx.array | None = None
    hessian: mx.array | None = None

    def of_expert(self, index: int) -> InputStatistics:
        """Those of one out of a stack of experts that have a Hessian each."""
        absolute, hessian = self.mean_abs, self.hessian
        return InputStatistics(
            mean_square=self.mean_square[index],
            count=self.count[index],
            mean_abs=None if absolute is None else absolute[index],
            hessian=None if hessian is None else hessian[index],
        )
