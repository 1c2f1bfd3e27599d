"""Reading a model's matrices, mapped or by MLX's reads: seconds of CPU and peak memory.

Run as ``python bench/reading.py MODEL`` on Linux, the files in the page cache: a Markdown table.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import mlx.core as mx

from mixbit.checkpoint import open_checkpoint, read_rows
from mixbit.checkpoint.weights import load_file

ROWS = 4096


def main() -> None:
    """Read each way in a process of its own, in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        mx.set_cache_limit(64 << 20)
        begun, before = time.process_time(), peak()
        WAYS[args.way](args.model)
        print(time.process_time() - begun, peak() - before)
        return
    command = [sys.executable, __file__, str(args.model), "--way"]
    seen: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for _ in range(args.trials):
        for way, trials in seen.items():
            output = subprocess.run([*command, way], check=True, capture_output=True).stdout
            trials.append([float(value) for value in output.split()])
    print("| way | seconds of CPU | peak above the start, GB |\n| --- | ---: | ---: |")
    for way, trials in seen.items():
        seconds, growth = map(statistics.median, zip(*trials, strict=True))
        print(f"| {way} | {seconds:.2f} | {growth:.2f} |")


def peak() -> float:
    """Most resident memory so far, GB."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e9


def mapped(model: Path) -> None:
    """One matrix after the other, copied out of the mapped file."""
    for info in open_checkpoint(model).tensors.values():
        if len(info.shape) == 2:
            mx.eval(read_rows(info, 0, info.shape[0]))


def by_mlx(model: Path) -> None:
    """One matrix after the other, as MLX reads it."""
    checkpoint = open_checkpoint(model)
    weights = {name: value for file in checkpoint.files for name, value in load_file(file).items()}
    for name, info in checkpoint.tensors.items():
        if len(info.shape) == 2:
            mx.eval(weights[name])
        del weights[name]


def mapped_rows(model: Path) -> None:
    """Some rows of each matrix after the other, copied out of the mapped file."""
    for info in open_checkpoint(model).tensors.values():
        if len(info.shape) == 2:
            for begin in range(0, info.shape[0], ROWS):
                mx.eval(read_rows(info, begin, min(begin + ROWS, info.shape[0])))


WAYS = {
    "whole, mapped": mapped,
    "whole, by MLX": by_mlx,
    f"{ROWS} rows at a time, mapped": mapped_rows,
}

if __name__ == "__main__":
    main()
