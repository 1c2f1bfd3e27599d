"""Render the chat template without loading a tokenizer."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment


def _raise(message: str) -> None:
    raise ValueError(message)


@lru_cache(maxsize=4)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = _raise
    return environment.from_string(template)


def render(
    template: str,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    **kwargs: Any,
) -> str:
    """Render like ``tokenizer.apply_chat_template(..., tokenize=False)``."""
    return _compiled(template).render(messages=messages, tools=tools, **kwargs)


def document_text(template: str, document: dict[str, Any]) -> str:
    """The text of a document that holds either ``text`` or ``messages``."""
    if "text" in document:
        return document["text"]
    return render(template, document["messages"], document.get("tools"))
