"""What a result is of: checksums and versions, by which another run knows it again."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

from mixbit.checkpoint import open_checkpoint
from mixbit.kld.files import sha256


def tokenizer_hash(tokenizer: Any) -> str | None:
    """Checksum of a tokenizer's vocabulary; ``None`` without one."""
    if tokenizer is None:
        return None
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(vocabulary.encode()).hexdigest()


def model_hash(folder: Path) -> str:
    """Checksum of a model folder's config and weights."""
    checkpoint = open_checkpoint(folder)
    digest = hashlib.sha256(json.dumps(checkpoint.config, sort_keys=True).encode())
    for file in checkpoint.files:
        digest.update(f"{file.name} {sha256(file)}\n".encode())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Of what the numbers come from."""
    return {name: importlib.metadata.version(name) for name in ("mixbit", "mlx", "mlx-lm")}
