"""Whole measurements against logits computed apart, one document at a time."""

import copy
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_map

from mixbit import kld
from mixbit.errors import MixbitError
from models import MODEL_TYPES, build

# One, none and two tokens; token 0 at both ends and in the middle.
LENGTHS = (3, 5, 1, 0, 40, 17, 2)


def measure(*arguments: Any, **options: Any) -> kld.KLDResult:
    """Whole documents, every prediction scored."""
    return kld.measure(*arguments, window=None, score="all", **options)


def documents(vocab: int = 256) -> list[list[int]]:
    rng = np.random.default_rng(3)
    drawn = [rng.integers(vocab, size=length).tolist() for length in LENGTHS]
    drawn[1] = [0, 7, 0, 9, 0]
    return drawn


def perturbed(model: nn.Module, size: float = 0.05) -> nn.Module:
    """A copy whose every weight is off by ``size`` of itself."""
    other = copy.deepcopy(model)
    mx.random.seed(5)
    other.update(tree_map(lambda w: w * (1 + size * mx.random.normal(w.shape)), other.parameters()))
    mx.eval(other.parameters())
    return other


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def text_part(model: nn.Module) -> Any:
    return model.language_model if "language_model" in model else model


def dense(layer: nn.Module) -> np.ndarray:
    """Weight of the output layer, dequantised, fp64."""
    weight = layer.weight
    if isinstance(layer, nn.QuantizedLinear):
        # With the stored 16-bit scales the result would be rounded to 16 bits too.
        scales, biases = layer.scales.astype(mx.float32), layer.biases.astype(mx.float32)
        weight = mx.dequantize(weight, scales, biases, group_size=layer.group_size, bits=layer.bits)
    return np.array(weight.astype(mx.float32)).astype(np.float64)


def oracle_logits(model: nn.Module, document: list[int]) -> np.ndarray:
    """The model's own final hidden states times its output matrix in fp64, no batch, no cache."""
    part = text_part(model)
    hidden = np.array(part.model(mx.array([document]))[0].astype(mx.float32)).astype(np.float64)
    return hidden @ dense(part.lm_head).T


