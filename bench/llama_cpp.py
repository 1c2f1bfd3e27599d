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

Command = Callable[[int], list[str]]
"""Of a number of tokens."""

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


def speed(command: Command, tokens: tuple[int, int]) -> float:
    """Tokens per second of CPU time."""
    few, many = tokens
    return (many - few) / (cpu_seconds(command(many)) - cpu_seconds(command(few)))


def medians(sides: list[Command], tokens: tuple[int, int], trials: int) -> list[float]:
    """Speed of each side, which take turns."""
    speeds: list[list[float]] = [[] for _ in sides]
    for _ in range(trials):
        for taken, command in zip(speeds, sides, strict=True):
            taken.append(speed(command, tokens))
    return [statistics.median(taken) for taken in speeds]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-bench", type=Path, required=True)
    parser.add_argument("--pair", nargs=2, metavar=("MLX", "GGUF"), action="append", required=True)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument(
        "--activation-bits", type=int, nargs="+", choices=(8, 16), default=[16], metavar="8|16"
    )
    args = parser.parse_args()
    print("| mixbit | of x | llama.cpp | decode, tok/s | ratio | prefill, tok/s | ratio |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for model, gguf in args.pair:
        llama = [str(args.llama_bench), "-m", gguf, "-t", "1", "-r", "1", "--no-warmup"]
        generates = [
            [sys.executable, "-c", GENERATE, model, str(bits)] for bits in args.activation_bits
        ]
        decodes: list[Command] = [
            *(lambda n, ours=ours: [*ours, "16", str(n)] for ours in generates),
            lambda n, llama=llama: [*llama, "-p", "0", "-n", str(n)],
        ]
        prefills: list[Command] = [
            lambda n, ours=generates[0]: [*ours, str(n), "1"],  # the same for all activation bits
            lambda n, llama=llama: [*llama, "-p", str(n), "-n", "0"],
        ]
        *decode, other_decode = medians(decodes, DECODE, args.trials)
        prefill, other_prefill = medians(prefills, PREFILL, args.trials)
        for bits, tokens in zip(args.activation_bits, decode, strict=True):
            cells = [
                *(Path(model).name, str(bits), Path(gguf).name),
                *(f"{tokens:.1f} / {other_decode:.1f}", f"{tokens / other_decode:.2f}"),
                *(f"{prefill:.1f} / {other_prefill:.1f}", f"{prefill / other_prefill:.2f}"),
            ]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
