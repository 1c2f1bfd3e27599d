"""Statistics of one expert out of a stack."""

from __future__ import annotations

import mlx.core as mx

from mixbit.calibration import InputStatistics


def of_expert(statistics: InputStatistics, index: int) -> InputStatistics:
    """Those of one expert.

    An expert sees few tokens. How two of K channels go together is believed as far as its n tokens
    tell, n / (n + K): by so much the elements of its Hessian off the diagonal are multiplied.
    """
    assert statistics.hessian is not None
    hessian, count = statistics.hessian[index], statistics.count[index]
    K = len(hessian)
    shrunk = hessian * (count / (count + K))
    return InputStatistics(
        mean_square=statistics.mean_square[index],
        count=count,
        hessian=mx.where(mx.eye(K, dtype=mx.bool_), hessian, shrunk),
    )
