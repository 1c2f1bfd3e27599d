"""Speed of a KLD measurement against plain prefill of the same model over the same tokens.

    python bench/kld_speed.py MODEL [--window 512] [--windows 8] [--trials 3]

The reference is a cache, so that a measurement runs one model. In turns, in one process:

- prefill: the model over all windows, without logits (what filling a prompt cache costs);
- forward: the model over all windows with the logits of every token, which a score needs at least;
- kld: the measurement, second half of each window scored.

Tokens a second of process CPU time and of wall time, medians of the trials, and ratios.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np

import mixbit
from mixbit.integration import body_and_head


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--trials", type=int, default=3)
    args = parser.parse_args()
    model, tokenizer = mixbit.load(args.model)
    vocab_size = len(tokenizer.get_vocab())
    tokens = np.random.default_rng(0).integers(vocab_size, size=(args.windows, args.window))
    body, _ = body_and_head(model)
    x = mx.array(tokens.astype(np.int32))
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "reference"
        made = mixbit.kld.make_reference(
            args.model, tokens.tolist(), cache, window=args.window, batch_size=args.windows
        )
        total = sum(entry["bytes"] for entry in made.manifest["files"].values())
        head = made.manifest["files"]["head.safetensors"]["bytes"]
        jobs: dict[str, Callable[[], object]] = {
            "prefill": lambda: mx.eval(body(x)),
            "forward": lambda: mx.eval(model(x)),
            "kld": lambda: mixbit.kld.measure(model, cache, batch_size=args.windows),
        }
        speeds = alternate(jobs, x.size, args.trials)
        scored = made.stream.scored
    print(f"{x.size} tokens, {scored} scored; cache {(total - head) / scored:.0f} bytes a token")
    for clock in ("cpu", "wall"):
        medians = {name: statistics.median(found[clock]) for name, found in speeds.items()}
        shown = ", ".join(f"{name} {value:.1f}" for name, value in medians.items())
        ratios = ", ".join(
            f"kld/{name} {medians['kld'] / medians[name]:.3f}" for name in ("prefill", "forward")
        )
        print(f"tokens a second of {clock} time: {shown}; {ratios}")


def alternate(
    jobs: dict[str, Callable[[], object]], tokens: int, trials: int
) -> dict[str, dict[str, list[float]]]:
    """Tokens a second of each job, the order reversed every trial."""
    speeds: dict[str, dict[str, list[float]]] = {name: {"cpu": [], "wall": []} for name in jobs}
    order = list(jobs)
    for _ in range(trials):
        for name in order:
            wall, cpu = time.perf_counter(), time.process_time()
            jobs[name]()
            speeds[name]["cpu"].append(tokens / (time.process_time() - cpu))
            speeds[name]["wall"].append(tokens / (time.perf_counter() - wall))
        order.reverse()
    return speeds


if __name__ == "__main__":
    main()
