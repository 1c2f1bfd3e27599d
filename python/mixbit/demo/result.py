"""What the demo measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = "mixbit.demo/1"


@dataclass(frozen=True)
class DemoRow:
    """One checkpoint. Divergences in nats, speeds in generated tokens a second."""

    name: str
    bpw: float
    """Bits per weight over every tensor of the checkpoint, scales included."""
    bytes: int
    kld_mean: float | None
    kld_se: float | None
    kld_p999: float | None
    top1: float | None
    tool_calls_right: int
    tool_calls_total: int
    tokens_per_second: float
    stock_tokens_per_second: float


@dataclass(frozen=True)
class Answer:
    """A really generated answer to a tool-call prompt."""

    model: str
    request: str
    """The user's last message."""
    expected: dict[str, Any]
    """Name and arguments of the right call."""
    text: str
    right: bool
    """Whether the call in ``text`` is the expected one."""


@dataclass(frozen=True)
class DemoResult:
    """Everything the demo prints."""

    seconds: float
    kld_tokens: int
    kld_documents: int
    generated_tokens: int
    """Tokens that each timed run generated."""
    timed_runs: int
    """Timed runs of each checkpoint with each engine; the speeds are medians over them."""
    rows: tuple[DemoRow, ...]
    answer: Answer

    def to_json(self) -> dict[str, Any]:
        """JSON-ready values, with the schema's name."""
        return {"schema": SCHEMA, **asdict(self), "rows": [asdict(row) for row in self.rows]}
