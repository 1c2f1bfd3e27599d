"""Products with one row of x against the streaming read bandwidth, in turns, by CPU time.

One thread and its CPU time say more than wall time where other jobs share the machine. The weights
are larger than the last-level cache. ``python bench/gemv.py`` prints a Markdown table.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["MIXBIT_NUM_THREADS"] = "1"  # read when the native module starts its threads

import mlx.core as mx
import numpy as np

from mixbit import ops

N, K = 16384, 8192


def read_all() -> Callable[[np.ndarray], int]:
    """The compiled read_bandwidth.c."""
    source = Path(__file__).with_name("read_bandwidth.c")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "read_bandwidth.so"
        compiler = os.environ.get("CC", "cc")
        options = ["-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run([compiler, *options, str(source), "-o", str(library)], check=True)
        function = ctypes.CDLL(str(library)).read_all
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    function.restype = ctypes.c_uint64
    return lambda data: int(function(data.ctypes.data, data.nbytes // 32))


def seconds(run: Callable[[], object]) -> float:
    """CPU time of one call."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group-size", type=int, default=64, choices=(32, 64, 128))
    parser.add_argument("--trials", type=int, default=9)
    arguments = parser.parse_args()
    group = arguments.group_size
    mx.set_default_device(mx.cpu)
    rng = np.random.default_rng(0)
    read, memory = read_all(), np.ones(1 << 28, np.uint8)
    memory = memory[-memory.ctypes.data % 32 :]  # aligned reads
    x = mx.array(rng.standard_normal((1, K), dtype=np.float32)).astype(mx.bfloat16)
    print("| bits | G weights/s | GB/s | reading, GB/s | share |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for bits in (2, 3, 4, 5, 6, 8):
        w = mx.array(rng.integers(0, 1 << 32, (N, K * bits // 32), dtype=np.uint32))
        scales = mx.array(rng.standard_normal((N, K // group), dtype=np.float32)).astype(x.dtype)
        weight = (w, scales, scales)
        mx.eval(x, *weight)

        def product(weight=weight, bits=bits) -> None:
            mx.eval(ops.quantized_matmul(x, *weight, bits=bits, group_size=group))

        product()
        products, reads = [], []
        for _ in range(arguments.trials):
            products.append(seconds(product))
            reads.append(seconds(lambda: read(memory)))
        taken = statistics.median(products)
        rate = N * K * (bits + 32 / group) / 8 / taken
        bound = memory.nbytes / statistics.median(reads)
        weights = N * K / taken / 1e9
        print(
            f"| {bits} | {weights:.1f} | {rate / 1e9:.1f} | {bound / 1e9:.1f} "
            f"| {100 * rate / bound:.0f} % |"
        )


if __name__ == "__main__":
    main()
