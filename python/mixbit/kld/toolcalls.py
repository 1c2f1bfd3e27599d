"""Prompts with exactly one right answer, a tool call."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from mixbit.errors import MixbitError


@dataclass(frozen=True)
class ToolCase:
    """A conversation that ends with a user's request, and the one call that answers it.

    ``expected`` holds ``name`` and ``arguments``, the latter as JSON values.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    expected: Mapping[str, Any]


def load_cases(path: str | Path) -> list[ToolCase]:
    """Read a JSONL file whose lines hold ``messages``, ``tools`` and ``expected``.

    Raises:
        MixbitError: if the file cannot be read or a line, which is named, is not such an object.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MixbitError(f"The tool-call prompts in {path} cannot be read: {error}.") from error
    return [_case(line, f"{path}:{row}") for row, line in enumerate(text.splitlines(), start=1)]


def case_of(entry: Mapping[str, Any], place: str) -> ToolCase:
    """The prompt that a line of data is.

    Raises:
        MixbitError: if it is none; ``place`` says where it stands.
    """
    try:
        expected = entry["expected"]
        case = ToolCase(entry["messages"], entry["tools"], expected)
        well_formed = isinstance(expected["name"], str) and isinstance(expected["arguments"], dict)
    except (TypeError, KeyError) as error:
        raise MixbitError(f"{place} is not a tool-call prompt ({error!r}).") from error
    if not well_formed:
        raise MixbitError(f"{place}: expected must hold a name and an object of arguments.")
    return case


def encode(case: ToolCase, tokenizer: TokenizerWrapper) -> tuple[list[int], list[int]]:
    """Token ids of the prompt (with thinking off) and of the expected answer to its end token.

    Raises:
        MixbitError: if the chat template does not continue the prompt with the answer.
    """
    call = {"type": "function", "function": dict(case.expected)}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    shown = {"tools": case.tools, "tokenize": False, "enable_thinking": False}
    prompt = tokenizer.apply_chat_template(list(case.messages), add_generation_prompt=True, **shown)
    whole = tokenizer.apply_chat_template([*case.messages, answer], **shown)
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
    # The template ends a turn with a line break that the model itself never writes.
    whole_ids = tokenizer.encode(whole.removesuffix("\n"), add_special_tokens=False)
    if whole_ids[: len(prompt_ids)] != prompt_ids:
        raise MixbitError(
            "The chat template does not continue the generation prompt with the answer, so tool "
            "calls cannot be scored in one pass."
        )
    return prompt_ids, whole_ids[len(prompt_ids) :]


def _case(line: str, place: str) -> ToolCase:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise MixbitError(f"{place} is not a tool-call prompt ({error!r}).") from error
    return case_of(entry, place)
