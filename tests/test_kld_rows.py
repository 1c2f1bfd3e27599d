"""The arithmetic of a row of logits, against the definition in extended precision."""

import numpy as np
import pytest

from mixbit.kld.documents import Document
from mixbit.kld.result import KLDResult
from mixbit.kld.rows import score_rows
from mixbit.kld.stream import Protocol, Stream


def definition(reference: np.ndarray, candidate: np.ndarray) -> np.ndarray:
    """Sum of p log(p / q) with the softmax written out, in long double."""

    def log_softmax(logits: np.ndarray) -> np.ndarray:
        wide = logits.astype(np.longdouble)
        wide -= wide.max(axis=1, keepdims=True)
        return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))

    p, q = log_softmax(reference), log_softmax(candidate)
    return (np.exp(p) * (p - q)).sum(axis=1)


def first_five(logits: np.ndarray) -> np.ndarray:
    order = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    return np.pad(order, ((0, 0), (0, max(0, 5 - order.shape[1]))), constant_values=-1)


def row(*logits: float) -> np.ndarray:
    return np.array([logits], dtype=np.float32)


FIRST = np.zeros(1, dtype=np.int64)


@pytest.mark.parametrize("shape", [(1, 2), (7, 33), (300, 1000), (2, 248_320)])
def test_rows_follow_the_definition(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    reference = rng.normal(0, 4, shape).astype(np.float32)
    candidate = reference + rng.normal(0, 0.3, shape).astype(np.float32)
    targets = rng.integers(shape[1], size=shape[0])
    scores = score_rows(reference, candidate, targets)
    np.testing.assert_allclose(scores.kld, definition(reference, candidate), rtol=1e-10, atol=1e-14)
    shifted = reference.astype(np.longdouble) - reference.max(axis=1, keepdims=True)
    nll = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(shape[0]), targets]
    np.testing.assert_allclose(scores.nll_reference, nll, rtol=1e-12, atol=1e-14)
    for logits, top in ((reference, scores.top_reference), (candidate, scores.top_candidate)):
        np.testing.assert_array_equal(top, first_five(logits))
    np.testing.assert_allclose(
        scores.reverse, definition(candidate, reference), rtol=1e-10, atol=1e-14
    )


def test_rows_do_not_depend_on_each_other() -> None:
    rng = np.random.default_rng(2)
    reference, candidate = rng.normal(0, 3, (2, 700, 900)).astype(np.float32)
    targets = rng.integers(900, size=700)
    together = score_rows(reference, candidate, targets)
    for index in (0, 290, 291, 699):
        one = slice(index, index + 1)
        alone = score_rows(reference[one], candidate[one], targets[one])
        assert alone.kld[0] == together.kld[index]
        assert alone.nll_candidate[0] == together.nll_candidate[index]


def test_tiny_divergence_survives_a_large_vocabulary() -> None:
    # Summed in fp32 at this size, a divergence of this height drowns in rounding.
    rng = np.random.default_rng(0)
    reference = rng.normal(0, 2, (1, 248_320)).astype(np.float32)
    reference[0, 7] = 30
    candidate = reference.copy()
    candidate[0, 7] -= 0.5
    expected = definition(reference, candidate)
    assert 1e-8 < expected[0] < 1e-5
    np.testing.assert_allclose(score_rows(reference, candidate, FIRST).kld, expected, rtol=1e-8)
    assert abs(score_rows(reference, reference, FIRST).kld[0]) < 1e-15


def test_tail_is_counted() -> None:
    p, q = [0.5, 0.2, 0.1, 0.1, 0.1], [0.5, 0.2, 0.25, 0.04, 0.01]
    scores = score_rows(row(*np.log(p)), row(*np.log(q)), FIRST)
    assert scores.kld[0] == pytest.approx(0.2302, abs=1e-4)


def test_tokens_ruled_out_by_both() -> None:
    scores = score_rows(row(0, 0, -np.inf), row(0, 1, -np.inf), FIRST)
    assert scores.kld[0] == pytest.approx(0.1201, abs=1e-4)


def test_token_ruled_out_by_the_reference_alone_costs_only_its_mass() -> None:
    scores = score_rows(row(0, 0, -np.inf), row(0, 0, 0), FIRST)
    assert scores.kld[0] == pytest.approx(np.log(1.5), abs=1e-12)


