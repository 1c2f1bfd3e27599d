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
from mlx_lm.models.gated_delta import gated_delta_ops
from transformers import AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from goldens import (
    DOCUMENTS,
    FOLDER,
    RANDOM_CASES,
    REGIMES,
    RULE_FILE,
    TOLERANCE,
    rule_inputs,
    tiny_file,
    tiny_reference,
    transformers_logits,
    transformers_rule,
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


def rule() -> dict[str, np.ndarray]:
    """The gated delta rule's y and state in every regime."""
    golden = {}
    for regime in REGIMES:
        inputs = rule_inputs(regime)
        y, state = golden[f"{regime}.y"], golden[f"{regime}.state"] = transformers_rule(inputs)
        stock = gated_delta_ops(*(mx.array(array) for array in inputs))
        for array, other in zip((y, state), stock, strict=True):
            if not np.abs(array - np.array(other)).max() < 1e-5 * np.abs(array).max():
                raise SystemExit(f"transformers and mlx-lm differ on the {regime} rule")
    return golden


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
    np.savez_compressed(RULE_FILE, **rule())


if __name__ == "__main__":
    main()
