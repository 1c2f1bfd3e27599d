"""Mixed-bit quantisation, fast inference and exact KLD for hybrid models on MLX.

>>> import mixbit
>>> model, tokenizer = mixbit.load("path/or/hub-id")        # mlx_lm.load with fast layers
>>> mixbit.quantize("source", "out", plan="unsloth-2026-03@4")
>>> result = mixbit.kld.measure("out", "source", "documents.jsonl")

Names are imported on first use, so that ``import mixbit`` stays light.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixbit import kld, nn, ops, search
    from mixbit.errors import MixbitError
    from mixbit.integration.accelerate import accelerate
    from mixbit.integration.load import load
    from mixbit.plan import Plan
    from mixbit.quantization import quantize

__version__ = importlib.metadata.version("mixbit")

_HOMES = {
    "MixbitError": "mixbit.errors",
    "Plan": "mixbit.plan",
    "accelerate": "mixbit.integration",
    "load": "mixbit.integration",
    "quantize": "mixbit.quantization",
}
_MODULES = ("kld", "nn", "ops", "search")

__all__ = [
    "MixbitError",
    "Plan",
    "__version__",
    "accelerate",
    "kld",
    "load",
    "nn",
    "ops",
    "quantize",
    "search",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"mixbit.{name}")
    else:
        raise AttributeError(f"module 'mixbit' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
