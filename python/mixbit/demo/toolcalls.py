"""Tool calls of a model against the expected ones, over prompts with exactly one right answer."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.tokenizer_utils import TokenizerWrapper

from mixbit.errors import MixbitError
from mixbit.integration import body_and_head

_CALL = re.compile(r"<tool_call>\n<function=([^>\n]+)>\n(.*?)</function>\n</tool_call>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", re.DOTALL)


@dataclass(frozen=True)
class ToolCase:
    """A conversation that ends with a user's request, and the one call that answers it.

    ``expected`` holds ``name`` and ``arguments``, the latter as JSON values.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    expected: Mapping[str, Any]


@dataclass(frozen=True)
class ToolCall:
    """A call as a model wrote it: the arguments are the texts between the parameter tags."""

    name: str
    arguments: Mapping[str, str]


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


def score_one_pass(
    model: Module, tokenizer: TokenizerWrapper, cases: Sequence[ToolCase]
) -> list[bool]:
    """Whether greedy decoding would write exactly the expected answer, for each case in order.

    It would if and only if the expected token is the arg max at every position of the answer,
    which one forward pass over prompt and answer shows. One case at a time: on a CPU prompts of a
    few hundred tokens are quicker alone than in a padded batch.
    """
    body, head = body_and_head(model)
    right = []
    for case in cases:
        prompt, answer = encode(case, tokenizer)
        hidden = body(mx.array([prompt + answer]))
        # Each position predicts the token after it; the last one has none to predict.
        picked = mx.argmax(head(hidden[:, len(prompt) - 1 : -1]), axis=-1)
        right.append(picked[0].tolist() == answer)
    return right


def parse_call(text: str) -> ToolCall | None:
    """The first complete tool call in ``text``, or None."""
    match = _CALL.search(text)
    return None if match is None else ToolCall(match[1], dict(_PARAMETER.findall(match[2])))


def same_call(call: ToolCall | None, expected: Mapping[str, Any]) -> bool:
    """Whether the name, the argument names and the argument texts are the expected ones."""
    wanted = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in expected["arguments"].items()
    }
    return call is not None and call.name == expected["name"] and call.arguments == wanted


def _case(line: str, place: str) -> ToolCase:
    try:
        entry = json.loads(line)
        expected = entry["expected"]
        case = ToolCase(entry["messages"], entry["tools"], expected)
        well_formed = isinstance(expected["name"], str) and isinstance(expected["arguments"], dict)
    except (ValueError, TypeError, KeyError) as error:
        raise MixbitError(f"{place} is not a tool-call prompt ({error!r}).") from error
    if not well_formed:
        raise MixbitError(f"{place}: expected must hold a name and an object of arguments.")
    return case
