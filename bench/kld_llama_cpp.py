"""`mixbit kld measure --llama-cpp` beside llama-perplexity, over the same weights and tokens.

    python convert_hf_to_gguf.py MODEL --no-mtp --outtype bf16 --outfile bf16.gguf   # llama.cpp's
    python bench/kld_llama_cpp.py MODEL bf16.gguf

The candidate is the model with its down projections scaled by 0.8 and rounded to bf16, the same
bits in a checkpoint and in a GGUF file. llama-perplexity must be on the path. mixbit runs the
weights in fp32; llama.cpp rounds what meets weights in bf16 to bf16 itself, so the two cannot agree
in every digit.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
from gguf import GGUFReader

import mixbit
from mixbit.kld.llama_cpp import llama_cpp_summary

WORDS = ("tool", "list", "the", "model", "reads", "calls", "right", "argument", "of", "and")
PRINTED = {
    "kld": r"Mean\s+KLD:\s+(\S+)",
    "kld_error": r"Mean\s+KLD:.*±\s+(\S+)",
    "kld_median": r"Median\s+KLD:\s+(\S+)",
    "kld_p99": r"99\.0%\s+KLD:\s+(\S+)",
    "kld_max": r"Maximum KLD:\s+(\S+)",
    "ppl": r"Mean PPL\(Q\)\s+:\s+(\S+)",
    "ppl_base": r"Mean PPL\(base\)\s+:\s+(\S+)",
    "log_ppl_ratio": r"Mean ln\(PPL\(Q\)/PPL\(base\)\)\s+:\s+(\S+)",
    "delta_p_rms": r"RMS Δp\s+:\s+(\S+)",  # per cent
    "same_top": r"Same top p:\s+(\S+)",
}


def main() -> None:
    """Print a row for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--window", type=int, default=128)
    args = parser.parse_args()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        text = folder / "text.txt"
        lines = [" ".join(rng.choices(WORDS, k=200)) for _ in range(8)]
        text.write_text("\n".join(lines), encoding="utf-8")
        perturb(args.model, args.gguf, folder)
        theirs = llama_perplexity(args.gguf, folder, text, args.window)
        result = mixbit.kld.measure(
            folder / "candidate", folder / "reference", text, window=args.window, llama_cpp=True
        )
    ours = llama_cpp_summary(result)
    print("| figure | llama-perplexity | mixbit |")
    print("| --- | ---: | ---: |")
    for name, value in theirs.items():
        scale = 100 if name in ("delta_p_rms", "same_top") else 1
        print(f"| {name} | {value:.6g} | {scale * ours[name]:.6g} |")


def perturb(model: Path, gguf: Path, folder: Path) -> None:
    """Write reference and candidate as fp32 checkpoints, and the candidate as GGUF in bf16."""
    other = folder / "candidate.gguf"
    shutil.copyfile(gguf, other)
    tensors = {tensor.name: tensor for tensor in GGUFReader(other, "r+").tensors}
    weights = mx.load(str(model / "model.safetensors"))
    assert isinstance(weights, dict)
    save(model, weights, folder / "reference")
    for name, weight in weights.items():
        found = re.search(r"layers\.(\d+)\.mlp\.down_proj\.weight", name)
        if found is None:
            continue
        scaled = (weight.astype(mx.float32) * 0.8).astype(mx.bfloat16)
        stored = tensors[f"blk.{found[1]}.ffn_down.weight"].data.view(np.uint16)
        assert np.array_equal(stored, np.asarray(weight.view(mx.uint16)))
        stored[:] = np.asarray(scaled.view(mx.uint16))
        weights[name] = scaled
    save(model, weights, folder / "candidate")


def save(model: Path, weights: dict[str, mx.array], folder: Path) -> None:
    """Write a checkpoint whose numbers are the same in fp32."""
    shutil.copytree(model, folder)
    wide = {name: weight.astype(mx.float32) for name, weight in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), wide, {"format": "mlx"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["dtype"] = "float32"
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def llama_perplexity(gguf: Path, folder: Path, text: Path, window: int) -> dict[str, float]:
    """Its figures, by mixbit's names."""
    common = ["llama-perplexity", "-c", str(window), "--kl-divergence-base", str(folder / "base")]
    subprocess.run([*common, "-m", str(gguf), "-f", str(text)], check=True, capture_output=True)
    done = subprocess.run(
        [*common, "-m", str(folder / "candidate.gguf"), "--kl-divergence"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return {
        name: float(re.findall(form, done.stdout + done.stderr)[-1].rstrip("%"))
        for name, form in PRINTED.items()
    }


if __name__ == "__main__":
    main()
