"""What must hold of the gated delta rule and of GatedDeltaNet around it, and what others compute.

Where another implementation differs from ours, fp64 says who is right, and the other's own rounding
how far it goes astray.
"""

from importlib.util import find_spec

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.gated_delta import gated_delta_update

from goldens import REGIMES, RULE_FILE, rule_inputs, transformers_rule
from kernel_cases import delta_rule, double, relative_error
from mixbit import ops
from test_ops import net_inputs, random


def in_fp64(inputs: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return delta_rule(*(array.astype(np.float64) for array in inputs))


def compare(theirs: tuple[np.ndarray, np.ndarray], inputs: list[np.ndarray]) -> None:
    """Both are fp32 from end to end, so both err as fp32 does; ours not much more than theirs."""
    ours = ops.gated_delta(*(mx.array(array) for array in inputs))
    for got, other, want in zip(ours, theirs, in_fp64(inputs), strict=True):
        assert relative_error(got, want) < 2e-6
        assert relative_error(mx.array(other), want) < 5e-6
        assert relative_error(got, want) < 3 * relative_error(mx.array(other), want)


@pytest.mark.parametrize("regime", REGIMES)
def test_transformers_rule(regime: str) -> None:
    with np.load(RULE_FILE) as golden:
        compare((golden[f"{regime}.y"], golden[f"{regime}.state"]), rule_inputs(regime))


if find_spec("torch"):

    @pytest.mark.parametrize("regime", REGIMES)
    def test_transformers_rule_live(regime: str) -> None:
        inputs = rule_inputs(regime, seed=8)
        compare(transformers_rule(inputs), inputs)


def test_mlx_lm_differs_by_its_rounding_of_the_gates() -> None:
    """In bf16 mlx-lm rounds softplus, which a slow head feels; given its gates, we agree."""
    B, T, Hk, Hv, D = 2, 60, 2, 6, 32
    q, k = (random(B, T, Hk, D, seed=s) for s in (1, 2))
    q, k = ((t / mx.linalg.norm(t, axis=-1, keepdims=True)).astype(mx.bfloat16) for t in (q, k))
    v = random(B, T, Hv, D, dtype=mx.bfloat16, seed=3)
    a, b = (random(B, T, Hv, dtype=mx.bfloat16, seed=s) for s in (4, 5))
    A_log, dt_bias = random(Hv, seed=6) - 4, random(Hv, dtype=mx.bfloat16, seed=7) + 2
    y, state = gated_delta_update(q, k, v, a, b, A_log, dt_bias)

    def gates(softplus: np.ndarray) -> np.ndarray:
        return np.exp(-np.exp(double(A_log)) * softplus)

    exact = gates(np.log1p(np.exp(double(a) + double(dt_bias))))
    rounded = gates(double(mx.logaddexp(a + dt_bias, 0)))
    sigmoid = double(mx.sigmoid(b))  # bf16 too
    beta = 1 / (1 + np.exp(-double(b)))
    qkv = [double(t) for t in (q, k, v)]
    assert relative_error(state, delta_rule(*qkv, rounded, sigmoid)[1]) < 1e-5
    assert relative_error(state, delta_rule(*qkv, exact, beta)[1]) > 1e-3
    ours = [mx.array(t.astype(np.float32)) for t in (exact, beta)]
    want = delta_rule(*qkv, double(ours[0]), double(ours[1]))
    found = ops.gated_delta(q, k, v, *ours)
    assert relative_error(found[1], want[1]) < 2e-6
    assert relative_error(found[0], want[0]) < 4e-3  # y in bf16
    assert relative_error(y, delta_rule(*qkv, rounded, sigmoid)[0]) < 8e-3


# ---- GatedDeltaNet between its projections -------------------------------------------------------

SHAPE = (2, 6, 24, 20)  # Hk, Hv, Dk, Dv


def parts(inputs: dict, begin: int, end: int, **state: mx.array | None) -> dict:
    steps = {name: inputs[name][:, begin:end] for name in ("qkv", "z", "a", "b")}
    return inputs | steps | state


def rows(inputs: dict, index: slice) -> dict:
    batched = ("qkv", "z", "a", "b", "conv_state", "state", "mask", "lengths")
    return {k: v[index] if k in batched else v for k, v in inputs.items()}


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("first", [1, 2, 3, 4, 9, 14])
def test_a_run_in_two_parts_is_the_whole_run(first: int, dtype: mx.Dtype) -> None:
    inputs = net_inputs(15, *SHAPE, dtype=dtype)
    y, *state = ops.delta_net(**inputs)
    y0, conv_state, middle = ops.delta_net(**parts(inputs, 0, first))
    y1, *last = ops.delta_net(**parts(inputs, first, 15, conv_state=conv_state, state=middle))
    for a, b in zip((y, *state), (mx.concatenate([y0, y1], axis=1), *last), strict=True):
        assert mx.array_equal(a, b)


def test_long_runs_in_two_parts_agree() -> None:
    inputs = net_inputs(150, *SHAPE)
    y, *state = ops.delta_net(**inputs)
    for first in (63, 64, 65):
        y0, conv_state, middle = ops.delta_net(**parts(inputs, 0, first))
        y1, *last = ops.delta_net(**parts(inputs, first, 150, conv_state=conv_state, state=middle))
        for a, b in zip((y, *state), (mx.concatenate([y0, y1], axis=1), *last), strict=True):
            assert relative_error(b, double(a)) < 4e-6


def test_without_beta_the_state_only_decays() -> None:
    inputs = net_inputs(5, *SHAPE) | {"b": mx.full((2, 5, 6), -1e4)}
    _, _, state = ops.delta_net(**inputs)
    softplus = np.log1p(np.exp(double(inputs["a"]) + double(inputs["dt_bias"])))
    g = np.exp(-np.exp(double(inputs["A_log"])) * softplus).prod(axis=1)
    assert relative_error(state, g[..., None, None] * double(inputs["state"])) < 1e-6


def test_heads_may_come_in_any_order() -> None:
    Hk, Hv, Dk, Dv = SHAPE
    inputs = net_inputs(7, *SHAPE)
    keys = np.array([1, 0])
    values = np.array([5, 3, 4, 0, 2, 1])  # those of key head 1, then those of key head 0
    of_keys = np.arange(Hk * Dk).reshape(Hk, Dk)[keys].ravel()
    heads = np.arange(Hv * Dv).reshape(Hv, Dv)[values].ravel()
    channels = np.concatenate([of_keys, Hk * Dk + of_keys, 2 * Hk * Dk + heads])
    of_channels, of_values, of_heads = (mx.array(a) for a in (channels, values, heads))
    moved = inputs | {name: inputs[name][..., of_channels] for name in ("qkv", "conv_state")}
    moved |= {"conv_weight": inputs["conv_weight"][of_channels], "z": inputs["z"][..., of_heads]}
    moved |= {name: inputs[name][..., of_values] for name in ("a", "b", "A_log", "dt_bias")}
    moved |= {"state": inputs["state"][:, of_values]}
    y, conv_state, state = ops.delta_net(**inputs)
    found = ops.delta_net(**moved)
    want = (y[..., of_heads], conv_state[..., of_channels], state[:, of_values])
    for a, b in zip(found, want, strict=True):
        assert mx.array_equal(a, b)


@pytest.mark.parametrize("T", [1, 6, 40])
def test_a_row_is_what_it_is_alone(T: int) -> None:
    inputs = net_inputs(T, *SHAPE, B=3)
    lengths = mx.array([T, 0, T // 2])
    inputs |= {"lengths": lengths, "mask": mx.arange(T) < lengths[:, None]}
    together = ops.delta_net(**inputs, keep_steps=True)
    for row in range(3):
        alone = ops.delta_net(**rows(inputs, slice(row, row + 1)), keep_steps=True)
        for a, b in zip(together, alone, strict=True):
            assert mx.array_equal(a[row], b[0])


def test_masked_steps_of_the_rule_are_as_if_they_were_not_there() -> None:
    T = 6
    q, k, v = random(1, T, 2, 24), random(1, T, 2, 24, seed=1), random(1, T, 6, 20, seed=2)
    g, beta = (mx.sigmoid(random(1, T, 6, seed=s)) for s in (3, 4))
    state = random(1, 6, 20, 24, seed=5)
    for absent in range(T):
        mask = mx.arange(T) != absent
        y, last = ops.gated_delta(q, k, v, g, beta, state, mask[None])
        kept = mx.array([t for t in range(T) if t != absent])
        want, without = ops.gated_delta(*(x[:, kept] for x in (q, k, v, g, beta)), state)
        assert mx.array_equal(last, without)
        assert mx.array_equal(y[:, kept], want)
        assert mx.array_equal(y[:, absent], mx.zeros_like(y[:, absent]))


def test_a_masked_step_is_zero_to_the_convolution() -> None:
    T = 6
    inputs = net_inputs(T, *SHAPE, B=1)
    for absent in range(T):
        mask = (mx.arange(T) != absent)[None]
        seen = inputs | {"qkv": mx.where(mask[..., None], inputs["qkv"], 0)}
        y, conv_state, state = ops.delta_net(**inputs, mask=mask)
        for a, b in zip(ops.delta_net(**seen, mask=mask), (y, conv_state, state), strict=True):
            assert mx.array_equal(a, b)
        assert mx.array_equal(conv_state, seen["qkv"][:, -3:])


def test_the_last_tap_is_the_step_itself() -> None:
    inputs = net_inputs(9, *SHAPE)
    weight = mx.zeros_like(inputs["conv_weight"])
    for back in range(4):
        weight[:, 3 - back] = 1
        shifted = mx.concatenate([inputs["conv_state"], inputs["qkv"]], axis=1)[:, 3 - back :]
        now = mx.zeros_like(weight)
        now[:, 3] = 1
        found = ops.delta_net(**inputs | {"conv_weight": weight})
        want = ops.delta_net(**inputs | {"conv_weight": now, "qkv": shifted[:, :9]})
        assert mx.array_equal(found[0], want[0])
        assert mx.array_equal(found[2], want[2])
        weight[:, 3 - back] = 0
