"""Write transformers' logits, the golden files under ``tests/data`` that ``make test`` reads.

Needs torch, transformers and the development environment:

    python tools/make_goldens.py

Every file is checked against stock mlx-lm before it is written, so that a golden file on which
the two references disagree never gets in. Made with torch 2.13.0 and transformers 5.24.0.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm import load
from transformers import AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from goldens import (
    DOCUMENTS,
    FOLDER,
    RANDOM_CASES,
    TOLERANCE,
    tiny_file,
    tiny_reference,
    transformers_logits,
)
from mixbit.data import tiny_model


def check(folder: Path, golden: dict[str, np.ndarray]) -> float:
    """Largest difference to stock mlx-lm in fp32; ends the run if it is out of tolerance."""
    model, _ = load(str(folder))
    model.update(tree_map(lambda array: array.astype(mx.float32), model.parameters()))
    logits = np.array(model(mx.array(golden["tokens"])[None])[0])
    kept = logits[golden["positions"]] if "positions" in golden else logits
    worst = float(np.abs(kept - golden["logits"]).max())
    if not worst < TOLERANCE:
        raise SystemExit(f"transformers and mlx-lm differ by {worst:.2g} on {folder}")
    return worst


def write(file: Path, folder: Path, golden: dict[str, np.ndarray]) -> None:
    """Check one golden file's arrays and write them."""
    worst = check(folder, golden)
    np.savez_compressed(file, **golden)
    print(f"{file.name}: {file.stat().st_size} bytes, mlx-lm within {worst:.1e}")


def main() -> None:
    """Command line entry."""
    mx.set_default_device(mx.cpu)
    FOLDER.mkdir(exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model())
    for index in range(DOCUMENTS):
        write(tiny_file(index), tiny_model(), tiny_reference(index, tokenizer))
    for case in RANDOM_CASES:
        with tempfile.TemporaryDirectory() as scratch:
            folder = case.save(Path(scratch) / case.name)
            tokens = case.tokens()
            golden = {"tokens": tokens, "logits": transformers_logits(folder, tokens)}
            write(case.file, folder, golden)


if __name__ == "__main__":
    main()
