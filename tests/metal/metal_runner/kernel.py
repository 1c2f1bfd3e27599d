"""Running one kernel over a grid."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import instructions, machine
from .build import Built
from .compiler import Mode, places
from .errors import KernelError
from .report import BufferTraffic, Counters, Finding, Report, Site, SpaceTraffic, same_bits
from .signature import Parameter, Signature

Value = NDArray[Any] | bytes | bool | int | float
Buffers = Mapping[str, Value] | Mapping[int, Value] | Mapping[str | int, Value] | Sequence[Value]
Order = Literal["forward", "backward", "shuffled"]

_ELEMENTS: dict[str, type[np.generic]] = {
    "bool": np.bool_, "char": np.int8, "int8_t": np.int8, "uchar": np.uint8, "uint8_t": np.uint8,
    "short": np.int16, "int16_t": np.int16, "ushort": np.uint16, "uint16_t": np.uint16,
    "int": np.int32, "int32_t": np.int32, "uint": np.uint32, "uint32_t": np.uint32,
    "long": np.int64, "int64_t": np.int64, "ulong": np.uint64, "uint64_t": np.uint64,
    "size_t": np.uint64, "half": np.float16, "float": np.float32, "bfloat": np.uint16,
}  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """A kernel of a :class:`Library`; ``signature`` says what it takes."""

    name: str
    signature: Signature
    build: Callable[[Mode], Built]

    def run(
        self,
        buffers: Buffers,
        *,
        threads: Sequence[int],
        threadgroups: Sequence[int] | None = None,
        grid: Sequence[int] | None = None,
        mode: Mode = "fast",
        threadgroup_bytes: Sequence[int] = (),
        order: Order = "forward",
        seed: int = 0,
        flush_denormals: bool = False,
    ) -> Report:
        """Run it over ``threadgroups`` of ``threads`` each, or over a ``grid`` of threads.

        ``buffers``: by name or index, or a sequence in the order of indices: arrays, bytes, or
        numbers, which take the type that the parameter declares; bfloat as uint16. A buffer left
        out is a null pointer. The arrays themselves are not changed: what the kernel wrote is in
        the report.

        ``mode``: "fast" finds what faults, writes beside buffers, and divergent barriers and
        simdgroup functions; "checked" adds bounds to the byte, races, uninitialised threadgroup
        memory and undefined behaviour; "counted" counts traffic and instructions instead of races.
        ``threadgroup_bytes``: sizes of the ``[[threadgroup(n)]]`` arguments. ``order``: in which
        order threadgroups, simdgroups and lanes run where nothing orders them; ``seed`` shuffles.

        Raises KernelError, with the report, if the kernel did what a GPU does not allow.
        """
        if (threadgroups is None) == (grid is None):
            raise TypeError("run takes either threadgroups or grid")
        built = self.build(mode)
        runtime = machine.library()
        given = self._by_index(buffers)
        request = machine.LaunchRequest(
            entry=built.entries[self.name],
            threadgroup_arguments=len(threadgroup_bytes),
            grid=_three(threadgroups if grid is None else grid),
            threads_per_threadgroup=_three(threads),
            seed=seed,
            grid_of_threads=grid is not None,
            instrumented=mode != "fast",
            find_races=mode == "checked",
            count=mode == "counted",
            order=machine.ORDERS.index(order),
            flush_denormals=flush_denormals,
        )
        sizes = (ctypes.c_uint * max(len(threadgroup_bytes), 1))(*threadgroup_bytes)
        indices = [p.index for p in self.signature.buffers]
        table = (ctypes.c_void_p * (max(indices, default=0) + 1))()
        request.threadgroup_bytes = ctypes.addressof(sizes)
        request.buffers = ctypes.addressof(table)
        try:
            for parameter, array in given.values():
                table[parameter.index] = _new_buffer(runtime, parameter, array, mode)
            built.counts[:] = 0
            failed = runtime.runner_launch(ctypes.byref(request))
            outputs: dict[str | int, NDArray[Any]] = {}
            for parameter, array in given.values():
                if not parameter.is_const:
                    output = np.empty_like(array)
                    ctypes.memmove(output.ctypes.data, table[parameter.index] or 0, array.nbytes)
                    outputs[parameter.name] = outputs[parameter.index] = output
            raw = machine.report()
        finally:
            runtime.runner_buffers_free()
        report = self._report(raw, outputs, built)
        if failed:
            raise KernelError(f"{self.name}: {machine.error()}", report)
        if report.errors:
            lines = "".join(f"\n  {finding}" for finding in report.errors)
            raise KernelError(f"{self.name}:{lines}", report)
        return report

    def run_in_orders(
        self,
        buffers: Buffers,
        *,
        orders: int = 4,
        **how: Any,
    ) -> Report:
        """Run it in several orders of threads, which must leave the same bits; see :meth:`run`.

        Raises KernelError if a buffer depends on the order.
        """
        first = self.run(buffers, **how)
        for seed in range(1, orders):
            order: Order = "backward" if seed == 1 else "shuffled"
            other = self.run(buffers, order=order, seed=seed, **how)
            if not same_bits(first, other):
                message = f"{self.name}: the result depends on the order in which threads run"
                raise KernelError(message, other)
        return first

    def _by_index(self, buffers: Buffers) -> dict[int, tuple[Parameter, NDArray[Any]]]:
        declared = self.signature.buffers
        if not isinstance(buffers, Mapping):
            buffers = {p.index: v for p, v in zip(declared, buffers, strict=True)}
        by_key = {p.name: p for p in declared} | {p.index: p for p in declared}
        unknown = [str(key) for key in buffers if key not in by_key]
        if unknown:
            raise TypeError(f"{self.name} has no buffers {', '.join(unknown)}")
        return {
            by_key[key].index: (by_key[key], _array(by_key[key], value))
            for key, value in buffers.items()
        }

    def _report(
        self, raw: dict[str, Any], outputs: dict[str | int, NDArray[Any]], built: Built
    ) -> Report:
        names = {p.index: p.name for p in self.signature.buffers}
        found = raw.pop("findings")
        sites = raw.pop("sites")
        addresses = [f[k] for f in found for k in ("address", "other_address")]
        at = places(built.path, [*addresses, *(s["address"] for s in sites)])
        findings = _findings(found, at)
        spaces = {name: SpaceTraffic(**s) for name, s in raw.pop("spaces").items()}
        traffic = {}
        for buffer in raw.pop("buffers"):
            name = names[buffer.pop("index")]
            traffic[name] = BufferTraffic(name=name, **buffer)
        counters = Counters(
            **raw,
            spaces=spaces,
            buffers=traffic,
            sites=tuple(_site(s, at) for s in sites),
            instructions=instructions.total(built.counts.tolist(), built.mixes),
        )
        return Report(outputs, findings, counters)


def _findings(raw: Sequence[dict[str, Any]], at: Mapping[int, str]) -> tuple[Finding, ...]:
    """One finding for each kind and pair of source lines, however often a loop was unrolled."""
    merged: dict[tuple[str, str, str], Finding] = {}
    for f in raw:
        where = f["place"] or at.get(f["address"], "")
        key = (f["kind"], where, at.get(f["other_address"], ""))
        earlier = merged.get(key)
        count = f["count"] + (earlier.count if earlier else 0)
        text = earlier.text if earlier else f["text"]
        merged[key] = Finding(key[0], text, count, key[1], key[2])
    return tuple(merged.values())


def _site(raw: dict[str, Any], at: Mapping[int, str]) -> Site:
    where = at.get(raw.pop("address"), "")
    return Site(where=where, store=bool(raw.pop("store")), **raw)


def _three(sizes: Sequence[int] | None) -> tuple[int, int, int]:
    x, y, z = [*(sizes or ()), 1, 1, 1][:3]
    return x, y, z


def _array(parameter: Parameter, value: Value) -> NDArray[Any]:
    """The buffer's contents. Raises TypeError if they cannot be what the parameter declares."""
    declared = _ELEMENTS.get(parameter.element)
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    if not isinstance(value, np.ndarray):
        if declared is None:
            raise TypeError(f"{parameter.name} is {parameter.element}: give it as an array")
        return np.array(value, declared)
    bytes_of_anything = np.uint8 in (declared, value.dtype)
    size = value.itemsize if declared is None else np.dtype(declared).itemsize
    if value.itemsize != size and not bytes_of_anything:
        raise TypeError(f"{parameter.name} is {parameter.element}, not {value.dtype}")
    return np.ascontiguousarray(value)


def _new_buffer(runtime: ctypes.CDLL, parameter: Parameter, array: NDArray[Any], mode: Mode) -> int:
    made: int | None = runtime.runner_buffer_new(
        array.ctypes.data,
        array.nbytes,
        parameter.index,
        parameter.is_const,
        parameter.space == "constant",
        mode != "fast",
        mode == "counted",
    )
    if made is None:
        raise MemoryError(f"no room for buffer {parameter.name} of {array.nbytes} bytes")
    return made
