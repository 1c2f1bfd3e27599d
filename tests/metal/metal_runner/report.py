"""What a run gave: outputs, findings, and counted costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Findings that do no harm by themselves but deserve a look.
NOTES = (
    "device memory written by two threads with the same value",
    "threadgroup memory ordered only by a simdgroup function",
    "simdgroup function reads a lane that takes no part",
)

# An Apple GPU's core issues 128 lanes a clock of float and bitwise operations, but 32 of
# conversions from and to integers, shifts, integer products and special functions
# (philipturner's metal-benchmarks).
_DEAR = {"itof", "ftoi", "shift", "imul", "special"}
_DEAR_COST = 4


@dataclass(frozen=True)
class Finding:
    """One kind of fault at one place; ``where`` and ``other`` are ``file:line`` or empty."""

    kind: str
    text: str
    count: int
    where: str
    other: str

    @property
    def is_note(self) -> bool:
        """Whether it is harmless by itself."""
        return self.kind in NOTES

    def __str__(self) -> str:
        """One line."""
        places = " and ".join(p for p in (self.where, self.other) if p)
        times = f", {self.count} times" if self.count > 1 else ""
        return f"{self.kind}{times}: {self.text}" + (f" [{places}]" if places else "")


@dataclass(frozen=True)
class SpaceTraffic:
    """Loads and stores in one address space; ``loads`` and ``stores`` count them by width in bytes.

    ``joined_loads``: how many loads there would be if neighbouring ones of a thread joined into
    vectors of up to four.
    """

    bytes_loaded: int
    bytes_stored: int
    joined_loads: int
    loads: Mapping[str, int]
    stores: Mapping[str, int]


@dataclass(frozen=True)
class BufferTraffic:
    """What all threads together asked of one buffer.

    ``bytes_touched`` and ``lines`` (of 128 bytes) count each byte and line once: what has to come
    from memory if the caches are perfect.
    """

    name: str
    bytes: int
    bytes_loaded: int
    bytes_stored: int
    bytes_touched: int
    lines: int


@dataclass(frozen=True)
class Site:
    """One load or store of the code, over all simdgroups.

    ``simd_accesses``: how often a simdgroup got there; ``lanes``, ``bytes``, ``lines`` (128 bytes)
    and ``sectors`` (32 bytes): sums over those of what its lanes asked for together.
    """

    where: str
    space: str
    store: bool
    width: int
    simd_accesses: int
    lanes: int
    bytes: int
    lines: int
    sectors: int


@dataclass(frozen=True)
class Counters:
    """Costs of one launch. Without mode "counted" only barriers and calls are counted.

    ``instructions``: executed by all threads, by class: ``fma.float``, ``fadd.half``, ``imul``,
    ``itof`` (integer to float), ``fcvt`` (between floats), ``shift``, ``logic``, ``special`` (exp,
    sqrt ...), ``simd.reduce``, ``simd.mma``, ``barrier`` ...; loads and stores are in ``spaces``.
    The code is clang's for a CPU: compare designs with it, do not take it for time.
    """

    threads: int
    simdgroups: int
    threadgroups: int
    threadgroup_barriers: int
    simdgroup_barriers: int
    atomics: int
    threadgroup_bytes: int
    simd_functions: Mapping[str, int]
    spaces: Mapping[str, SpaceTraffic]
    buffers: Mapping[str, BufferTraffic]
    sites: tuple[Site, ...]
    instructions: Mapping[str, int]

    @property
    def bytes_loaded(self) -> int:
        """Bytes that threads asked for from device and constant memory."""
        return sum(b.bytes_loaded for b in self.buffers.values())

    @property
    def bytes_stored(self) -> int:
        """Bytes that threads stored to device memory."""
        return sum(b.bytes_stored for b in self.buffers.values())

    @property
    def compulsory_bytes(self) -> int:
        """Distinct bytes of all buffers that were loaded or stored."""
        return sum(b.bytes_touched for b in self.buffers.values())

    @property
    def request_ratio(self) -> float:
        """Bytes asked for and stored against the compulsory ones."""
        return (self.bytes_loaded + self.bytes_stored) / self.compulsory_bytes

    @property
    def lines(self) -> int:
        """Distinct lines of 128 bytes touched in all buffers."""
        return sum(b.lines for b in self.buffers.values())

    def count(self, *classes: str) -> int:
        """Instructions of these classes; ``"fma"`` is the sum of ``"fma.float"`` and others."""
        found = self.instructions.items()
        return sum(n for name, n in found if name in classes or name.split(".")[0] in classes)

    @property
    def issue_cost(self) -> int:
        """Instructions; those that an Apple GPU issues at a quarter of the rate count four."""
        return sum(
            n * (_DEAR_COST if name.split(".")[0] in _DEAR else 1)
            for name, n in self.instructions.items()
        )


@dataclass(frozen=True)
class Report:
    """One run. ``report["y"]`` or ``report[3]`` is a buffer the kernel may write, as it left it."""

    outputs: Mapping[str | int, NDArray[Any]]
    findings: tuple[Finding, ...]
    counters: Counters

    def __getitem__(self, buffer: str | int) -> NDArray[Any]:
        """A written buffer by the name or index of the kernel's parameter."""
        return self.outputs[buffer]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that are more than notes."""
        return tuple(f for f in self.findings if not f.is_note)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """Findings that do no harm by themselves."""
        return tuple(f for f in self.findings if f.is_note)


def same_bits(a: Report, b: Report) -> bool:
    """Whether two runs left the same bits in every buffer."""
    return all(np.array_equal(_bits(a[name]), _bits(b[name])) for name in a.outputs)


def _bits(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.frombuffer(array.tobytes(), np.uint8)
