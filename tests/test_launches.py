"""How many operations a GatedDeltaNet is between its projections, counted in MLX's graph.

A primitive of the graph is at least one launch on a GPU, views apart. Here is no GPU, where some of
mlx-lm's operations are one kernel and elsewhere several primitives; those are stood in for by one.
"""

import io
import re
from collections import Counter

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models import gated_delta
from mlx_lm.models.cache import ArraysCache

import mixbit
from models import build

VIEWS = {"Broadcast", "Reshape", "Slice", "Split"}


class Given(nn.Module):
    """A projection whose result is there already."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def __call__(self, x: mx.array) -> mx.array:
        y = self.layer(x)
        mx.eval(y)
        return y


def primitives(*arrays: mx.array) -> Counter[str]:
    """Primitives that compute ``arrays``, views left out."""
    text = io.StringIO()
    mx.export_to_dot(text, *arrays)
    found = Counter(re.findall(r'label ="(\w+)", shape=rectangle', text.getvalue()))
    assert found
    return Counter({name: count for name, count in found.items() if name not in VIEWS})


def between_the_projections(model: nn.Module, steps: int) -> Counter[str]:
    """Primitives of the first layer's forward, its new cache included, without its projections."""
    layer = model.layers[0].linear_attn
    x = mx.random.normal((1, steps, 64)).astype(mx.bfloat16)
    cache = ArraysCache(2)
    layer(x, None, cache)
    mx.eval(cache.state)
    for name in layer.children():
        if name.startswith("in_proj"):
            setattr(layer, name, Given(layer[name]))
    layer.out_proj = nn.Identity()
    return primitives(layer(x, None, cache), *cache.cache)


@pytest.fixture
def kernels_are_one_primitive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes two of mlx-lm's kernels on a GPU one primitive each here."""

    def one(inputs: list[mx.array | None], *likes: mx.array) -> list[mx.array]:
        outputs = [mx.zeros(like.shape, like.dtype) for like in likes]
        mx.eval(outputs)
        return mx.depends(outputs, [array for array in inputs if array is not None])

    def rule(q, k, v, g, beta, state, mask):
        if state is None:
            state = mx.zeros((*v.shape[:1], *v.shape[2:], k.shape[-1]))
            mx.eval(state)
        return one([q, k, v, g, beta, state, mask], v, state)

    monkeypatch.setattr(gated_delta, "gated_delta_ops", rule)
    monkeypatch.setattr(mx.fast, "rms_norm", lambda x, weight, _: one([x, weight], x)[0])


@pytest.mark.usefixtures("kernels_are_one_primitive")
@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize(("model_type", "stock"), [("qwen3_5", 13), ("qwen3_next", 14)])
def test_operations_between_the_projections(model_type: str, stock: int, steps: int) -> None:
    found = between_the_projections(build(model_type, dtype=mx.bfloat16), steps)
    assert found.total() == stock, found
    model = build(model_type, dtype=mx.bfloat16)
    mixbit.accelerate(model)
    assert between_the_projections(model, steps) == {"MixbitDeltaNet": 1}
