"""What errors in the embedding cost, as far as the weights tell."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx
import numpy as np

from mixbit.calibration import InputStatistics, layer_and_role, readers_of_norms


def embedding_statistics(weights: Mapping[str, mx.array]) -> InputStatistics | None:
    """Statistics for the rows of the embedding, which calibration has none of.

    An error e in a row reaches the products of the first layer as W diag(gain) e, so that e^T H e
    with H = sum diag(gain) W^T W diag(gain), over all that read the layer's norms, says what it
    costs there; experts, which few tokens see, are left out. H takes the place of the Hessian.

    Args:
        weights: parameters of the model, those of the first layer among them.

    Returns:
        The statistics [hidden]; None if the model is no hybrid whose readers are known.
    """
    paths = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
    layers = [layer for path in paths if (layer := layer_and_role(path)[0])]
    norms = readers_of_norms(path for path in paths if layer_and_role(path)[0] == layers[0])
    total = None
    for norm, readers in norms.items():
        gain = weights[f"{norm}.weight"].astype(mx.float32)
        for reader in readers:
            weight = weights[f"{reader}.weight"]
            if weight.ndim == 2:
                rows = np.asarray(weight.astype(mx.float32) * gain)
                product = rows.T @ rows
                total = product if total is None else total + product
    if total is None:
        return None
    hessian = mx.array(total)
    return InputStatistics(mx.diagonal(hessian), mx.array(1.0), hessian=hessian)
