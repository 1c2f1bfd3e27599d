"""A model of two layers and documents for it, on which sweeps take seconds."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np

from mixbit.search import Sensitivity, sensitivity
from models import save_raw

SMALL = {"num_hidden_layers": 2, "full_attention_interval": 2}
LENGTHS = (33, 2, 47, 20, 64, 1, 29)


def save_small(folder: Path, model_type: str = "qwen3_5", **overrides: object) -> Path:
    """A random model of one layer of linear and one of full attention, bf16."""
    return save_raw(model_type, folder, dtype=mx.bfloat16, **SMALL, **overrides)


def documents(vocab_size: int = 256) -> list[list[int]]:
    """Token lists, some too short to predict anything."""
    rng = np.random.default_rng(4)
    return [rng.integers(vocab_size, size=length).tolist() for length in LENGTHS]


def sweep(model: Path, out: Path, **options: object) -> Sensitivity:
    """A sweep with few widths over two rounds."""
    chosen = {"widths": (2, 4), "window": 32, "batch_size": 3, "settle": 2, "round_documents": 3}
    return sensitivity(model, documents(), out, **(chosen | options))
