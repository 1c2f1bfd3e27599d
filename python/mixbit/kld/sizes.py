"""How much is worked on at a time."""

from __future__ import annotations

from dataclasses import dataclass

from mixbit.errors import MixbitError


@dataclass(frozen=True)
class Sizes:
    """No figure depends on these beyond a model's own rounding in 16 bits."""

    batch: int = 8
    """Windows that run together."""
    chunk: int = 512
    """Tokens of each that run at a time; the rest follows through the cache."""
    block: int = 128
    """Hidden states that meet the heads at a time."""

    def __post_init__(self) -> None:
        """Refuse sizes below one."""
        named = {"batch_size": self.batch, "chunk_size": self.chunk, "block_size": self.block}
        for name, value in named.items():
            if value < 1:
                raise MixbitError(f"{name} must be at least 1, not {value}.")
