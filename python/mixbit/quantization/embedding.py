"""What errors in the embedding cost, as far as the weights tell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import mlx.core as mx
import numpy as np

from mixbit.calibration import InputStatistics, layer_and_role


def embedding_statistics(
    weights: Mapping[str, mx.array], readers: Mapping[str, Sequence[str]]
) -> InputStatistics | None:
    """Statistics for the rows of the embedding, which calibration has none of.

    An error e in a row reaches the products of the first layer as W diag(gain) e, so that e^T H e
    with H = sum diag(gain) W^T W diag(gain), over all that read the layer's norms, says what it
    costs there; experts, which few tokens see, are left out. H takes the place of the Hessian.

    Args:
        weights: parameters of the model, those of the first layer among them.
        readers: of each norm, the first layer's first; what
            :func:`mixbit.calibration.readers_of_norms` tells.

    Returns:
        The statistics [hidden]; None if there are no readers.
    """
    total = None
    for norm, paths in readers.items():
        if layer_and_role(norm)[0] != layer_and_role(next(iter(readers)))[0]:
            break
        gain = weights[f"{norm}.weight"].astype(mx.float32)
        for path in paths:
            weight = weights[f"{path}.weight"]
            if weight.ndim == 2:
                rows = np.asarray(weight.astype(mx.float32) * gain)
                with np.errstate(invalid="ignore"):  # its own turn will tell what is no number
                    product = rows.T @ rows
                total = product if total is None else total + product
    if total is None:
        return None
    hessian = mx.array(total)
    return InputStatistics(mx.diagonal(hessian), mx.array(math.inf), hessian=hessian)
