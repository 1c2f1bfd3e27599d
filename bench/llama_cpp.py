"""mixbit beside llama.cpp on the same shapes, one thread each, by CPU time.

    python bench/make_model.py 0.8b work/0.8b
    mixbit quantize --model work/0.8b --recipe uniform --q-bits 4 --mlx-path work/0.8b-4
    python convert_hf_to_gguf.py work/0.8b --outfile bf16.gguf      # llama.cpp's own tools
    llama-quantize bf16.gguf q4_0.gguf Q4_0
    python bench/llama_cpp.py --llama-bench build/bin/llama-bench \
        --pair work/0.8b-4 q4_0.gguf [--pair ...]

Each figure is the CPU time of a process with many tokens less that of one with few, so that
starting and loading cancel. The two engines take turns; medians of the trials. On a machine that
others use too, CPU time still holds what they take of caches and bandwidth.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

# Tokens of the short and of the long run.
DECODE = (8, 72)
PREFILL = (32, 544)

GENERATE = """
import sys
import mlx.core as mx
import mixbit
from mixbit.integration import body_and_head

model, _ = mixbit.load(sys.argv[1], activation_bits=int(sys.argv[2]))
prompt, steps = int(sys.argv[3]), int(sys.argv[4])
body, _ = body_and_head(model)
cache = model.make_cache()
mx.eval(body(mx.arange(prompt)[None], cache=cache))
token = mx.array([[1]])
for _ in range(steps):
    token = mx.argmax(model(token, cache=cache)[:, -1], axis=-1, keepdims=True)
    mx.eval(token)
"""


def cpu_seconds(command: list[str]) -> float:
    """CPU time of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command,
        check=True,
        capture_output=True,
        env=os.environ | {"MIXBIT_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def speed(command: Callable[[int], list[str]], tokens: tuple[int, int]) -> float:
    """Tokens per second of CPU time."""
    few, many = tokens
    return (many - few) / (cpu_seconds(command(many)) - cpu_seconds(command(few)))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-bench", type=Path, required=True)
    parser.add_argument("--pair", nargs=2, metavar=("MLX", "GGUF"), action="append", required=True)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--activation-bits", type=int, choices=(8, 16), default=16)
    args = parser.parse_args()
    print("| mixbit | llama.cpp | decode, tok/s | ratio | prefill, tok/s | ratio |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for model, gguf in args.pair:
        llama = [str(args.llama_bench), "-m", gguf, "-t", "1", "-r", "1", "--no-warmup"]
        ours = [sys.executable, "-c", GENERATE, model, str(args.activation_bits)]
        commands: dict[str, tuple[Callable[[int], list[str]], Callable[[int], list[str]]]] = {
            "decode": (
                lambda n, ours=ours: [*ours, "16", str(n)],
                lambda n, llama=llama: [*llama, "-p", "0", "-n", str(n)],
            ),
            "prefill": (
                lambda n, ours=ours: [*ours, str(n), "1"],
                lambda n, llama=llama: [*llama, "-p", str(n), "-n", "0"],
            ),
        }
        cells = [Path(model).name, Path(gguf).name]
        for kind, tokens in (("decode", DECODE), ("prefill", PREFILL)):
            sides: tuple[list[float], list[float]] = ([], [])
            for _ in range(args.trials):
                for side, command in zip(sides, commands[kind], strict=True):
                    side.append(speed(command, tokens))
            mixbit, other = map(statistics.median, sides)
            cells += [f"{mixbit:.1f} / {other:.1f}", f"{mixbit / other:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
