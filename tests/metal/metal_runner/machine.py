"""The runtime library, as Python calls it."""

from __future__ import annotations

import ctypes
import functools
import json
import os
from typing import Any

from .cache import cached, content_key
from .compiler import compile_runtime

ORDERS = ("forward", "backward", "shuffled")


class LaunchRequest(ctypes.Structure):
    """``runner::LaunchRequest`` of runtime/dispatch.h."""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("threadgroup_bytes", ctypes.c_void_p),
        ("threadgroup_arguments", ctypes.c_uint),
        ("grid", ctypes.c_uint * 3),
        ("threads_per_threadgroup", ctypes.c_uint * 3),
        ("seed", ctypes.c_ulong),
        ("grid_of_threads", ctypes.c_int),
        ("instrumented", ctypes.c_int),
        ("find_races", ctypes.c_int),
        ("count", ctypes.c_int),
        ("order", ctypes.c_int),
        ("flush_denormals", ctypes.c_int),
    )


@functools.cache
def library() -> ctypes.CDLL:
    """The runtime, loaded so that kernels find it."""
    path = cached(f"runtime-{content_key('runtime')}.so", compile_runtime)
    loaded = ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    loaded.runner_buffer_new.restype = ctypes.c_void_p
    loaded.runner_buffer_new.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint, *[ctypes.c_int] * 4,
    ]  # fmt: skip
    loaded.runner_launch.argtypes = [ctypes.c_void_p]
    loaded.runner_error.restype = loaded.runner_report.restype = ctypes.c_char_p
    return loaded


def report() -> dict[str, Any]:
    """What the last launch did."""
    read: dict[str, Any] = json.loads(library().runner_report())
    return read


def error() -> str:
    """Why the last launch was given up."""
    message: bytes = library().runner_error()
    return message.decode()
