"""Tool calls of a model against the expected ones, over prompts with exactly one right answer."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.base import Module
from mlx_lm.tokenizer_utils import TokenizerWrapper

from mixbit.errors import MixbitError
from mixbit.integration import body_and_head

_BATCH_TOKENS = 8192

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

    Raises
    ------
    MixbitError
        If the file cannot be read or a line is not such an object; the message names the line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MixbitError(f"cannot read the tool-call prompts in {path}: {error}") from error
    return [_case(line, f"{path}:{row}") for row, line in enumerate(text.splitlines(), start=1)]


def encode(case: ToolCase, tokenizer: TokenizerWrapper) -> tuple[list[int], list[int]]:
    """Token ids of the prompt (with thinking off) and of the expected answer to its end token.

    Raises
    ------
    MixbitError
        If the chat template does not render the answer as a continuation of the prompt.
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
            "the chat template does not continue the generation prompt with the answer, so tool "
            "calls cannot be scored in one pass"
        )
    return prompt_ids, whole_ids[len(prompt_ids) :]


def score_one_pass(
    model: Module, tokenizer: TokenizerWrapper, cases: Sequence[ToolCase]
) -> list[bool]:
    """Whether greedy decoding would write exactly the expected answer, for each case in order.

    It would if and only if the expected token is the arg max at every position of the answer,
    which one forward pass over prompt and answer shows.
    """
    rows = [encode(case, tokenizer) for case in cases]
    right = [False] * len(rows)
    for batch in _batches([len(prompt) + len(answer) for prompt, answer in rows]):
        for index, hit in zip(batch, _score(model, [rows[i] for i in batch]), strict=True):
            right[index] = hit
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
        raise MixbitError(f"{place} is not a tool-call prompt: {error!r}") from error
    if not well_formed:
        raise MixbitError(f"{place}: expected must hold a name and an object of arguments")
    return case


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices in order of length, in groups whose padded size stays near ``_BATCH_TOKENS``."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[index] > _BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _score(model: Module, rows: Sequence[tuple[list[int], list[int]]]) -> list[bool]:
    body, head = body_and_head(model)
    longest = max(len(prompt) + len(answer) for prompt, answer in rows)
    # Padding on the right needs no mask: no layer lets a position see a later one.
    tokens = [[*p, *a, *[0] * (longest - len(p) - len(a))] for p, a in rows]
    hidden = body(mx.array(tokens, dtype=mx.int32))
    asked = [hidden[i, len(p) - 1 : len(p) + len(a) - 1] for i, (p, a) in enumerate(rows)]
    chosen = iter(np.array(mx.argmax(head(mx.concatenate(asked)), axis=-1)).tolist())
    return [list(islice(chosen, len(answer))) == answer for _, answer in rows]
