"""Whether widths tried of one tensor gain from running as one batch.

    python bench/search_batches.py MODEL [--tokens N ...] [--widths 6] [--trials 5]

What the stages after a tensor take, those of the later half of the layers, for ``--widths`` batches
of so many tokens one after the other, as a sweep runs them, and for all of them as one batch; in
turns, median CPU seconds.
"""

from __future__ import annotations

import argparse
import statistics
import time

import mlx.core as mx

from mixbit.checkpoint import describe
from mixbit.integration import load, resolve
from mixbit.search.stages import Stages, States

WINDOW = 128


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 128, 512, 2048])
    parser.add_argument("--widths", type=int, default=6)
    parser.add_argument("--trials", type=int, default=5)
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    folder = resolve(args.model)
    model, _ = load(folder)
    stages = Stages(model, describe(folder))
    begin, end = 1 + (stages.head - 1) // 8 * 4, stages.head + 1

    def cpu_seconds(*batches: States) -> float:
        begun = time.process_time()
        for states in batches:
            mx.eval(stages.run(states, begin, end))
        return time.process_time() - begun

    print("| tokens of a batch | one by one | as one | ratio |\n| ---: | ---: | ---: | ---: |")
    for tokens in args.tokens:
        window = min(tokens, WINDOW)
        shape = (args.widths, tokens // window, window)
        batches = mx.random.randint(0, 256, shape, key=mx.random.key(0))
        parts = [stages.run((batch,), 0, begin) for batch in batches]
        mx.eval(parts)
        whole = (mx.concatenate([states for (states,) in parts]),)
        cpu_seconds(whole)
        apart, together = [], []
        for _ in range(args.trials):
            apart.append(cpu_seconds(*parts))
            together.append(cpu_seconds(whole))
        one, other = statistics.median(apart), statistics.median(together)
        print(f"| {tokens} | {one:.3f} s | {other:.3f} s | {other / one:.2f} |", flush=True)


if __name__ == "__main__":
    main()
