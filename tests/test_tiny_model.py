"""The shipped model is the one that its README describes, and scores what is written there."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

import mixbit
from mixbit.data import tiny_data, tiny_model
from mixbit.demo.toolcalls import load_cases, score_one_pass
from mixbit.errors import MixbitError

# 77.5 % of 200, measured in fp32; bf16 arithmetic may tip a close call or two.
README_RIGHT, NOISE = 155, 2


def test_tool_calls_right(tiny_folder: Path) -> None:
    model, tokenizer = mixbit.load(str(tiny_folder))
    cases = load_cases(tiny_data("tool_eval"))
    assert len(cases) == 200
    right = sum(score_one_pass(model, tokenizer, cases))
    assert abs(right - README_RIGHT) <= NOISE


def test_weights_are_as_described(tiny_folder: Path) -> None:
    weights = mx.load(str(tiny_folder / "model.safetensors"))
    assert sum(value.size for value in weights.values()) == 4_748_208
    assert {value.dtype for value in weights.values()} == {mx.bfloat16}
    widths = {value.shape[-1] for value in weights.values() if value.ndim == 2}
    assert widths == {256}


def test_one_plus_norm_gain_is_exact_in_bf16(tiny_folder: Path) -> None:
    """Else mlx-lm, which adds the 1 in bf16, and transformers would differ for that reason."""
    stored = mx.load(str(tiny_folder / "model.safetensors"))
    model, _ = mixbit.load(str(tiny_folder))
    gains = {
        name: value
        for name, value in tree_flatten(model.parameters())
        if value.ndim == 1 and "linear_attn" not in name
    }
    assert len(gains) == 21
    for name, gain in gains.items():
        raw = stored[name.replace("language_model.model", "model.language_model")]
        wanted = 1.0 + np.array(raw.astype(mx.float32))
        np.testing.assert_array_equal(np.array(gain.astype(mx.float32)), wanted, err_msg=name)


def test_thinking_can_be_closed(tiny_tokenizer: TokenizerWrapper) -> None:
    asked = [{"role": "user", "content": "What is 2 plus 3?"}]
    prompt = tiny_tokenizer.apply_chat_template(
        asked, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert tiny_tokenizer.has_thinking
    assert tiny_tokenizer.has_tool_calling


@pytest.mark.parametrize(("name", "lines"), [("tool_eval", 200), ("kld_eval", 60)])
def test_data_fits_the_vocabulary(name: str, lines: int, tiny_tokenizer: TokenizerWrapper) -> None:
    text = tiny_data(name).read_text(encoding="utf-8")
    assert len(text.splitlines()) == lines
    assert tiny_tokenizer.decode(tiny_tokenizer.encode(text)) == text


def test_unknown_data_is_named() -> None:
    with pytest.raises(MixbitError, match=r"'nothing'.*calibration, kld_eval, tool_eval"):
        tiny_data("nothing")


def test_model_is_a_plain_folder() -> None:
    assert (tiny_model() / "config.json").is_file()
