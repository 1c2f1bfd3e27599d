"""The fused heads and divergence, against the definition in fp64 numpy."""

import json
import os
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest

from kernel_cases import FORMATS, double, unpacked
from mixbit import ops, stock
from mixbit.kld.rows import RowScores, merge_tiles
from mixbit.ops import Weight


def scores(
    p: mx.array,
    p_head: Weight,
    q: mx.array,
    q_head: Weight | None,
    targets: np.ndarray,
    vocabulary: int,
) -> RowScores:
    return merge_tiles(
        ops.kl_divergence(p, p_head, q, q_head, mx.array(targets), vocabulary=vocabulary)
    )


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def divergence(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    p, q = log_softmax(x), log_softmax(y)
    return (np.exp(p) * (p - q)).sum(axis=1)


def random(rng: np.random.Generator, *shape: int, size: float = 1.0) -> mx.array:
    return mx.array((size * rng.standard_normal(shape)).astype(np.float32))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "shape",
    [(1, 32, 1), (2, 33, 3), (5, 64, 384), (4, 96, 385), (130, 40, 1003), (3, 64, 248_320)],
    ids=str,
)
def test_equals_the_definition(shape: tuple[int, int, int], shared: bool) -> None:
    T, K, V = shape
    rng = np.random.default_rng([T, K, V])
    p, head = random(rng, T, K), random(rng, V, K, size=3 / np.sqrt(K))
    q = p + random(rng, T, K, size=0.05)
    other = head if shared else head + random(rng, V, K, size=0.02 / np.sqrt(K))
    targets = rng.integers(V, size=T)
    found = scores(p, Weight(head), q, None if shared else Weight(other), targets, V)
    x, y = double(p) @ double(head).T, double(q) @ double(other).T
    np.testing.assert_allclose(found.kld, divergence(x, y), rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.reverse, divergence(y, x), rtol=0, atol=1e-6)
    row = np.arange(T)
    np.testing.assert_allclose(found.nll_reference, -log_softmax(x)[row, targets], atol=1e-5)
    np.testing.assert_allclose(found.nll_candidate, -log_softmax(y)[row, targets], atol=1e-5)
    five = np.argsort(-x, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(found.top_reference[:, : five.shape[1]], five)
    assert (found.top_reference[:, five.shape[1] :] == -1).all()


@pytest.mark.parametrize(("mode", "bits", "group"), FORMATS)
def test_every_format_of_a_head(mode: str, bits: int, group: int) -> None:
    rng = np.random.default_rng(bits)
    T, K, V = 6, 256, 500
    p = random(rng, T, K).astype(mx.bfloat16)
    q = random(rng, T, K, size=0.1).astype(mx.bfloat16) + p
    dense = random(rng, V, K, size=2 / np.sqrt(K)).astype(mx.bfloat16)
    packed = mx.quantize(dense, group_size=group, bits=bits, mode=mode)
    bias = random(rng, V).astype(mx.bfloat16)
    weight = Weight(
        packed[0], packed[1], packed[2] if len(packed) > 2 else None, bias, group, bits, mode
    )
    found = scores(p, Weight(dense), q, weight, np.zeros(T, np.int64), V)
    x = double(p) @ double(dense).T
    y = double(q) @ unpacked(list(packed), bits, group, mode).T + double(bias)
    np.testing.assert_allclose(found.kld, divergence(x, y), rtol=0, atol=2e-6)


def case(T: int, V: int, K: int = 64) -> tuple[mx.array, Weight, mx.array, Weight, np.ndarray]:
    rng = np.random.default_rng([T, V, K])
    p, head = random(rng, T, K).astype(mx.bfloat16), random(rng, V, K, size=3 / np.sqrt(K))
    q = (p + random(rng, T, K, size=0.05)).astype(mx.bfloat16)
    other = head + random(rng, V, K, size=0.02 / np.sqrt(K))
    return p, Weight(head), q, Weight(other), rng.integers(V, size=T)


@pytest.mark.parametrize("own_head", [True, False])
def test_stock_form_agrees(own_head: bool) -> None:
    p, head, q, other, targets = case(9, 700)
    targets %= 650
    second = other if own_head else None
    one = scores(p, head, q, second, targets, 650)
    tiles = stock.kl_divergence(p, head, q, second, mx.array(targets), 650)
    for a, b in zip(one, merge_tiles(tiles), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=5e-6)


def test_model_against_itself() -> None:
    p, head, _, _, targets = case(40, 5000)
    shared = scores(p, head, p, None, targets, 5000)
    assert np.abs(shared.kld).max() <= 1e-12
    copied = Weight(mx.array(np.array(head.w)))
    assert np.abs(scores(p, head, p, copied, targets, 5000).kld).max() <= 1e-7


def test_bias_of_a_shared_head_cancels_out() -> None:
    p, head, q, _, targets = case(5, 900)
    biased = head._replace(bias=random(np.random.default_rng(1), 900))
    x, y = (double(h) @ double(head.w).T + double(biased.bias) for h in (p, q))
    found = scores(p, biased, q, None, targets, 900)
    np.testing.assert_allclose(found.kld, divergence(x, y), rtol=0, atol=1e-6)


def test_difference_form_keeps_a_tiny_divergence() -> None:
    # Hidden states one bf16 step apart in one value; logits as large as 60.
    rng = np.random.default_rng(0)
    K, V = 128, 20_000
    p = random(rng, 1, K).astype(mx.bfloat16)
    values = double(p)
    values[0, 5] *= 1 + 2**-7
    q = mx.array(values.astype(np.float32)).astype(mx.bfloat16)
    assert np.count_nonzero(double(p) != double(q)) == 1
    head = random(rng, V, K, size=1.5)
    x, difference = double(p) @ double(head).T, (double(p) - double(q)) @ double(head).T
    expected = divergence(x, x - difference)
    assert 0 < expected[0] < 1e-4
    found = scores(p, Weight(head), q, None, np.zeros(1, np.int64), V)
    np.testing.assert_allclose(found.kld, expected, rtol=2e-5)


@pytest.mark.parametrize("own_head", [True, False])
@pytest.mark.parametrize("block", [1, 7, 64, 512])
def test_block_size_changes_no_bit(own_head: bool, block: int) -> None:
    p, head, q, other, targets = case(200, 1000)
    second = other if own_head else None
    whole = scores(p, head, q, second, targets, 1000)
    for begin in range(0, 200, block):
        rows = slice(begin, begin + block)
        part = scores(p[rows], head, q[rows], second, targets[rows], 1000)
        for a, b in zip(part, whole.part(rows), strict=True):
            np.testing.assert_array_equal(a, b)


SCRIPT = """
import json, sys
sys.path.insert(0, "tests")
import mlx.core as mx
mx.set_default_device(mx.cpu)
from test_kl_divergence import case, scores
for T in (3, 131):
    p, head, q, other, targets = case(T, 3000)
    for second in (other, None):
        print(json.dumps(scores(p, head, q, second, targets, 2900).kld.tolist()))
"""


def lines(**environment: str) -> list[list[float]]:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_threads_change_no_bit_and_instruction_sets_little() -> None:
    one = lines(MIXBIT_NUM_THREADS="1")
    assert lines(MIXBIT_NUM_THREADS="3") == one
    portable = lines(MIXBIT_ISA="portable")
    for a, b in zip(one, portable, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def with_bias(first: list[float], second: list[float], shared: bool = False) -> RowScores:
    """Logits that are given, as the biases of heads of nothing."""
    V = len(first)
    zero, hidden = mx.zeros((V, 32)), mx.zeros((1, 32))
    p, q = (Weight(zero, bias=mx.array(logits, dtype=mx.float32)) for logits in (first, second))
    return scores(hidden, p, hidden, None if shared else q, np.array([0]), V)


INF = float("inf")


def test_tokens_that_are_ruled_out() -> None:
    assert with_bias([0, 0, -INF], [0, 1, -INF]).kld[0] == pytest.approx(0.1201, abs=1e-4)
    assert with_bias([0, 0, -INF], [0, 0, -INF], shared=True).kld[0] == 0
    only_reference = with_bias([0, 0, -INF], [0, 0, 0])
    assert only_reference.kld[0] == pytest.approx(np.log(1.5), abs=1e-12)
    assert only_reference.reverse[0] == INF
    for weight in (0.0, -2000.0):  # exp(-2000) underflows, yet the divergence is infinite
        assert with_bias([0, weight], [0, -INF]).kld[0] == INF
    # The same in another tile of the vocabulary than the likeliest token.
    far = [0.0] * 384 + [-2000.0] * 100
    assert with_bias(far, [*far[:-1], -INF]).kld[0] == INF


def test_a_whole_tile_may_be_ruled_out() -> None:
    tail = [-INF] * 500
    found = with_bias([1.0, 2.0, *tail], [2.0, 1.0, *tail])
    p = np.exp([1, 2]) / np.exp([1, 2]).sum()
    assert found.kld[0] == pytest.approx(p[1] - p[0], abs=1e-12)
    assert found.top_reference[0].tolist() == [1, 0, -1, -1, -1]
    assert np.isnan(with_bias(tail, [0.0] * 500).kld[0])


@pytest.mark.parametrize("bad", [float("nan"), INF])
def test_broken_rows_stay_alone(bad: float) -> None:
    p, head, q, other, targets = case(6, 900)
    broken = np.array(q.astype(mx.float32))
    broken[2, 3] = bad
    found = scores(p, head, mx.array(broken), other, targets, 900)
    assert np.isnan(found.kld[2])
    right = scores(p, head, q, other, targets, 900)
    keep = np.arange(6) != 2
    np.testing.assert_array_equal(found.kld[keep], right.kld[keep])


def test_padding_of_the_vocabulary_takes_no_part() -> None:
    real = [2, 1, 0, -1, -2, 0.5, 0.3, 0.1]
    zero, hidden = mx.zeros((10, 32)), mx.zeros((1, 32))
    p, q = (Weight(zero, bias=mx.array([*real, pad, pad])) for pad in (0.0, -50.0))
    assert scores(hidden, p, hidden, q, np.array([0]), 8).kld[0] == 0
    assert scores(hidden, p, hidden, q, np.array([0]), 10).kld[0] > 5


def test_what_does_not_fit_is_refused() -> None:
    p, head, q, other, targets = case(4, 100)
    for arguments, said in (
        ((p, head, q[:3], other, targets, 100), "same number of rows"),
        ((p, head, q[:, :32], None, targets, 100), "share a head"),
        ((p, head, q, other, targets, 101), "vocabulary of 101"),
        ((p[:, :32], head, q, other, targets, 100), "does not fit"),
        ((p, head._replace(bias=mx.zeros(3)), q, other, targets, 100), "bias"),
    ):
        with pytest.raises(ValueError, match=said):
            scores(*arguments)
