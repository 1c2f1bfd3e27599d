"""MLX's own Metal kernels, from the headers of the installed wheel, unedited.

They show that the runner can be trusted, and they are what our kernels are compared with.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .compiler import Mode
from .library import Library
from .report import Report

Element = Literal["float", "half", "bfloat"]
Matmul = Literal["qmv_fast", "qmv", "qmv_wide", "qmm_t"]
Storage: dict[Element, type[np.generic]] = {
    "float": np.float32,
    "half": np.float16,
    "bfloat": np.uint16,
}

_KERNELS = "mlx/backend/metal/kernels"
QUANTIZED = ("utils.h", "steel/gemm/gemm.h", "quantized_utils.h", "quantized.h")
_TILE = 32  # rows and columns of qmm_t's tile
_WIDE_ROWS, _WIDE_LANES = 4, 8  # of x at a time, and along K, in qmv_wide
_CONSTANTS = {"align_M": True, "align_N": True, "align_K": True}
_ARGUMENTS = {
    "qmv_fast": "false",
    "qmv_fast_partial": "false, true",  # for N that is no multiple of 8
    "qmv": "false",
    "qmv_wide": f"{_WIDE_ROWS}, {_WIDE_LANES}, false",
    "qmm_t": "true, false",
    "qmm_t_unaligned": "false, false",  # for N that is no multiple of the tile
    "quantize": "",
    "dequantize": "",
}


def headers() -> Path:
    """The include folder of the installed MLX."""
    spec = importlib.util.find_spec("mlx")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("mlx is not installed")
    return Path(next(iter(spec.submodule_search_locations))) / "include"


def instantiation(name: str, expression: str) -> str:
    """A line of MSL that makes kernel ``name`` of a template with its arguments."""
    return f'template [[host_name("{name}")]] [[kernel]] decltype({expression}) {expression};'


def library(include: tuple[str, ...], instances: tuple[tuple[str, str], ...]) -> Library:
    """A library of MLX's headers with kernels by name and template expression."""
    text = "".join(f'#include "{_KERNELS}/{header}"\n' for header in include)
    lines = [instantiation(name, expression) for name, expression in instances]
    return Library.from_source(text, instantiate=lines, name="stock.metal", folders=[headers()])


@functools.cache
def quantized_library(
    element: Element, bits: int, group: int, names: tuple[str, ...] = tuple(_ARGUMENTS)
) -> Library:
    """MLX's affine kernels of one type and width, under the names of ``affine_...``."""
    instances = []
    for name in names:
        rest = _ARGUMENTS[name]
        function = name.removesuffix("_partial").removesuffix("_unaligned")
        arguments = f"{element}, {group}, {bits}" + (f", {rest}" if rest else "")
        instances.append((name, f"affine_{function}<{arguments}>"))
    return library(QUANTIZED, tuple(instances))


def matmul(
    kernel: Matmul,
    x: NDArray[Any],
    w: NDArray[np.uint32],
    scales: NDArray[Any],
    biases: NDArray[Any],
    *,
    element: Element,
    bits: int,
    group: int,
    mode: Mode = "fast",
) -> Report:
    """``report["y"]`` [M, N] = x [M, K] · dequantised(w)ᵀ, launched as MLX does.

    All but ``w`` are of type ``element``; w [N, K·bits/32], scales and biases [N, K/group].
    qmv_fast needs K to be a multiple of 512 (256 for 6 and 8 bits), as MLX checks on the host.
    """
    (M, K), N = x.shape, w.shape[0]
    name, threads = str(kernel), (32, 2, 1)
    if kernel == "qmm_t":
        threadgroups, threads = (-(-N // _TILE), -(-M // _TILE), 1), (32, 2, 2)
        name += "_unaligned" if N % _TILE else ""
    elif kernel == "qmv_wide":
        threadgroups = (-(-M // _WIDE_ROWS), -(-N // 8), 1)
    else:
        threadgroups = (M, -(-N // 8), 1)
        name += "_partial" if kernel == "qmv_fast" and N % 8 else ""
    y = np.full((M, N), 0xFF, np.uint8).repeat(np.dtype(Storage[element]).itemsize, -1)
    # What is counted is one kernel; what is checked against numbers are all, compiled in one go.
    names = (name,) if mode == "counted" else tuple(_ARGUMENTS)
    made = quantized_library(element, bits, group, names).kernel(name, constants=_CONSTANTS)
    given: dict[str, Any] = {
        "w": w,
        "scales": scales,
        "biases": biases,
        "x": x,
        "y": y.view(Storage[element]),
        "in_vec_size": K,
        "out_vec_size": N,
        "K": K,
        "N": N,
        "M": M,
    }
    taken = {p.name for p in made.signature.buffers}
    arguments = {key: value for key, value in given.items() if key in taken}
    return made.run(arguments, threadgroups=threadgroups, threads=threads, mode=mode)
