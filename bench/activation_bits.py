"""What rounding activations to 8 bits loses: in a product, and in a model's predictions.

    python bench/activation_bits.py --pair work/tiny-4 python/mixbit/data/tiny-qwen3_5 [--pair ...]

Products against fp64, root mean square of the error relative to that of the result. Models one
token after the other, as they generate: ``mixbit kld`` measures none that rounds to 8 bits, and
reads more tokens at once than do.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mlx.core as mx
import numpy as np

import mixbit
from mixbit import ops
from mixbit.data import tiny_data
from mixbit.kld.documents import read_documents

ROWS = 20  # the most that a step may have: so many documents at a time
LENGTH = 160  # tokens of a document that are read


def product_error(x: np.ndarray, bits: int, group: int, activation_bits: int) -> float:
    """Of x [M, K], rounded to bf16, times a packed random matrix."""
    rounded = mx.array(x.astype(np.float32)).astype(mx.bfloat16)
    w = mx.random.normal((256, x.shape[-1]), key=mx.random.key(1))
    packed = mx.quantize(w, group, bits)
    weight = ops.Weight(*packed, None, group, bits, "affine", mx.float32, activation_bits)
    (y,) = ops.matmul(rounded, [weight])
    values = np.array(mx.dequantize(*packed, group, bits)).astype(np.float64)
    want = np.array(rounded.astype(mx.float32)).astype(np.float64) @ values.T
    return float(np.sqrt(((np.array(y) - want) ** 2).mean() / (want**2).mean()))


def products() -> None:
    """Print the errors of products, of 4 bits as of all others."""
    rng = np.random.default_rng(0)
    inputs = {
        "normal": rng.standard_normal((16, 4096)),
        "Student's t, 4 degrees of freedom": rng.standard_t(4, (16, 4096)),
    }
    print("| x | group | 16 bits | 8 bits |")
    print("| --- | ---: | ---: | ---: |")
    for name, x in inputs.items():
        for group in (32, 64, 128):
            errors = (f"{product_error(x, 4, group, bits):.1e}" for bits in (16, 8))
            print(f"| {name} | {group} | {' | '.join(errors)} |")


def log_probabilities(folder: str, activation_bits: int, tokens: np.ndarray) -> np.ndarray:
    """Predictions [T, B, vocabulary] for tokens [B, T], a step after the other."""
    model, _ = mixbit.load(folder, activation_bits=activation_bits)
    cache, steps = model.make_cache(), []
    for column in tokens.T:
        logits = model(mx.array(column)[:, None], cache=cache)[:, -1]
        steps.append(np.array(logits.astype(mx.float32)).astype(np.float64))
    z = np.stack(steps)
    z -= z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def divergences(pairs: list[list[str]]) -> None:
    """Print the divergences of models over the shipped held-out conversations."""
    _, tokenizer = mixbit.load(pairs[0][0])
    documents = read_documents(tiny_data("kld_eval"), tokenizer)[:ROWS]
    lengths = np.minimum([len(document.tokens) for document in documents], LENGTH)
    tokens = np.zeros((len(documents), LENGTH), dtype=np.int32)
    for row, document, length in zip(tokens, documents, lengths, strict=True):
        row[:length] = document.tokens[:length]
    real = np.arange(LENGTH)[:, None] < lengths
    print(f"\n{real.sum()} predictions\n")
    print("| model | KL(bf16, 16 bits) | KL(bf16, 8 bits) | KL(16 bits, 8 bits) | same top |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for packed, source in pairs:
        bf16, sixteen, eight = (
            log_probabilities(folder, bits, tokens)[real]
            for folder, bits in ((source, 16), (packed, 16), (packed, 8))
        )
        cells = [
            f"{(np.exp(p) * (p - q)).sum(-1).mean():.2e}"
            for p, q in ((bf16, sixteen), (bf16, eight), (sixteen, eight))
        ]
        same = (sixteen.argmax(-1) == eight.argmax(-1)).mean()
        print(f"| {Path(packed).name} | {' | '.join(cells)} | {100 * same:.2f} % |")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", nargs=2, metavar=("PACKED", "SOURCE"), action="append")
    arguments = parser.parse_args()
    mx.set_default_device(mx.cpu)
    products()
    if arguments.pair:
        divergences(arguments.pair)


if __name__ == "__main__":
    main()
