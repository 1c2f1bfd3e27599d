"""``mx.fast.metal_kernel`` on the runner: code written for it runs here without a change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from .compiler import Mode
from .kernel import Value
from .library import Library
from .report import Report
from .signature import POSITIONS
from .stock import instantiation

_TYPES = {
    mx.float32: "float", mx.float16: "half", mx.bfloat16: "bfloat16_t", mx.bool_: "bool",
    mx.int8: "int8_t", mx.int16: "int16_t", mx.int32: "int32_t", mx.int64: "int64_t",
    mx.uint8: "uint8_t", mx.uint16: "uint16_t", mx.uint32: "uint32_t", mx.uint64: "uint64_t",
}  # fmt: skip
_SINGLE_ATTRIBUTES = (
    "quadgroup_index_in_threadgroup", "quadgroups_per_threadgroup", "thread_execution_width",
    "simdgroup_index_in_threadgroup", "simdgroups_per_threadgroup", "threads_per_simdgroup",
    "thread_index_in_quadgroup", "thread_index_in_simdgroup", "thread_index_in_threadgroup",
)  # fmt: skip
_ATTRIBUTES = {**dict.fromkeys(POSITIONS, "uint3"), **dict.fromkeys(_SINGLE_ATTRIBUTES, "uint")}
_PRELUDE = """#include <metal_stdlib>
using namespace metal;
typedef bfloat bfloat16_t;
typedef half float16_t;
"""
_CONSTANT_BELOW = 8  # elements: MLX puts smaller inputs into constant memory


def as_buffer(array: mx.array) -> NDArray[Any]:
    """An array as a runner's buffer."""
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def as_array(buffer: NDArray[Any], dtype: mx.Dtype) -> mx.array:
    """A runner's buffer as an array."""
    return mx.array(buffer).view(dtype)


class MetalKernel:
    """Takes what ``mx.fast.metal_kernel`` takes, and is called like what that returns.

    ``mode`` of the class says how its kernels run; ``reports`` collects what they reported.
    """

    mode: Mode = "fast"
    reports: list[Report]

    def __init__(
        self,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str = "",
    ) -> None:
        self.name, self.source, self.header = f"custom_kernel_{name}", source, header
        self.inputs, self.outputs = list(input_names), list(output_names)

    def __call__(
        self,
        *,
        inputs: Sequence[Any],
        template: Sequence[tuple[str, Any]] = (),
        grid: Sequence[int],
        threadgroup: Sequence[int],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        """The outputs; they start as bytes of 0xff, which are NaN."""
        arrays = [a if isinstance(a, mx.array) else mx.array(a) for a in inputs]
        parameters: list[str] = []
        buffers: dict[str, Value] = {}
        for name, array in zip(self.inputs, arrays, strict=True):
            space = "constant" if array.size < _CONSTANT_BELOW else "device"
            sign = "*" if array.ndim else "&"
            parameters.append(f"const {space} {_TYPES[array.dtype]}{sign} {name}")
            buffers[name] = as_buffer(array)
            if array.ndim and self._uses(f"{name}_shape"):
                parameters.append(f"const constant int* {name}_shape")
                buffers[f"{name}_shape"] = np.array(array.shape, np.int32)
        for name, shape, dtype in zip(self.outputs, output_shapes, output_dtypes, strict=True):
            parameters.append(f"device {_TYPES[dtype]}* {name}")
            buffers[name] = _unset(shape, dtype)
        parameters = [f"{p} [[buffer({i})]]" for i, p in enumerate(parameters)]
        parameters += [f"{t} {a} [[{a}]]" for a, t in _ATTRIBUTES.items() if self._uses(a)]
        kernel = self._library(parameters, template).kernel("kernel")
        threads = [min(g, t) for g, t in zip(grid, threadgroup, strict=True)]
        report = kernel.run(buffers, grid=grid, threads=threads, mode=self.mode)
        type(self).reports.append(report)
        return [as_array(report[n], t) for n, t in zip(self.outputs, output_dtypes, strict=True)]

    def _uses(self, word: str) -> bool:
        return re.search(rf"\b{word}\b", self.source) is not None

    def _library(self, parameters: list[str], template: Sequence[tuple[str, Any]]) -> Library:
        names = ", ".join(f"{_kind(value)} {name}" for name, value in template)
        values = ", ".join(_literal(value) for _, value in template)
        head = f"template <{names}>\n" if template else ""
        text = (
            f"{_PRELUDE}{self.header}\n{head}[[kernel]] void {self.name}("
            f"{', '.join(parameters)}) {{\n{self.source}\n}}\n"
        )
        expression = f"{self.name}<{values}>" if template else self.name
        line = instantiation("kernel", expression)
        return Library.from_source(text, instantiate=[line], name=f"{self.name}.metal")


def _kind(value: Any) -> str:
    if isinstance(value, mx.Dtype):
        return "typename"
    return "bool" if isinstance(value, bool) else "int"


def _literal(value: Any) -> str:
    return _TYPES[value] if isinstance(value, mx.Dtype) else str(value).lower()


def _unset(shape: Sequence[int], dtype: mx.Dtype) -> NDArray[Any]:
    return np.full((*shape[:-1], shape[-1] * dtype.size), 0xFF, np.uint8).view(
        as_buffer(mx.zeros(1, dtype)).dtype
    )
