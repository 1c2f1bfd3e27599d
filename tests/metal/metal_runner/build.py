"""Compiled libraries: made once, loaded, with the tables that say what their counters mean."""

from __future__ import annotations

import ctypes
import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import instructions, lines, machine
from .cache import cached, content_key
from .compiler import Mode, compile_ir, compile_library, to_ir


class _KernelEntry(ctypes.Structure):
    """``runner::Kernel`` of shim/interface.h."""

    _fields_ = (("name", ctypes.c_char_p), ("entry", ctypes.c_void_p))


@dataclass(frozen=True)
class Built:
    """A loaded library: addresses of its kernels; counts of its blocks and what those hold."""

    path: Path
    loaded: ctypes.CDLL
    entries: Mapping[str, int]
    counts: NDArray[np.uint64]
    mixes: tuple[instructions.Mix, ...]


@functools.lru_cache(maxsize=512)
def build(text: str, mode: Mode, statements: str) -> Built:
    """Compile and load a translated source; ``statements`` are those to measure coverage of."""
    machine.library()
    covered = statements if mode == "checked" else "{}"
    path = cached(
        f"{content_key(mode, text, covered)}.so", functools.partial(_make, text, mode, covered)
    )
    loaded = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    kernels = _array(loaded, "runner_kernels", _KernelEntry, _int(loaded, "runner_kernel_count"))
    entries = {k.name.decode(): k.entry for k in kernels}
    counts, mixes = np.zeros(0, np.uint64), ()
    if mode == "counted":
        mixes = tuple(_table(loaded))
        counts = np.ctypeslib.as_array(
            _array(loaded, "runner_counts", ctypes.c_uint64, max(len(mixes), 1))
        )
    elif covered != "{}":
        held = _table(loaded)
        flags = _array(loaded, "runner_lines", ctypes.c_uint8, max(len(held), 1))
        lines.watch(json.loads(statements), held, np.ctypeslib.as_array(flags))
    return Built(path, loaded, entries, counts, mixes)


def _make(text: str, mode: Mode, covered: str, to: Path) -> None:
    table: list[Any]
    optimised = mode == "counted"
    if optimised:
        ir, table = instructions.instrument(to_ir(text, mode, optimised=True))
    elif covered != "{}":
        ir, table = lines.instrument(to_ir(text, mode, optimised=False), str(lines.METAL))
    else:
        compile_library(text, mode, to)
        return
    data = json.dumps(table).encode()
    escaped = "".join(f"\\{byte:02X}" for byte in data)
    constant = f'@runner_table = dso_local constant [{len(data) + 1} x i8] c"{escaped}\\00"\n'
    compile_ir(ir + constant, mode, to, optimised=optimised)


def _table(loaded: ctypes.CDLL) -> list[Any]:
    start = ctypes.addressof(ctypes.c_char.in_dll(loaded, "runner_table"))
    read: list[Any] = json.loads(ctypes.string_at(start))
    return read


def _int(loaded: ctypes.CDLL, name: str) -> int:
    return ctypes.c_int.in_dll(loaded, name).value


def _array(loaded: ctypes.CDLL, name: str, element: Any, count: int) -> Any:
    return (element * count).in_dll(loaded, name)