@pytest.mark.parametrize("weight", [0.0, -2000.0])
def test_token_ruled_out_by_the_candidate_alone_is_infinite(weight: float) -> None:
    # exp(-2000) underflows, yet the divergence is infinite all the same.
    assert score_rows(row(0, weight), row(0, -np.inf), FIRST).kld[0] == np.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("side", ["reference", "candidate", "both"])
def test_broken_rows_are_nan_and_stay_alone(bad: float, side: str) -> None:
    good = np.array([[1, 2, 3], [3, 2, 1]], dtype=np.float32)
    broken = good.copy()
    broken[0, 1] = bad
    scores = score_rows(
        good if side == "candidate" else broken,
        good if side == "reference" else broken,
        np.zeros(2, dtype=np.int64),
    )
    assert np.isnan(scores.kld[0])
    assert scores.kld[1] == 0


def test_row_with_everything_ruled_out_is_nan() -> None:
    nothing = row(-np.inf, -np.inf)
    assert np.isnan(score_rows(nothing, row(0, 1), FIRST).kld[0])
    assert np.isnan(score_rows(row(0, 1), nothing, FIRST).kld[0])


def result(kld: list[float], document: list[int]) -> KLDResult:
    size = len(kld)
    # A document of n + 1 tokens has n predictions.
    lengths = np.bincount(document) + 1
    stream = Stream.of(
        [Document([0] * int(length)) for length in lengths], Protocol(window=None, score="all")
    )
    top = np.tile(np.arange(5), (size, 1))
    other = top.copy()
    other[::4, :2] = [9, 0]
    return KLDResult(
        kld=np.array(kld),
        reverse=np.full(size, 0.25),
        nll_reference=np.full(size, np.log(2.0)),
        nll_candidate=np.full(size, np.log(4.0)),
        top_reference=top,
        top_candidate=other,
        stream=stream,
        vocab_size=5,
    )


def test_summary_of_known_values() -> None:
    summary = result([float(v) for v in range(1001)], [0] * 1001).summary()
    assert summary["schema"] == "mixbit.kld/1"
    assert summary["tokens"] == 1001
    assert summary["documents"] == 1
    assert (summary["mean"], summary["min"], summary["max"]) == (500, 0, 1000)
    found = [summary[name] for name in ("p50", "p90", "p95", "p99", "p999")]
    assert found == pytest.approx([500, 900, 950, 990, 999])
    assert summary["top1"] == pytest.approx(750 / 1001)
    assert summary["ppl_reference"] == pytest.approx(2)
    assert summary["ppl_candidate"] == pytest.approx(4)
    assert summary["ppl_ratio"] == pytest.approx(2)
    assert summary["reverse_mean"] == 0.25
    assert summary["delta_p_mean"] == pytest.approx(-0.25)
    assert summary["delta_p_rms"] == pytest.approx(0.25)
    assert summary["top5"] == pytest.approx(1 - 251 * 0.2 / 1001)
    assert summary["se"] is None  # nothing to cluster by


def test_standard_error_of_single_token_documents_is_the_usual_one() -> None:
    values = np.random.default_rng(0).gamma(1, 1, 50)
    summary = result(values.tolist(), list(range(50))).summary()
    assert summary["se"] == pytest.approx(values.std(ddof=1) / np.sqrt(50))


def test_standard_error_sees_that_tokens_of_a_document_hang_together() -> None:
    # Every document repeats one value: ten times the tokens, not one bit more knowledge.
    values = np.random.default_rng(0).gamma(1, 1, 50)
    repeated = result(np.repeat(values, 10).tolist(), np.repeat(np.arange(50), 10).tolist())
    assert repeated.summary()["se"] == pytest.approx(values.std(ddof=1) / np.sqrt(50))


def test_nonfinite_rows_are_counted_and_not_averaged() -> None:
    summary = result([1.0, np.inf, 3.0, np.nan, -np.inf], [0, 0, 1, 1, 1]).summary()
    assert summary["nonfinite"] == 3
    assert summary["tokens"] == 5
    assert (summary["mean"], summary["max"]) == (2, 3)
    assert summary["top1"] == 0.5


def test_nothing_finite_leaves_no_figure() -> None:
    summary = result([np.nan, np.inf], [0, 1]).summary()
    assert summary["nonfinite"] == 2
    for name in ("mean", "se", "p50", "p999", "max", "min", "top1"):
        assert summary[name] is None


def test_negative_round_off_is_reported() -> None:
    assert result([-1e-17, -3e-17], [0, 1]).summary()["mean"] == pytest.approx(-2e-17)
