"""Data files as token lists."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixbit.data import tiny_data
from mixbit.errors import MixbitError
from mixbit.kld.documents import read_documents


def write(folder: Path, *lines: object) -> Path:
    path = folder / "data.jsonl"
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


def test_conversations_go_through_the_chat_template(tmp_path: Path, tiny_tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello."}]
    (document,) = read_documents(write(tmp_path, {"messages": messages}), tiny_tokenizer)
    assert tiny_tokenizer.decode(document.tokens) == (
        "<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\nHello.<|im_end|>\n"
    )


def test_tools_are_shown_to_the_model(tmp_path: Path, tiny_tokenizer: Any) -> None:
    tool = {"type": "function", "function": {"name": "ring_bell", "parameters": {}}}
    record = {"messages": [{"role": "user", "content": "ring"}], "tools": [tool]}
    (document,) = read_documents(write(tmp_path, record), tiny_tokenizer)
    assert "ring_bell" in tiny_tokenizer.decode(document.tokens)


def test_plain_text_and_blank_lines(tmp_path: Path, tiny_tokenizer: Any) -> None:
    found = read_documents(write(tmp_path, {"text": "one two"}, "", {"text": ""}), tiny_tokenizer)
    assert [tiny_tokenizer.decode(document.tokens) for document in found] == ["one two", ""]


def test_shipped_data_is_readable(tiny_tokenizer: Any) -> None:
    found = read_documents(tiny_data("kld_eval"), tiny_tokenizer)
    assert len(found) == 60
    assert min(len(document.tokens) for document in found) > 20


def test_kinds_and_expected_calls(tmp_path: Path, tiny_tokenizer: Any) -> None:
    user = {"role": "user", "content": "ring"}
    call = {"type": "function", "function": {"name": "ring_bell", "arguments": {}}}
    tools = [{"type": "function", "function": {"name": "ring_bell", "parameters": {}}}]
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    found = read_documents(
        write(
            tmp_path,
            {
                "messages": [user],
                "tools": tools,
                "expected": {"name": "ring_bell", "arguments": {}},
            },
            {"messages": [user, turn], "tools": tools},
            {"messages": [user]},
            {"text": "x = 1", "kind": "code"},
            {"tokens": [5, 6]},
        ),
        tiny_tokenizer,
    )
    kinds = [document.kind for document in found]
    assert kinds == ["tool calls", "tool calls", "chat", "code", "tokens"]
    answer = tiny_tokenizer.decode(found[0].tokens[found[0].answer :])
    assert answer == "<tool_call>\n<function=ring_bell>\n</function>\n</tool_call><|im_end|>"
    assert [document.answer for document in found[1:]] == [None] * 4
    assert found[4].tokens == [5, 6]


def test_plain_text_and_token_files(tmp_path: Path, tiny_tokenizer: Any) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one\ntwo", encoding="utf-8")
    (document,) = read_documents(text, tiny_tokenizer)
    assert tiny_tokenizer.decode(document.tokens) == "one\ntwo"
    assert document.kind == "text"
    for tokens in ([3, 4, 5], [[3, 4], [5, 6]]):
        np.save(tmp_path / "tokens.npy", np.array(tokens))
        rows = read_documents(tmp_path / "tokens.npy", tiny_tokenizer)
        assert [row.tokens for row in rows] == np.atleast_2d(tokens).tolist()
    np.save(tmp_path / "tokens.npy", np.zeros(3))
    with pytest.raises(MixbitError, match="integers"):
        read_documents(tmp_path / "tokens.npy", tiny_tokenizer)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2 is not valid JSON"),
        ([1, 2], "neither"),
        ({"prompt": "x"}, "neither"),
        ({"messages": "x"}, "neither"),
        ({"text": "x", "kind": 3}, "kind"),
        ({"tokens": [1, 2.5]}, "integers"),
        ({"messages": [], "expected": {"name": 1, "arguments": {}}}, "line 2 is not a tool-call"),
        ({"messages": [], "tools": [], "expected": {"name": 1, "arguments": {}}}, "expected must"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "chat template refuses"),
    ],
)
def test_lines_that_are_no_document(
    tmp_path: Path, tiny_tokenizer: Any, line: object, said: str
) -> None:
    with pytest.raises(MixbitError, match=said):
        read_documents(write(tmp_path, {"text": "good"}, line), tiny_tokenizer)


def test_missing_empty_and_binary_files(tmp_path: Path, tiny_tokenizer: Any) -> None:
    with pytest.raises(MixbitError, match="Cannot read"):
        read_documents(tmp_path / "none.jsonl", tiny_tokenizer)
    with pytest.raises(MixbitError, match="no documents"):
        read_documents(write(tmp_path, "", " "), tiny_tokenizer)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MixbitError, match="UTF-8"):
        read_documents(binary, tiny_tokenizer)
