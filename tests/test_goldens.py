"""Mixbit in fp32 against transformers: logits from golden files, and live where torch is there."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_map
from mlx_lm.tokenizer_utils import TokenizerWrapper

import mixbit
from goldens import (
    DOCUMENTS,
    RANDOM_CASES,
    TOLERANCE,
    RandomCase,
    tiny_file,
    tiny_tokens,
    transformers_logits,
)


def _load_float32(folder: Path) -> nn.Module:
    model, _ = mixbit.load(str(folder))
    model.update(
        tree_map(
            lambda p: p.astype(mx.float32) if mx.issubdtype(p.dtype, mx.floating) else p,
            model.parameters(),
        )
    )
    return model


def _logits(model: nn.Module, tokens: np.ndarray) -> np.ndarray:
    return np.array(model(mx.array(tokens)[None])[0])


@pytest.fixture(scope="module")
def tiny_float32(tiny_folder: Path) -> nn.Module:
    return _load_float32(tiny_folder)


@pytest.fixture(scope="module")
def random_float32(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[RandomCase], tuple[Path, nn.Module]]:
    root = tmp_path_factory.mktemp("random")
    loaded: dict[str, tuple[Path, nn.Module]] = {}

    def get(case: RandomCase) -> tuple[Path, nn.Module]:
        if case.name not in loaded:
            folder = case.save(root / case.name)
            loaded[case.name] = folder, _load_float32(folder)
        return loaded[case.name]

    return get


@pytest.mark.parametrize("index", range(DOCUMENTS))
def test_trained_model(
    index: int, tiny_float32: nn.Module, tiny_tokenizer: TokenizerWrapper
) -> None:
    with np.load(tiny_file(index)) as golden:
        tokens, positions, wanted = golden["tokens"], golden["positions"], golden["logits"]
    np.testing.assert_array_equal(tiny_tokens(index, tiny_tokenizer), tokens)
    logits = _logits(tiny_float32, tokens)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits[positions], wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("case", RANDOM_CASES, ids=lambda case: case.name)
def test_random_model(
    case: RandomCase, random_float32: Callable[[RandomCase], tuple[Path, nn.Module]]
) -> None:
    with np.load(case.file) as golden:
        tokens, wanted = golden["tokens"], golden["logits"]
    _, model = random_float32(case)
    np.testing.assert_allclose(_logits(model, tokens), wanted, rtol=0, atol=TOLERANCE)


if find_spec("torch"):

    def test_trained_model_live(tiny_folder: Path, tiny_float32: nn.Module) -> None:
        with np.load(tiny_file(0)) as golden:
            tokens = golden["tokens"]
        wanted = transformers_logits(tiny_folder, tokens)
        logits = _logits(tiny_float32, tokens)
        np.testing.assert_allclose(logits, wanted, rtol=0, atol=TOLERANCE)

    @pytest.mark.parametrize("case", RANDOM_CASES, ids=lambda case: case.name)
    def test_random_model_live(
        case: RandomCase, random_float32: Callable[[RandomCase], tuple[Path, nn.Module]]
    ) -> None:
        folder, model = random_float32(case)
        tokens = np.random.RandomState(3).randint(0, 256, 45)
        wanted = transformers_logits(folder, tokens)
        np.testing.assert_allclose(_logits(model, tokens), wanted, rtol=0, atol=TOLERANCE)
