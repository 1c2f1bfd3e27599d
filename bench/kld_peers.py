"""mixbit kld beside mlx-kld, mlx-quant-fidelity and llama-perplexity on one model: time and bytes.

    pip install mlx-kld datasets mlx-quant-fidelity        # what is not installed is left out
    python bench/kld_peers.py REFERENCE CANDIDATE [--gguf-reference F --gguf-candidate F]

All read 512 tokens of the same text, in windows of 128 of which the second half is scored. Seconds
are CPU time of whole processes, start included. mlx-kld keeps the reference's 512 likeliest tokens
here (its default of 32768 is more than a small vocabulary has). mlx-quant-fidelity has one window
of 512, all scored, runs both models at once and keeps nothing; its corpus, which it would fetch
from the hub, is replaced. Both compute in the model's dtype and run MLX's own layers.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WINDOW, WINDOWS = 128, 4
WORDS = ("tool", "list", "the", "model", "reads", "calls", "right", "argument", "of", "and")


def main() -> None:
    """Run what is there and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reference")
    parser.add_argument("candidate")
    parser.add_argument("--gguf-reference")
    parser.add_argument("--gguf-candidate")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rng = random.Random(0)
        lines = [" ".join(rng.choices(WORDS, k=200)) for _ in range(40)]
        rows = [mixbit(args.reference, args.candidate, lines, folder)]
        if importlib.util.find_spec("mlx_kld") is not None:
            rows.append(mlx_kld(args.reference, args.candidate, lines, folder))
        if importlib.util.find_spec("mlx_quant_fidelity") is not None:
            rows.append(mlx_quant_fidelity(args.reference, args.candidate, lines, folder))
        if shutil.which("llama-perplexity") and args.gguf_reference and args.gguf_candidate:
            rows.append(llama_cpp(args.gguf_reference, args.gguf_candidate, lines, folder))
    print("| tool | reference, CPU s | candidate, CPU s | bytes a scored token | mean KLD |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def mixbit(reference: str, candidate: str, lines: list[str], folder: Path) -> tuple[str, ...]:
    """The reference cache, then the measurement."""
    data, cache, out = folder / "text.txt", folder / "cache", folder / "out.json"
    data.write_text("\n".join(lines), encoding="utf-8")
    # Of the text, as many windows as the others take.
    from mlx_lm.tokenizer_utils import load

    tokens = load(Path(reference)).encode(data.read_text(encoding="utf-8"))[: WINDOW * WINDOWS]
    (folder / "tokens.jsonl").write_text(json.dumps({"tokens": tokens}), encoding="utf-8")
    command = [sys.executable, "-m", "mixbit", "kld"]
    first = seconds([*command, "reference", reference, "--data", str(folder / "tokens.jsonl"),
                     "--window", str(WINDOW), "--out", str(cache)])  # fmt: skip
    second = seconds([*command, "measure", candidate, "--reference", str(cache),
                      "--json", str(out)])  # fmt: skip
    found = json.loads(out.read_text(encoding="utf-8"))
    hidden = sum(f.stat().st_size for f in cache.iterdir() if not f.name.startswith("head"))
    return row("mixbit", first, second, hidden / found["tokens"], found["mean"])


def mlx_kld(reference: str, candidate: str, lines: list[str], folder: Path) -> tuple[str, ...]:
    """One process makes the cache and scores; the reference against itself shows the first part."""
    corpus, cache, out = folder / "corpus", folder / "top-k", folder / "mlx-kld.json"
    corpus.mkdir()
    records = "\n".join(json.dumps({"text": line}) for line in lines)
    (corpus / "train.jsonl").write_text(records, encoding="utf-8")
    command = [sys.executable, "-m", "mlx_kld", "score", reference, candidate,
               "--dataset", str(corpus), "--num-samples", str(WINDOWS),
               "--max-seq-len", str(WINDOW), "--top-k", "512", "--cache-dir", str(cache),
               "--out-dir", str(folder / "results"), "--json", str(out)]  # fmt: skip
    both = seconds(command)
    second = seconds(command)  # the cache is there now
    nbytes = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    mean = find(json.loads(out.read_text(encoding="utf-8")), "mean")
    return row("mlx-kld, top 512", both - second, second, nbytes / (WINDOWS * WINDOW / 2), mean)


FIDELITY = """
import sys
import huggingface_hub
corpus = sys.argv.pop(1)
huggingface_hub.hf_hub_download = lambda *arguments, **options: corpus
from mlx_quant_fidelity.cli import main
sys.exit(main())
"""


def mlx_quant_fidelity(
    reference: str, candidate: str, lines: list[str], folder: Path
) -> tuple[str, ...]:
    """Both models over one chunk."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    corpus, out = folder / "corpus.parquet", folder / "fidelity.json"
    pq.write_table(pa.table({"text": lines}), corpus)
    both = seconds([sys.executable, "-c", FIDELITY, str(corpus), "weights", candidate,
                    "--reference", reference, "--max-chunks", "1", "--format", "json"],
                   out)  # fmt: skip
    mean = find(json.loads(out.read_text(encoding="utf-8")), "mean")
    return row("mlx-quant-fidelity", None, both, 0, mean)


def llama_cpp(reference: str, candidate: str, lines: list[str], folder: Path) -> tuple[str, ...]:
    """llama-perplexity with a base file."""
    base, text = folder / "base", folder / "text.txt"
    text.write_text("\n".join(lines), encoding="utf-8")
    common = ["llama-perplexity", "-c", str(WINDOW), "--chunks", str(WINDOWS),
              "--kl-divergence-base", str(base)]  # fmt: skip
    first = seconds([*common, "-m", reference, "-f", str(text)])
    out = folder / "llama.txt"
    second = seconds([*common, "-m", candidate, "--kl-divergence"], out)
    mean = re.search(r"Mean\s+KLD:\s+([-\d.]+)", out.read_text(encoding="utf-8"))
    scored = WINDOWS * (WINDOW // 2 - 1)
    return row(
        "llama-perplexity", first, second, base.stat().st_size / scored,
        float(mean[1]) if mean else None,
    )  # fmt: skip


def seconds(command: list[str], output: Path = Path(os.devnull)) -> float:
    """CPU seconds of a process and its children; what it prints goes to ``output``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with output.open("wb") as file:
        subprocess.run(command, check=True, stdout=file)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def row(
    name: str, first: float | None, second: float, nbytes: float, mean: float | None
) -> tuple[str, ...]:
    """A line of the table."""
    made = "" if first is None else f"{first:.1f}"
    shown = "" if mean is None else f"{mean:.5f}"
    return name, made, f"{second:.1f}", f"{nbytes:.0f}", shown


def find(document: Any, key: str) -> float | None:
    """The first number under a key, wherever it stands."""
    if isinstance(document, dict):
        if isinstance(document.get(key), int | float):
            return float(document[key])
        found = (find(value, key) for value in document.values())
        return next((value for value in found if value is not None), None)
    return None


if __name__ == "__main__":
    main()
