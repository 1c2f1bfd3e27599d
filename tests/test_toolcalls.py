"""Tool calls: reading the prompts, scoring in one pass, and parsing generated answers."""

import json
from pathlib import Path

import mlx.nn as nn
import pytest
from mlx_lm import generate
from mlx_lm.tokenizer_utils import TokenizerWrapper

import mixbit
from mixbit.data import tiny_data
from mixbit.demo.toolcalls import (
    ToolCall,
    encode,
    load_cases,
    parse_call,
    same_call,
    score_one_pass,
)
from mixbit.errors import MixbitError

ANSWER = """<tool_call>
<function=set_temperature>
<parameter=room>
living room
</parameter>
<parameter=degrees>
19.5
</parameter>
</function>
</tool_call><|im_end|>"""
EXPECTED = {"name": "set_temperature", "arguments": {"room": "living room", "degrees": 19.5}}


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> tuple[nn.Module, TokenizerWrapper]:
    model, tokenizer = mixbit.load(str(tiny_folder))
    return model, tokenizer


def test_one_pass_is_greedy_decoding(loaded: tuple[nn.Module, TokenizerWrapper]) -> None:
    model, tokenizer = loaded
    cases = load_cases(tiny_data("tool_eval"))[:8]
    one_pass = score_one_pass(model, tokenizer, cases)
    assert set(one_pass) == {True, False}
    for case, right in zip(cases, one_pass, strict=True):
        prompt, answer = encode(case, tokenizer)
        text = generate(model, tokenizer, prompt=prompt, max_tokens=len(answer) + 8)
        assert same_call(parse_call(text), case.expected) is right


def test_score_keeps_the_order_of_the_cases(
    loaded: tuple[nn.Module, TokenizerWrapper],
) -> None:
    model, tokenizer = loaded
    cases = load_cases(tiny_data("tool_eval"))[:8]
    together = score_one_pass(model, tokenizer, cases)
    assert score_one_pass(model, tokenizer, cases[::-1]) == together[::-1]
    assert score_one_pass(model, tokenizer, cases[2:3]) == together[2:3]
    assert score_one_pass(model, tokenizer, []) == []


def test_prompt_and_answer_join_to_the_rendered_conversation(
    tiny_tokenizer: TokenizerWrapper,
) -> None:
    case = load_cases(tiny_data("tool_eval"))[0]
    prompt, answer = encode(case, tiny_tokenizer)
    text = tiny_tokenizer.decode(prompt)
    assert text.endswith("<think>\n\n</think>\n\n")
    assert case.messages[-1]["content"] in text
    written = tiny_tokenizer.decode(answer)
    assert written.startswith("<tool_call>\n<function=")
    assert written.endswith("</tool_call><|im_end|>")
    assert same_call(parse_call(written), case.expected)


def test_template_that_rewrites_the_prompt_is_refused(tiny_tokenizer: TokenizerWrapper) -> None:
    class Rewriting:
        def apply_chat_template(self, messages: list[dict], **_: object) -> str:
            return f"{len(messages)} messages"

        def encode(self, text: str, **_: object) -> list[int]:
            return tiny_tokenizer.encode(text)

    case = load_cases(tiny_data("tool_eval"))[0]
    with pytest.raises(MixbitError, match="does not continue the generation prompt"):
        encode(case, Rewriting())


def test_parse_call() -> None:
    wanted = ToolCall("set_temperature", {"room": "living room", "degrees": "19.5"})
    assert parse_call("Of course.\n" + ANSWER) == wanted
    assert parse_call(ANSWER.replace("</function>", "")) is None
    assert parse_call("It is 19.5 degrees.") is None


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("", "", True),
        ("19.5", "19.50", False),
        ("=degrees", "=degree", False),
        ("set_temperature", "set_heating", False),
        ("living room", "living  room", False),
    ],
)
def test_same_call(old: str, new: str, same: bool) -> None:
    assert same_call(parse_call(ANSWER.replace(old, new) if old else ANSWER), EXPECTED) is same


def test_same_call_without_a_call() -> None:
    assert not same_call(None, EXPECTED)


def test_lists_and_numbers_are_compared_as_json() -> None:
    call = ToolCall("f", {"tags": '["é", "b"]', "count": "3", "on": "true"})
    expected = {"name": "f", "arguments": {"tags": ["é", "b"], "count": 3, "on": True}}
    assert same_call(call, expected)


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        json.dumps({"messages": [], "tools": []}),
        json.dumps({"messages": [], "tools": [], "expected": "f"}),
        json.dumps({"messages": [], "tools": [], "expected": {"name": "f", "arguments": "{}"}}),
    ],
)
def test_bad_line_is_named(line: str, tmp_path: Path) -> None:
    good = json.dumps({"messages": [], "tools": [], "expected": {"name": "f", "arguments": {}}})
    file = tmp_path / "cases.jsonl"
    file.write_text(f"{good}\n{line}\n", encoding="utf-8")
    with pytest.raises(MixbitError, match=r"cases\.jsonl:2"):
        load_cases(file)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MixbitError, match="nowhere"):
        load_cases(tmp_path / "nowhere.jsonl")
