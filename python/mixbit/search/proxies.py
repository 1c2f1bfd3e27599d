"""What a width does to a module without a run of the model behind it: no gradients, no KLD.

With the mean square ``s_j`` of each input column over the data, the error that packing a weight
``W`` to ``W'`` puts into the output is, columns taken for uncorrelated,

    e = sum_ij s_j (W'_ij - W_ij)^2 / sum_ij s_j W_ij^2.

Three figures are made of that: ``weight``, where every ``s_j`` is 1; ``output``, as it stands; and
``residual``, ``e`` times the mean square of what the module's mixer or MLP adds to the residual
stream over that of the stream after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_unflatten

from mixbit.plan import QuantSpec
from mixbit.search.stages import Stages, States
from mixbit.search.swap import Packing

PROXIES = ("weight", "output", "residual")

Errors = dict[str, float]
"""Each of :data:`PROXIES` for one module at one width."""


class _Recorder(nn.Module):
    """A layer that sums up the squares of what goes into it."""

    def __init__(self, inner: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inner = inner
        self.squares = mx.array(0.0)

    def __call__(self, x: mx.array, *rest: Any, **named: Any) -> Any:
        self.squares += x.astype(mx.float32).square().reshape(-1, x.shape[-1]).sum(axis=0)
        mx.eval(self.squares)
        return self.inner(x, *rest, **named)


def stage_errors(
    model: Any,
    stages: Stages,
    stage: int,
    states: Sequence[States],
    specs: Mapping[str, Sequence[QuantSpec]],
    packing: Packing,
) -> dict[tuple[str, QuantSpec], Errors]:
    """The proxies of modules of one stage.

    Args:
        model: the unchanged model.
        stages: its stages.
        stage: which.
        states: what goes into it, batch by batch.
        specs: the modules, each with what to try there.
        packing: how to pack.
    """
    if not specs:
        return {}
    modules = dict(model.named_modules())
    own = {path: modules[path] for path in specs}
    share = 1.0
    if stage == 0:
        tokens = [x for (x,) in states]
        weighting = dict.fromkeys(own, _frequencies(tokens, next(iter(own.values()))))
    elif stage == stages.head:
        last = (stages.run(x, stage, stage + 1)[0].astype(mx.float32) for x in states)
        weighting = dict.fromkeys(own, sum((x.square().sum((0, 1)) for x in last), mx.array(0.0)))
    else:
        with _recorded(model, own) as recorders:
            share = _share(stages, stage, states)
        weighting = {path: recorder.squares for path, recorder in recorders.items()}
    found: dict[tuple[str, QuantSpec], Errors] = {}
    for path, module in own.items():
        weight = module.weight.astype(mx.float32)
        for spec in specs[path]:
            w, scales, *biases = packing.pack(path, module.weight, spec)
            restored = mx.dequantize(
                w,
                scales,
                biases[0] if biases else None,
                spec.group_size,
                spec.bits,
                spec.mode,
            )
            wrong = (restored.astype(mx.float32) - weight).square()
            plain = _ratio(wrong, weight.square(), mx.array(1.0))
            output = _ratio(wrong, weight.square(), weighting[path])
            found[path, spec] = {"weight": plain, "output": output, "residual": output * share}
    return found


def _frequencies(batches: Sequence[mx.array], embedding: Any) -> mx.array:
    """How often each row of an embedding is read, ``[rows, 1]``."""
    read = np.concatenate([np.asarray(tokens).reshape(-1) for tokens in batches])
    counts = np.bincount(read, minlength=embedding.weight.shape[0])
    return mx.array(counts.astype(np.float32))[:, None]


@contextmanager
def _recorded(model: Any, own: Mapping[str, Any]) -> Iterator[dict[str, _Recorder]]:
    recorders = {path: _Recorder(module) for path, module in own.items()}
    try:
        model.update_modules(tree_unflatten(list(recorders.items())))
        yield recorders
    finally:
        model.update_modules(tree_unflatten(list(own.items())))


def _share(stages: Stages, stage: int, states: Sequence[States]) -> float:
    """Mean square of what a block adds to the residual stream, over that of the stream after it."""
    end = stages.end_of_block(stage)
    added = whole = 0.0
    for before in states:
        y = stages.run(before, stage, end)[0].astype(mx.float32)
        added += _sum((y - before[0].astype(mx.float32)).square())
        whole += _sum(y.square())
    return added / whole if whole else 0.0


def _ratio(wrong: mx.array, square: mx.array, weighting: mx.array) -> float:
    whole = _sum(square * weighting)
    return _sum(wrong * weighting) / whole if whole else 0.0


def _sum(values: mx.array) -> float:
    return float(np.asarray(values.sum()))
