"""Runs what ``mixbit._core.launch_plan_*`` plans: the launches that eval_gpu would encode."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .cache import cached, content_key
from .compiler import Mode
from .kernel import Order, Value
from .library import Library
from .lines import METAL
from .report import Report

PARAMS_BUFFER = 0  # kParamsBuffer of csrc/gpu/launch_plan.h


class Launch(Protocol):
    """One launch of csrc/gpu/launch_plan.h, as Python sees it."""

    @property
    def family(self) -> str: ...
    @property
    def kernel(self) -> str: ...
    @property
    def instantiation(self) -> str: ...
    @property
    def threadgroups(self) -> Sequence[int]: ...
    @property
    def threads(self) -> Sequence[int]: ...
    @property
    def buffers(self) -> Sequence[tuple[int, tuple[str, int]]]: ...
    @property
    def params(self) -> bytes: ...


class LaunchPlan(Protocol):
    """The launches of one operation, and the bytes of each temporary they share."""

    @property
    def launches(self) -> Sequence[Launch]: ...
    @property
    def temporaries(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class PlanReport:
    """The operation's outputs, and the report of each launch."""

    outputs: tuple[NDArray[Any], ...]
    launches: tuple[Report, ...]


@functools.lru_cache(maxsize=1024)
def family_library(family: str, instantiations: tuple[str, ...], folder: Path = METAL) -> Library:
    """The library of ``folder/<family>.metal`` with these instantiations behind it."""
    return Library.from_file(folder / f"{family}.metal", instantiate=instantiations)


def run_plan(
    plan: LaunchPlan,
    inputs: Sequence[Value],
    outputs: Sequence[NDArray[Any]],
    *,
    mode: Mode = "fast",
    order: Order = "forward",
    seed: int = 0,
    folder: Path = METAL,
    together: Iterable[LaunchPlan] = (),
) -> PlanReport:
    """Run a plan's launches in order.

    ``inputs``: the operation's inputs in its order (bfloat as uint16); ``outputs``: arrays of the
    shapes and types wanted, whose contents are what the buffers hold before. Temporaries start as
    bytes of 0xff. ``folder``: where the sources are, see :func:`changed_sources`. ``together``:
    plans whose kernels are compiled in one go with this one's, which is faster than one by one.
    ``mode``, ``order`` and ``seed`` as in :meth:`Kernel.run`. Raises KernelError.
    """
    temporaries: list[NDArray[Any]] = [np.full(n, 0xFF, np.uint8) for n in plan.temporaries]
    memory: dict[str, list[Any]] = {
        "input": list(inputs),
        "output": list(outputs),
        "temporary": temporaries,
    }
    lines: dict[str, set[str]] = {}
    for launch in [launch for p in (plan, *together) for launch in p.launches]:
        lines.setdefault(launch.family, set()).add(launch.instantiation)
    reports = []
    for launch in plan.launches:
        library = family_library(launch.family, tuple(sorted(lines[launch.family])), folder)
        bound: dict[str | int, Value] = {b: memory[role][i] for b, (role, i) in launch.buffers}
        report = library.kernel(launch.kernel).run(
            {**bound, PARAMS_BUFFER: bytes(launch.params)},
            threadgroups=launch.threadgroups,
            threads=launch.threads,
            mode=mode,
            order=order,
            seed=seed,
        )
        reports.append(report)
        for buffer, (role, i) in launch.buffers:
            if buffer in report.outputs:
                memory[role][i] = report[buffer]
    return PlanReport(tuple(memory["output"]), tuple(reports))


def changed_sources(changes: Mapping[str, str], folder: Path = METAL) -> Path:
    """A copy of the sources in which the files that ``changes`` names hold these texts."""
    files = {p.name: p.read_text() for p in sorted(folder.iterdir()) if p.is_file()}
    if missing := changes.keys() - files.keys():
        raise FileNotFoundError(f"{folder} has no {', '.join(sorted(missing))}")
    key = content_key(*(part for item in sorted({**files, **changes}.items()) for part in item))

    def make(to: Path) -> None:
        shutil.copytree(folder, to)
        for name, text in changes.items():
            (to / name).write_text(text)

    return cached(f"sources-{key}", make)
