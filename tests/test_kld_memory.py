"""What a measurement takes of memory: no more than ``memory`` allows, however much it reads."""

import json

from kld_runs import run

MEASURE = """
import json, resource
sys.path.insert(0, "tests")
import numpy as np
from models import build

stream.UNIT_TOKENS = 4096  # a batch has windows of one unit
WIDTH, VOCABULARY = 96, 1024
reference, candidate = (
    build("qwen3_5", vocab_size=VOCABULARY, dtype=mx.bfloat16, num_hidden_layers=4)
    for _ in range(2)
)
rng = np.random.default_rng(0)

def peak_after(windows, memory):
    # In a first run it is the interpreter that grows.
    data = rng.integers(VOCABULARY, size=(windows, WIDTH)).tolist()
    kld.measure(candidate, reference, data, window=WIDTH, batch_size=64, memory=memory)
    if sys.platform == "linux":  # where getrusage knows what the parent process took, too
        (line,) = [l for l in open("/proc/self/status") if l.startswith("VmHWM")]
        return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

memory, windows = float(sys.argv[1]), int(sys.argv[2])
print(json.dumps([peak_after(count, limit) for count, limit in (
    (2, memory), (windows, memory), (4 * windows, memory), (2 * windows, None))]))
"""


def test_peak_is_bounded_and_the_same_for_four_times_the_tokens(long_grid: bool) -> None:
    memory, windows = 0.02, 60 if long_grid else 8
    done = run(MEASURE, memory, windows)
    assert done.returncode == 0, done.stderr
    before, short, long, unbounded = json.loads(done.stdout)
    assert short - before <= 1e9 * memory
    assert long - before <= 1e9 * memory
    assert long - short <= 6e6
    assert unbounded - before > 2e9 * memory
