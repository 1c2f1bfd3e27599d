"""Speed of a KLD measurement against plain prefill of the same model over the same tokens.

    python bench/kld_speed.py MODEL [--reference MODEL] [--window 512] [--windows 8] [--trials 3]

The reference (MODEL itself unless told) is a cache, so that a measurement runs one model. In turns,
in one process:

- prefill: the model fills a cache with all windows, without logits, as mlx-lm prefills a prompt;
- forward: the model over all windows with the logits of every token;
- kld: the measurement, second half of each window scored.

Tokens a second of process CPU time and of wall time, medians of the trials, and ratios. "By count"
is what kld / prefill would be if both heads' products over the scored half cost as much a
multiplication as the body's, and nothing else cost anything. Opening the cache (to check its sums
and read the reference's head) is done once, whatever the tokens, so its time is told apart.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import get_total_parameters

import mixbit
from mixbit.integration import body_and_head
from mixbit.kld.cache import ReferenceCache


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--reference")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--trials", type=int, default=3)
    args = parser.parse_args()
    model, tokenizer = mixbit.load(args.model)
    vocab_size = len(tokenizer.get_vocab())
    tokens = np.random.default_rng(0).integers(vocab_size, size=(args.windows, args.window))
    x = mx.array(tokens.astype(np.int32))
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "reference"
        made = mixbit.kld.make_reference(
            args.reference or args.model,
            tokens.tolist(),
            cache,
            window=args.window,
            batch_size=args.windows,
        )
        total = sum(entry["bytes"] for entry in made.manifest["files"].values())
        head = made.manifest["files"]["head.safetensors"]["bytes"]
        jobs: dict[str, Callable[[], object]] = {
            "prefill": lambda: prefill(model, x),
            "forward": lambda: mx.eval(model(x)),
            "opening": lambda: ReferenceCache(cache),
            "kld": lambda: mixbit.kld.measure(model, cache, batch_size=args.windows),
        }
        spent = alternate(jobs, args.trials)
        scored = made.stream.scored
    print(
        f"{x.size} tokens, {scored} scored; cache {(total - head) / scored:.0f} bytes a token; "
        f"kld/prefill by count {by_count(model, scored / x.size):.3f}"
    )
    for clock in ("cpu", "wall"):
        seconds = {name: statistics.median(found[clock]) for name, found in spent.items()}
        opening = seconds.pop("opening")
        seconds["kld once open"] = seconds["kld"] - opening
        speeds = {name: x.size / value for name, value in seconds.items()}
        shown = ", ".join(f"{name} {value:.1f}" for name, value in speeds.items())
        ratios = ", ".join(
            f"{one}/{other} {speeds[one] / speeds[other]:.3f}"
            for one in ("kld", "kld once open")
            for other in ("prefill", "forward")
        )
        print(f"tokens a second of {clock} time: {shown}; {ratios}; opening {opening:.2f} s")


def prefill(model: nn.Module, x: mx.array) -> None:
    """Fill a cache."""
    cache = make_prompt_cache(model)
    body, _ = body_and_head(model)
    mx.eval(body(x, cache=cache), [entry.state for entry in cache])


def by_count(model: nn.Module, scored: float) -> float:
    """Multiplications of the body over those of body and two heads, these for a share of tokens."""
    head = model.args.text_config["hidden_size"] * model.args.text_config["vocab_size"]
    tables = 1 if model.args.text_config["tie_word_embeddings"] else 2
    body = get_total_parameters(model) - tables * head
    return float(body / (body + 2 * scored * head))


def alternate(
    jobs: dict[str, Callable[[], object]], trials: int
) -> dict[str, dict[str, list[float]]]:
    """Seconds of each job, the order reversed every trial."""
    spent: dict[str, dict[str, list[float]]] = {name: {"cpu": [], "wall": []} for name in jobs}
    order = list(jobs)
    for _ in range(trials):
        for name in order:
            wall, cpu = time.perf_counter(), time.process_time()
            jobs[name]()
            spent[name]["cpu"].append(time.process_time() - cpu)
            spent[name]["wall"].append(time.perf_counter() - wall)
        order.reverse()
    return spent


if __name__ == "__main__":
    main()
