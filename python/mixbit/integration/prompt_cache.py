"""Prompt cache files, which ``mlx_lm.cache_prompt`` writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from mlx_lm.models import cache

from mixbit.errors import MixbitError

__all__ = ["PromptCache", "read_prompt_cache"]


@dataclass(frozen=True)
class PromptCache:
    """A prompt that was processed before.

    Attributes:
        layers: a cache for every layer.
        model: what ``--model`` was given.
        tokenizer_config: the end token, if it is another than the tokenizer's own.
    """

    layers: list[Any]
    model: str
    tokenizer_config: dict[str, str]

    def check(self, model: Any) -> None:
        """See that the layers are those of ``model``.

        Raises:
            MixbitError: if they are not.
        """
        recurrent = [isinstance(layer, cache.ArraysCache) for layer in self.layers]
        wanted = [isinstance(c, cache.ArraysCache) for c in cache.make_prompt_cache(model)]
        if recurrent != wanted:
            raise MixbitError(
                f"The prompt cache has {len(recurrent)} layers, {sum(recurrent)} of them recurrent,"
                f" and the model {len(wanted)}, {sum(wanted)} recurrent; it was made with another."
            )


def read_prompt_cache(file: str) -> PromptCache:
    """Read a file.

    Raises:
        MixbitError: if it cannot be read, or is no prompt cache.
    """
    try:
        layers, metadata = cache.load_prompt_cache(file, return_metadata=True)
        given = json.loads(metadata["tokenizer_config"])
        kept = {name: str(given[name]) for name in ("eos_token",) if name in given}
        return PromptCache(layers, metadata["model"], kept)
    except (OSError, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise MixbitError(
            f"{file} cannot be read as a prompt cache; make one with mlx_lm.cache_prompt."
        ) from error