def oracle(
    reference: nn.Module, candidate: nn.Module, data: list[list[int]], vocab: int | None = None
) -> dict[str, np.ndarray]:
    columns: dict[str, list[np.ndarray]] = {"kld": [], "reference": [], "candidate": [], "top1": []}
    for document in data:
        if len(document) < 2:
            continue
        x, y = (oracle_logits(m, document)[:-1, :vocab] for m in (reference, candidate))
        p, q = log_softmax(x), log_softmax(y)
        columns["kld"].append((np.exp(p) * (p - q)).sum(axis=1))
        at = np.arange(len(p)), np.array(document[1:])
        columns["reference"].append(-p[at])
        columns["candidate"].append(-q[at])
        columns["top1"].append(x.argmax(axis=1) == y.argmax(axis=1))
    return {name: np.concatenate(parts) for name, parts in columns.items()}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_token_equals_the_oracle(model_type: str) -> None:
    reference = build(model_type)
    candidate = perturbed(reference)
    found = measure(candidate, reference, documents(), batch_size=3, chunk_size=16, block_size=7)
    expected = oracle(reference, candidate, documents())
    np.testing.assert_allclose(found.kld, expected["kld"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.nll_reference, expected["reference"], atol=1e-4)
    np.testing.assert_allclose(found.nll_candidate, expected["candidate"], atol=1e-4)
    np.testing.assert_array_equal(found.top1, expected["top1"])
    np.testing.assert_array_equal(found.document, np.repeat(range(7), [2, 4, 0, 0, 39, 16, 1]))


def test_models_in_16_bits_are_measured_without_16_bit_logits() -> None:
    # Rounding logits of this size to bf16 alone would move single tokens by far more than this.
    reference = build("qwen3_5", dtype=mx.bfloat16)
    candidate = copy.deepcopy(reference)
    nn.quantize(candidate, group_size=32, bits=4, class_predicate=lambda path, _: "lm_head" in path)
    found = measure(candidate, reference, documents(), batch_size=1)
    expected = oracle(reference, candidate, documents())
    assert expected["kld"].min() > 1e-5
    np.testing.assert_allclose(found.kld, expected["kld"], rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize(
    "sizes",
    [
        {"batch_size": 1},
        {"batch_size": 7},
        {"block_size": 1},
        {"chunk_size": 1},
        {"chunk_size": 39, "batch_size": 2, "block_size": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_sizes_change_nothing(sizes: dict[str, int], dtype: mx.Dtype) -> None:
    reference = build("qwen3_5", dtype=dtype)
    candidate = copy.deepcopy(reference)
    nn.quantize(candidate, group_size=32, bits=4)
    one = measure(candidate, reference, documents(), batch_size=4)
    other = measure(candidate, reference, documents(), **sizes)
    if mx.default_device() == mx.cpu:
        np.testing.assert_array_equal(other.kld, one.kld)
    else:
        np.testing.assert_allclose(other.kld, one.kld, rtol=1e-2, atol=1e-6)


def test_documents_do_not_see_each_other() -> None:
    reference = build("qwen3_5")
    candidate = perturbed(reference)
    data = documents()
    together = measure(candidate, reference, data)
    for index in (1, 4, 5):
        alone = measure(candidate, reference, [data[index]])
        np.testing.assert_allclose(
            together.kld[together.document == index], alone.kld, rtol=1e-4, atol=2e-7
        )


def test_model_against_itself_is_zero_to_round_off() -> None:
    model = build("qwen3_5", dtype=mx.bfloat16)
    summary = measure(model, copy.deepcopy(model), documents()).summary()
    assert abs(summary["mean"]) < 1e-12
    assert summary["max"] < 1e-9
    assert summary["top1"] == 1
    assert summary["ppl_reference"] == summary["ppl_candidate"]


def test_direction_is_reference_to_candidate() -> None:
    one = build("qwen3_5")
    other = perturbed(one, 0.2)
    forward, backward = (
        measure(a, b, documents()).summary()["mean"] for a, b in ((other, one), (one, other))
    )
    assert forward == pytest.approx(oracle(one, other, documents())["kld"].mean(), rel=1e-4)
    assert abs(forward - backward) > 1e-3


def test_head_of_its_own_kind_gets_fp32_in_blocks() -> None:
    seen: list[tuple[int, mx.Dtype]] = []

    class Recorder(nn.Linear):
        def __call__(self, x: mx.array) -> mx.array:
            seen.append((x.size // x.shape[-1], x.dtype))
            return super().__call__(x)

    model = build("qwen3_5", dtype=mx.bfloat16)
    recorder = Recorder(64, 256, bias=False)
    recorder.weight = text_part(model).lm_head.weight
    text_part(model).lm_head = recorder
    measure(model, model, documents(), block_size=10)
    assert max(rows for rows, _ in seen) <= 10
    # One token is tried out first.
    assert {dtype for rows, dtype in seen if rows > 1} == {mx.float32}


def test_padded_vocabulary_takes_no_part() -> None:
    reference = build("qwen3_5")
    small = perturbed(reference)
    padded = copy.deepcopy(small)
    head = text_part(padded).lm_head
    head.weight = mx.concatenate([head.weight, 9 * mx.ones((32, 64))])
    data = documents()
    expected = measure(small, reference, data)
    for candidate, base in ((padded, reference), (small, reference)):
        found = measure(candidate, base, data)
        assert found.vocab_size == 256
        np.testing.assert_allclose(found.kld, expected.kld, rtol=1e-4, atol=1e-6)


def test_tokenizer_bounds_the_vocabulary(tiny_tokenizer: Any) -> None:
    # The tiny tokenizer ends at 2047; 64 more rows are padding in both models.
    reference = build("qwen3_5", vocab_size=2112)
    candidate = perturbed(reference)
    data = documents(2048)
    found = measure(candidate, reference, data, tokenizer=tiny_tokenizer)
    assert found.vocab_size == 2048
    expected = oracle(reference, candidate, data, vocab=2048)
    np.testing.assert_allclose(found.kld, expected["kld"], rtol=1e-4, atol=1e-6)


def test_broken_model_is_counted_not_averaged() -> None:
    reference = build("qwen3_5")
    candidate = copy.deepcopy(reference)
    embedding = text_part(candidate).model.embed_tokens
    embedding.weight[9] = mx.full((64,), float("nan"))
    data = [[1, 2, 3, 4], [9, 6, 7]]
    summary = measure(candidate, reference, data).summary()
    assert summary["nonfinite"] == 2  # the document with token 9 in it, and nothing else
    assert summary["mean"] == 0
    assert summary["ppl_candidate"] is None
    assert summary["ppl_reference"] > 1


def test_progress_counts_every_scored_token() -> None:
    calls: list[tuple[int, int]] = []
    model = build("qwen3_5")
    measure(model, model, documents(), batch_size=2, progress=lambda *call: calls.append(call))
    assert calls[-1] == (62, 62)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})


def test_num_samples_takes_the_first_documents() -> None:
    model = build("qwen3_5")
    assert len(measure(model, model, documents(), num_samples=2).kld) == 6


def test_tokens_outside_the_vocabulary_are_refused() -> None:
    model = build("qwen3_5")
    with pytest.raises(MixbitError, match=r"Document 1 .* 256"):
        measure(model, model, [[1, 2], [3, 256]])
    with pytest.raises(MixbitError, match="Document 0"):
        measure(model, model, [[-1, 2]])


def test_nothing_to_predict_is_refused() -> None:
    model = build("qwen3_5")
    for data in ([], [[1], []]):
        with pytest.raises(MixbitError, match="nothing to predict"):
            measure(model, model, data)


@pytest.mark.parametrize("name", ["batch_size", "chunk_size", "block_size", "num_samples"])
def test_sizes_below_one_are_refused(name: str) -> None:
    model = build("qwen3_5")
    with pytest.raises(MixbitError, match=f"{name} must be at least 1"):
        measure(model, model, [[1, 2]], **{name: 0})


def test_data_file_needs_a_tokenizer(tmp_path: Path) -> None:
    model = build("qwen3_5")
    with pytest.raises(MixbitError, match="tokenizer"):
        measure(model, model, tmp_path / "data.jsonl")
