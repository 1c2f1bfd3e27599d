"""Tool calls of a model against the expected ones, over prompts with exactly one right answer."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.tokenizer_utils import TokenizerWrapper

from mixbit.integration import body_and_head
from mixbit.kld.toolcalls import ToolCase, encode, load_cases

__all__ = [
    "ToolCall",
    "ToolCase",
    "encode",
    "load_cases",
    "parse_call",
    "same_call",
    "score_one_pass",
]

_CALL = re.compile(r"<tool_call>\n<function=([^>\n]+)>\n(.*?)</function>\n</tool_call>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", re.DOTALL)


@dataclass(frozen=True)
class ToolCall:
    """A call as a model wrote it: the arguments are the texts between the parameter tags."""

    name: str
    arguments: Mapping[str, str]


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
