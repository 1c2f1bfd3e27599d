"""Products with one row of x against the streaming read bandwidth, in turns.

One thread by CPU time, which says more than wall time where other jobs share the machine; more
threads (``--threads``) by wall time. The weights take as many bytes as are read, more than the
last-level cache holds, and what is read lies in memory as MLX allocates it, too: numpy would ask
for larger pages, which read faster.
``python bench/gemv.py`` prints a Markdown table.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlx.core as mx
import numpy as np

from mixbit import ops

K = 8192


def bytes_to_read() -> int:
    """Twice the last-level cache, where Linux tells its size, and at least 256 MB."""
    size = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
    cache = int(size.read_text().strip().removesuffix("K")) << 10 if size.exists() else 0
    return max(1 << 28, 2 * cache)


READ = bytes_to_read()


def reader(threads: int) -> Callable[[], None]:
    """Reads all of READ bytes with the compiled read_bandwidth.c, a part in each thread."""
    source = Path(__file__).with_name("read_bandwidth.c")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "read_bandwidth.so"
        compiler = os.environ.get("CC", "cc")
        options = ["-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run([compiler, *options, str(source), "-o", str(library)], check=True)
        function = ctypes.CDLL(str(library)).read_all
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    function.restype = ctypes.c_uint64
    memory = mx.ones(READ, mx.uint8)
    mx.eval(memory)
    data = np.array(memory, copy=False)
    parts = np.split(data[-data.ctypes.data % 32 :][: READ - 32 * threads], threads)
    pool = ThreadPoolExecutor(threads)

    def read(part: np.ndarray) -> None:
        function(part.ctypes.data, part.nbytes // 32)

    return lambda: read(parts[0]) if threads == 1 else list(pool.map(read, parts))


def product(x: mx.array, weight: ops.Weight) -> Callable[[], None]:
    """Multiplies the two, the first time now."""

    def run() -> None:
        mx.eval(ops.matmul(x, [weight]))

    run()
    return run


def seconds(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """Time of one call."""
    begin = clock()
    run()
    return clock() - begin


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group-size", type=int, default=64, choices=(32, 64, 128))
    parser.add_argument("--trials", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--activation-bits", type=int, nargs="+", choices=(8, 16), default=[16], metavar="8|16"
    )
    arguments = parser.parse_args()
    # Read when the native module starts its threads, at its first product.
    os.environ["MIXBIT_NUM_THREADS"] = str(arguments.threads)
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    group = arguments.group_size
    mx.set_default_device(mx.cpu)
    rng = np.random.default_rng(0)
    read = reader(arguments.threads)
    x = mx.array(rng.standard_normal((1, K), dtype=np.float32)).astype(mx.bfloat16)
    print("| bits | of x | G weights/s | GB/s | reading, GB/s | share |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for bits in (2, 3, 4, 5, 6, 8):
        weight_bytes = (bits + 32 / group) / 8  # with scale and bias
        rows = int(READ / weight_bytes) // K
        w = mx.array(rng.integers(0, 1 << 32, (rows, K * bits // 32), dtype=np.uint32))
        scales = mx.array(rng.standard_normal((rows, K // group), dtype=np.float32)).astype(x.dtype)
        mx.eval(x, w, scales)
        products = {
            x_bits: product(
                x, ops.Weight(w, scales, scales, None, group, bits, activation_bits=x_bits)
            )
            for x_bits in arguments.activation_bits
            if x_bits == 16 or bits < 8
        }
        times, reads = {x_bits: [] for x_bits in products}, []
        for _ in range(arguments.trials):
            for x_bits, run in products.items():
                times[x_bits].append(seconds(run, clock))
            reads.append(seconds(read, clock))
        bound = READ / statistics.median(reads)
        for x_bits, taken in times.items():
            weights = rows * K / statistics.median(taken)
            rate = weights * weight_bytes
            print(
                f"| {bits} | {x_bits} | {weights / 1e9:.1f} | {rate / 1e9:.1f} "
                f"| {bound / 1e9:.1f} | {100 * rate / bound:.0f} % |"
            )


if __name__ == "__main__":
    main()
