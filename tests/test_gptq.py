"""GPTQ against optimal brain quantisation as it is defined, one inverse a column, in fp64."""

from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest

from kernel_cases import codes_of, double
from mixbit.calibration import InputStatistics
from mixbit.errors import MixbitError
from mixbit.quantization.methods import (
    Choice,
    Feedback,
    HessianError,
    clip,
    gptq,
    rtn,
    search,
)
from mixbit.quantization.methods import (
    refine as refining,
)
from test_quantize_methods import normal, values_of


def correlated(K: int, count: int = 600, seed: int = 2) -> np.ndarray:
    """Inputs [count, K] of which a few directions carry most."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(K, K)) * np.exp(-np.arange(K) / (K / 6))[:, None]
    return rng.normal(size=(count, K)) @ mixing + 0.1 * rng.normal(size=(count, K))


def seen(x: np.ndarray) -> InputStatistics:
    h = x.T @ x / len(x)
    return InputStatistics(
        mx.array(np.diagonal(h).astype(np.float32)),
        mx.array(float(len(x))),
        hessian=mx.array(h.astype(np.float32)),
    )


def output_error(weight: mx.array, values: np.ndarray, x: np.ndarray) -> float:
    return float(((x @ (double(weight) - values).T) ** 2).sum())


def by_definition(weight: np.ndarray, h: np.ndarray, bits: int, group: int) -> np.ndarray:
    """Codes of optimal brain quantisation in order of columns, scales by rounding."""
    h = h + 0.01 * np.diagonal(h).mean() * np.eye(len(h))
    left, codes = weight.copy(), np.zeros(weight.shape)
    for k in range(left.shape[1]):
        if k % group == 0:
            part = mx.array(left[:, k : k + group].astype(np.float32))
            _, scales, biases = mx.quantize(part, group, bits)
            scale, bias = double(scales)[:, 0], double(biases)[:, 0]
        codes[:, k] = np.clip(np.rint((left[:, k] - bias) / scale), 0, 2**bits - 1)
        inverse = np.linalg.inv(h[k:, k:])
        error = (left[:, k] - (scale * codes[:, k] + bias)) / inverse[0, 0]
        left[:, k:] -= np.outer(error, inverse[0])
    return codes


def believed(x: np.ndarray) -> np.ndarray:
    """The Hessian of inputs [n, K], elements off the diagonal times n / (n + K)."""
    n, K = x.shape
    h = x.T @ x / n
    return np.where(np.eye(K, dtype=bool), h, h * n / (n + K))


@pytest.fixture
def unrefined(monkeypatch: pytest.MonkeyPatch) -> None:
    """What error feedback alone comes to."""
    monkeypatch.setattr(refining, "_SWEEPS", 0)


@pytest.mark.usefixtures("unrefined")
@pytest.mark.parametrize(("bits", "group", "K"), [(2, 32, 96), (3, 64, 128), (4, 32, 64)])
def test_codes_are_those_of_the_definition(bits: int, group: int, K: int) -> None:
    weight, x = normal(6, K, dtype=mx.float32), correlated(K)
    packed = gptq(weight, Feedback.of(seen(x)), bits, group, scales=rtn)
    ours = codes_of(np.array(packed.weight), bits)
    want = by_definition(double(weight), believed(x), bits, group)
    # Once a rounding differs by chance, what follows in that row may too.
    assert np.mean(ours == want) > 0.97


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_it_loses_less_of_the_output(bits: int) -> None:
    weight, x = normal(16, 256), correlated(256)
    for scales in (rtn, clip, search):
        alone = values_of(scales(weight, seen(x), bits, 64), bits, 64)
        packed = gptq(weight, Feedback.of(seen(x)), bits, 64, scales=scales)
        assert packed.scales.dtype == packed.biases.dtype == mx.bfloat16
        fed_back = output_error(weight, values_of(packed, bits, 64), x)
        assert fed_back < 0.7 * output_error(weight, alone, x)


@pytest.mark.usefixtures("unrefined")
def test_uncorrelated_inputs_leave_nothing_to_make_good() -> None:
    weight = normal(4, 64, dtype=mx.float32)
    statistics = InputStatistics(mx.ones(64), mx.array(9.0), hessian=mx.eye(64))
    packed = gptq(weight, Feedback.of(statistics), 4, 64, scales=rtn)
    for ours, theirs in zip(packed, rtn(weight, None, 4, 64), strict=True):
        assert mx.array_equal(ours, theirs)


def damped(x: np.ndarray) -> np.ndarray:
    h = believed(x)
    return h + 0.01 * np.diagonal(h).mean() * np.eye(len(h))


def cost(weight: mx.array, values: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Of each row, what refining lowers, in fp64."""
    miss = double(weight) - values
    return np.einsum("nk,kl,nl->n", miss, h, miss)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("bits", "group", "K"), [(2, 32, 96), (3, 64, 192), (4, 128, 128), (8, 64, 64)]
)
def test_refining_lowers_the_error_of_every_row(
    bits: int, group: int, K: int, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, x = normal(7, K, dtype=dtype), correlated(K, 6000)
    costs = []
    for sweeps in (0, 1, 3):
        monkeypatch.setattr(refining, "_SWEEPS", sweeps)
        packed = gptq(weight, Feedback.of(seen(x)), bits, group, scales=search)
        assert packed.scales.dtype == dtype
        costs.append(cost(weight, values_of(packed, bits, group), damped(x)))
    for before, after in pairwise(costs):
        assert (after <= before * (1 + 1e-4)).all()
    assert costs[-1].sum() < (0.95 if bits < 8 else 1) * costs[0].sum()


def test_no_other_code_is_better_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x, bits = normal(3, 64, dtype=mx.float32), correlated(64), 3
    monkeypatch.setattr(refining, "_SWEEPS", 60)
    packed = gptq(weight, Feedback.of(seen(x)), bits, 32, scales=rtn)
    values, codes = values_of(packed, bits, 32), codes_of(np.array(packed.weight), bits)
    scale = np.repeat(double(packed.scales), 32, axis=1)
    least = cost(weight, values, damped(x))
    for k in range(64):
        for step in (-1, 1):
            other = values.copy()
            other[:, k] += step * scale[:, k]
            exists = (codes[:, k] + step >= 0) & (codes[:, k] + step < 2**bits)
            assert (~exists | (cost(weight, other, damped(x)) > least * (1 - 1e-4))).all()


def test_dead_channels_are_rounded_like_others() -> None:
    weight, x = normal(8, 128, dtype=mx.float32), correlated(128)
    x[:, ::3] = 0
    packed = gptq(weight, Feedback.of(seen(x)), 3, 64, scales=search)
    values = values_of(packed, 3, 64)
    assert np.abs(double(weight) - values)[:, ::3].max() < 0.05
    alone = values_of(search(weight, seen(x), 3, 64), 3, 64)
    assert output_error(weight, values, x) < 0.8 * output_error(weight, alone, x)


@pytest.mark.parametrize(("count", "ratio"), [(8, 0.9), (32, 0.6), (512, 0.2)])
def test_few_inputs_do_not_mislead(count: int, ratio: float) -> None:
    """On inputs that the Hessian knows nothing of; 8 of them taken at their word cost 1.17."""
    weight, x = normal(16, 128, dtype=mx.float32), correlated(128, count=2512)
    few, others = seen(x[:count]), x[512:]
    values = values_of(gptq(weight, Feedback.of(few), 3, 64, scales=search), 3, 64)
    alone = values_of(search(weight, few, 3, 64), 3, 64)
    assert output_error(weight, values, others) < ratio * output_error(weight, alone, others)


@pytest.mark.parametrize("fault", ["missing", "zero", "infinite", "negative"])
def test_an_unusable_hessian_falls_back_with_a_note(fault: str) -> None:
    weight = normal(4, 64)
    hessian = {
        "missing": None,
        "zero": mx.zeros((64, 64)),
        "infinite": mx.full((64, 64), np.inf),
        "negative": -mx.eye(64),
    }[fault]
    statistics = InputStatistics(mx.ones(64), mx.array(1.0), hessian=hessian)
    with pytest.raises(HessianError):
        gptq(weight, Feedback.of(statistics), 4, 64, scales=rtn)
    packed, reason = Choice.of("gptq+search").pack(weight, statistics, 4, 64, mx.bfloat16)
    assert reason is not None
    assert "Hessian" in reason
    for ours, theirs in zip(packed, search(weight, statistics, 4, 64), strict=True):
        assert mx.array_equal(ours, theirs)


def test_an_indefinite_hessian_is_damped_until_it_serves() -> None:
    h = np.eye(64, dtype=np.float32)
    h[0, 1] = h[1, 0] = 1.05
    statistics = InputStatistics(mx.ones(64), mx.array(np.inf), hessian=mx.array(h))
    assert np.isfinite(
        values_of(gptq(normal(4, 64), Feedback.of(statistics), 4, 64, scales=rtn), 4, 64)
    ).all()


def test_names_of_methods() -> None:
    assert Choice.of("rtn") == Choice("rtn", rtn, feedback=False, fold=False)
    assert Choice.of("search+gptq") == Choice("search+gptq", search, feedback=True, fold=False)
    for name, message in (
        ("nearest", "no method 'nearest'; join some of rtn, search, awq, gptq"),
        ("rtn+search", "rtn stands alone"),
        ("gptq+gptq", "do not go together"),
        ("", "no method ''"),
    ):
        with pytest.raises(MixbitError, match=message):
            Choice.of(name)
