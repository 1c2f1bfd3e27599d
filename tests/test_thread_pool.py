"""What the CPU kernels' threads may not do to the process that they live in.

Several callers at once, and a fork, are tests of the native program (``tests/native/threads.cpp``).
"""

import os
import signal
import subprocess
import sys
import time

import pytest

PRELUDE = """
import os, threading, time
import mlx.core as mx
from mixbit import _core, ops
x, w = mx.random.normal((64, 512)), mx.random.normal((1024, 512))
mx.eval(x, w)
product = lambda: ops.linear(x, w)
"""


def python(code: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code],
        env=os.environ | {"MIXBIT_BACKEND": "cpu"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def printed(code: str, **environment: str) -> str:
    out, err = (process := python(code, **environment)).communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    return out


def test_the_number_of_threads_can_be_chosen() -> None:
    code = """
before = len(os.listdir("/proc/self/task"))
mx.eval(product())
print(_core.num_threads(), len(os.listdir("/proc/self/task")) - before)
"""
    if sys.platform != "linux":
        code = "print(_core.num_threads(), _core.num_threads() - 1)"
    assert printed(code, MIXBIT_NUM_THREADS="1").split()[0] == "1"
    # MLX's own thread is there already, as x and w have been evaluated.
    assert printed(code, MIXBIT_NUM_THREADS="4").split() == ["4", "3"]
    for nonsense in ("0", "-3", "many", ""):
        default = printed("print(_core.num_threads())", MIXBIT_NUM_THREADS="")
        assert printed("print(_core.num_threads())", MIXBIT_NUM_THREADS=nonsense) == default


if sys.platform == "linux":

    def test_threads_are_no_more_than_the_processors_that_may_be_used() -> None:
        allowed = os.sched_getaffinity(0)
        counts = {}
        try:
            for processors in ({max(allowed)}, allowed):
                os.sched_setaffinity(0, processors)  # which the process started here inherits
                counts[len(processors)] = int(
                    printed("print(_core.num_threads())", MIXBIT_NUM_THREADS="")
                )
        finally:
            os.sched_setaffinity(0, allowed)
        assert counts[1] == 1
        assert 1 <= counts[len(allowed)] <= len(allowed)

    def test_idle_threads_sleep() -> None:
        code = """
def helpers():
    found = {}
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            fields = open(f"/proc/self/task/{task}/stat").read().rpartition(")")[2].split()
            found[task] = fields[0], int(fields[11]) + int(fields[12])
    return found
for _ in range(20):
    mx.eval(product())
time.sleep(0.2)
before = helpers()
time.sleep(0.5)
after = helpers()
print(len(before), {state for state, _ in after.values()}, before == after)
"""
        count, rest = printed(code, MIXBIT_NUM_THREADS="5").split(maxsplit=1)
        assert int(count) >= 4
        assert rest.strip() == "{'S'} True"


def test_python_threads_get_their_own_results() -> None:
    code = """
import numpy as np
wrong = []
def work(seed):
    rng = np.random.default_rng(seed)
    x, w = (rng.normal(size=(n, 512)).astype(np.float32) for n in (64, 1024))
    with mx.stream(mx.new_stream(mx.cpu)):
        mine, weights = mx.array(x), mx.array(w)
        for _ in range(30):
            if np.abs(np.array(ops.linear(mine, weights)) - x @ w.T).max() > 1e-3:
                wrong.append(seed)
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(wrong)
"""
    assert printed(code, MIXBIT_NUM_THREADS="4") == "[]\n"


@pytest.mark.parametrize(
    "end",
    ["pass", "import sys; sys.exit()", "raise SystemExit(0)"],
    ids=["falls through", "exits", "raises"],
)
def test_the_process_may_end_while_products_run(end: str) -> None:
    assert printed(f"mx.async_eval([product() for _ in range(100)])\n{end}") == ""


def test_an_interrupt_ends_the_work() -> None:
    process = python("print('go', flush=True)\nwhile True:\n    mx.eval(product())\n")
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")
