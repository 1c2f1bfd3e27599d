"""Whole models beside stock mlx-lm by CPU time: as it is, and with float32 activations.

MIXBIT_NUM_THREADS=1 python bench/stock_cpu.py MODEL [MODEL ...] -p 16 -g 3 -n 1

Stock MLX's Linux CPU backend accumulates 16-bit products in scalar code; in float32 it
is faster for packed weights, the harder reference. All take turns in one process.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

import mixbit


def models(folder: str) -> Iterator[tuple[str, nn.Module]]:
    """Mixbit's model with activations of 16 and of 8 bits, and both of stock mlx-lm's."""
    yield "mixbit", mixbit.load(folder)[0]
    yield "mixbit, 8 bits", mixbit.load(folder, activation_bits=8)[0]
    yield "stock", mlx_lm.load(folder)[0]
    stock = mlx_lm.load(folder)[0]
    stock.set_dtype(mx.float32)
    yield "stock, float32", stock


def speeds(model: nn.Module, prompt: mx.array, tokens: int) -> tuple[float, float]:
    """Prompt and generated tokens a second of CPU time."""
    cache = make_prompt_cache(model)
    begin = time.process_time()
    model(prompt[None], cache=cache)
    mx.eval([layer.state for layer in cache])  # as mlx-lm does: a prompt needs no logits
    first = time.process_time()
    token = mx.array([[1]])
    for _ in range(tokens):
        token = mx.argmax(model(token, cache=cache)[:, -1], axis=-1, keepdims=True)
        mx.eval(token)
    return prompt.size / (first - begin), tokens / (time.process_time() - first)


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="+")
    parser.add_argument("--prompt-tokens", "-p", type=int, default=16)
    parser.add_argument("--generation-tokens", "-g", type=int, default=3)
    parser.add_argument("--num-trials", "-n", type=int, default=1)
    args = parser.parse_args()
    prompt = mx.array(np.random.default_rng(0).integers(1000, size=args.prompt_tokens))
    for folder in args.model:
        loaded = dict(models(folder))
        samples = defaultdict(list)
        for model in loaded.values():
            speeds(model, prompt[:1], 1)
        for _ in range(args.num_trials):
            for name, model in loaded.items():
                samples[name].append(speeds(model, prompt, args.generation_tokens))
        for name, taken in samples.items():
            prefill, decode = (statistics.median(column) for column in zip(*taken, strict=True))
            print(f"| {folder} | {name} | {prefill:.3f} | {decode:.3f} |", flush=True)


if __name__ == "__main__":
    main()
