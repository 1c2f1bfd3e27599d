"""mixbit's operations beside the stock MLX or mlx-lm ones that they stand in for.

Stock MLX takes seconds for some of these on a CPU, so the rounds are few.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models import qwen3_5
from mlx_lm.models.cache import ArraysCache
from mlx_lm.models.gated_delta import gated_delta_ops

from mixbit import ops
from mixbit.nn.gated_delta_net import GatedDeltaNet

ENGINES = ("mixbit", "stock")

Timed = Callable[..., None]
Generator = np.random.Generator


def normal(rng: Generator, *shape: int, dtype: mx.Dtype = mx.bfloat16) -> mx.array:
    """Evaluated random array."""
    array = mx.array(rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)).astype(dtype)
    mx.eval(array)
    return array


def packed(rng: Generator, *shape: int, bits: int) -> list[mx.array]:
    """Weight, scales and biases of a random matrix or stack of matrices, groups of 64."""
    parts = list(mx.quantize(normal(rng, *shape), group_size=64, bits=bits))
    mx.eval(parts)
    return parts


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_quantized_matmul_by_bits(engine: str, bits: int, rng: Generator, timed: Timed) -> None:
    x, (w, s, b) = normal(rng, 1, 4096), packed(rng, 4096, 4096, bits=bits)
    calls = {
        "mixbit": lambda: ops.quantized_matmul(x, w, s, b, bits=bits),
        "stock": lambda: mx.quantized_matmul(x, w, s, b, bits=bits),
    }
    timed(f"quantized_matmul bf16 {bits} bit, M=1, 4096x4096", calls[engine], 5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rows", [1, 2, 4, 8, 12, 16, 32])
def test_quantized_matmul_by_rows(engine: str, rows: int, rng: Generator, timed: Timed) -> None:
    x, (w, s, b) = normal(rng, rows, 2048), packed(rng, 2048, 2048, bits=4)
    calls = {
        "mixbit": lambda: ops.quantized_matmul(x, w, s, b),
        "stock": lambda: mx.quantized_matmul(x, w, s, b, bits=4),
    }
    timed(f"quantized_matmul bf16 4 bit, M={rows}, 2048x2048", calls[engine], 3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=str)
def test_quantized_matmul_prefill(
    engine: str, dtype: mx.Dtype, rng: Generator, timed: Timed
) -> None:
    x, (w, s, b) = normal(rng, 64, 4096, dtype=dtype), packed(rng, 4096, 4096, bits=4)
    calls = {
        "mixbit": lambda: ops.quantized_matmul(x, w, s, b),
        "stock": lambda: mx.quantized_matmul(x, w, s, b, bits=4),
    }
    name = "bf16" if dtype == mx.bfloat16 else "fp32"
    timed(f"quantized_matmul {name} 4 bit, M=64, 4096x4096", calls[engine], 2)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rows", [1, 64])
def test_linear(engine: str, rows: int, rng: Generator, timed: Timed) -> None:
    x, w = normal(rng, rows, 4096), normal(rng, 4096, 4096)
    calls = {"mixbit": lambda: ops.linear(x, w), "stock": lambda: x @ w.T}
    timed(f"linear bf16, M={rows}, 4096x4096", calls[engine], 3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("tokens", [1, 16])
def test_gather_quantized_matmul(engine: str, tokens: int, rng: Generator, timed: Timed) -> None:
    x, (w, s, b) = normal(rng, tokens, 1, 1, 2048), packed(rng, 16, 512, 2048, bits=4)
    chosen = mx.array(rng.integers(16, size=(tokens, 8)).astype(np.uint32))
    calls = {
        "mixbit": lambda: ops.gather_quantized_matmul(x, w, s, b, chosen),
        "stock": lambda: mx.gather_qmm(x, w, s, b, rhs_indices=chosen, bits=4),
    }
    timed(f"gather_quantized_matmul bf16 4 bit, {tokens} x 8 of 16 experts", calls[engine], 3)


def delta_rule(
    engine: str, steps: int, rng: Generator
) -> Callable[[mx.array], tuple[mx.array, mx.array]]:
    """Steps of 16 heads of 128, given the state before: their y and the state after."""
    q, k, v = (normal(rng, 1, steps, 16, 128) for _ in range(3))
    g, beta = (mx.array(rng.uniform(0.5, 1, (1, steps, 16)).astype(np.float32)) for _ in range(2))
    return partial(ops.gated_delta if engine == "mixbit" else gated_delta_ops, q, k, v, g, beta)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("steps", [1, 64, 512])
def test_gated_delta(engine: str, steps: int, rng: Generator, timed: Timed) -> None:
    update = delta_rule(engine, steps, rng)
    state = [mx.zeros((1, 16, 128, 128))]  # goes from call to call, as in a model's cache

    def call() -> list[mx.array]:
        y, after = update(state.pop())
        state.append(after)
        return [y, after]

    timed(f"gated_delta bf16, T={steps}, 16 heads of 128", call, 5, max(1, 50 // steps))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("states", [1, 18])
def test_gated_delta_steps(engine: str, states: int, rng: Generator, timed: Timed) -> None:
    """18 single steps an evaluation: of one state in a row, or of as many layers for a token."""
    update = delta_rule(engine, 1, rng)
    memory = [mx.zeros((1, 16, 128, 128)) for _ in range(states)]

    def call() -> list[mx.array]:
        results = []
        for _ in range(18):
            y, after = update(memory.pop(0))
            memory.append(after)
            results.append(y)
        return results + memory

    of = "one state" if states == 1 else f"{states} states"
    timed(f"gated_delta bf16, 18 times T=1 of {of}", call, 9, 5)


class Given(nn.Module):
    """A projection whose result is there already."""

    def __init__(self, y: mx.array) -> None:
        super().__init__()
        self.y = y

    def __call__(self, _: mx.array) -> mx.array:
        return self.y


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("steps", [1, 64, 512])
def test_delta_net(engine: str, steps: int, rng: Generator, timed: Timed) -> None:
    config = SimpleNamespace(
        hidden_size=64,
        linear_num_value_heads=16,
        linear_num_key_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        rms_norm_eps=1e-6,
    )
    layer = qwen3_5.GatedDeltaNet(config) if engine == "stock" else GatedDeltaNet(config)
    layer.set_dtype(mx.bfloat16)
    layer.A_log = layer.A_log.astype(mx.float32)
    layer.eval()
    gates = mx.bfloat16 if engine == "stock" else mx.float32
    layer.in_proj_qkv = Given(normal(rng, 1, steps, layer.conv_dim))
    layer.in_proj_z = Given(normal(rng, 1, steps, layer.value_dim))
    layer.in_proj_a, layer.in_proj_b = (Given(normal(rng, 1, steps, 16, dtype=gates)) for _ in "ab")
    layer.out_proj = nn.Identity()
    mx.eval(layer.parameters())
    x, cache = normal(rng, 1, steps, 64), ArraysCache(2)
    forward = layer if engine == "stock" else layer.mixed

    def call() -> list[mx.array]:
        return [forward(x, None, cache), *cache.cache]

    call()
    timed(f"delta_net bf16, T={steps}, 16 heads of 128", call, 5, max(1, 50 // steps))
