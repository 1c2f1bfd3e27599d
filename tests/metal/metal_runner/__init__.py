"""Runs Metal compute kernels on a CPU: the real source, over a grid, with numpy buffers.

The rest is said in README.md beside this file. In short::

    library = Library.from_file(METAL / "quantized_matvec.metal", instantiate=[line, ...])
    kernel = library.kernel("mv_bf16_b4_g64", constants={"align_K": True})
    report = kernel.run(
        {"w": w, "x": x, "y": np.zeros(n, np.float16), "K": 512},  # or by index, or a list
        threadgroups=(n // 8, 1, 1), threads=(32, 2, 1), mode="checked",
    )
    report["y"]                     # buffers that the kernel may write
    report.notes                    # findings that are no errors; errors raise KernelError
    report.counters.instructions    # mode="counted"
    library.address_space_errors()  # [] if Apple's compiler has nothing to say about spaces

    plan = _core.launch_plan_matmul(M=3, K=512, ...)        # what the host would launch
    run_plan(plan, inputs, [np.zeros((3, n), np.float16)], mode="checked").outputs[0]

    survivors(dropped_barriers(text), trial)                # faults that a test overlooks

``mode``: "fast" for sweeps, "checked" for bounds, races, barriers, uninitialised memory and
undefined behaviour, "counted" for costs. ``kernel.run_in_orders(...)`` wants the same bits whatever
the order of threads. bfloat arrays are uint16: ``to_bfloat``, ``from_bfloat``.
"""

from .bfloat import from_bfloat, to_bfloat
from .compiler import Mode
from .errors import KernelError, SourceError
from .kernel import Kernel
from .library import Library
from .lines import METAL
from .mutation import Mutant, dropped_barriers, mutate, off_by_one, survivors, wrong_lanes
from .plans import changed_sources, family_library, run_plan
from .report import Counters, Finding, Report

__all__ = [
    "METAL",
    "Counters",
    "Finding",
    "Kernel",
    "KernelError",
    "Library",
    "Mode",
    "Mutant",
    "Report",
    "SourceError",
    "changed_sources",
    "dropped_barriers",
    "family_library",
    "from_bfloat",
    "mutate",
    "off_by_one",
    "run_plan",
    "survivors",
    "to_bfloat",
    "wrong_lanes",
]
