"""From Metal source, before and after its translation, to libraries and places in it."""

from __future__ import annotations

import functools
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from .cache import cached, content_key
from .tools import HERE, run_tool, tool

Mode = Literal["fast", "checked", "counted"]

ENTRIES = "entries"  # the file that generated code is said to be in
_SHIM = HERE / "shim" / "metal_runner.h"

# Apple's own header names; their contents come from shim/ once the source is translated.
_HEADERS = (
    "metal_stdlib", "metal_array", "metal_atomic", "metal_common", "metal_compute",
    "metal_geometric", "metal_integer", "metal_limits", "metal_logging", "metal_math", "metal_pack",
    "metal_relational", "metal_simdgroup", "metal_simdgroup_matrix", "metal_type_traits",
    "metal_types", "simd/simd.h",
)  # fmt: skip

_DIALECT = [
    "-std=c++17", "-nostdinc", "-fdeclspec", "-fsigned-char", "-fno-exceptions", "-fno-rtti",
    "-fwrapv", "-fno-strict-aliasing", "-fno-math-errno", "-fPIC", "-g1",
    # half rounds after every operation, and a literal without suffix is a float.
    "-Xclang", "-ffloat16-excess-precision=none", "-Xclang", "-cl-single-precision-constant",
    # A float that was never set is NaN.
    "-ftrivial-auto-var-init=pattern",
    "-w", "-Wno-reserved-user-defined-literal", "-Wno-static-float-init",
    f"-I{_SHIM.parent}",
]  # fmt: skip
_PROCESSOR = {"x86_64": ["-mf16c", "-mfma"], "aarch64": [], "arm64": []}
_ACCESSES = [
    "-fsanitize=thread", "-mllvm", "-tsan-instrument-func-entry-exit=0",
    "-mllvm", "-tsan-handle-cxx-exceptions=0", "-mllvm", "-tsan-instrument-read-before-write=1",
]  # fmt: skip
_UNDEFINED = ["-fsanitize=bounds,shift,integer-divide-by-zero,float-cast-overflow,bool,alignment"]
_ONE_BY_ONE = ["-fno-vectorize", "-fno-slp-vectorize"]
_MODES: Mapping[Mode, list[str]] = {
    "fast": ["-ffp-contract=off"],
    "checked": ["-ffp-contract=off", *_ONE_BY_ONE, *_ACCESSES, *_UNDEFINED],
    "counted": ["-ffp-contract=fast", *_ONE_BY_ONE, *_ACCESSES, "-DRUNNER_COUNTED"],
}


def preprocess(text: str, name: str, folders: Iterable[Path], defines: Mapping[str, str]) -> str:
    """The source with its includes and macros resolved as Metal 3.1 would, line markers kept."""
    command = [
        tool("clang++"), "-E", "-x", "c++", "-std=c++17", "-nostdinc", "-undef",
        "-D__METAL__=1", "-D__METAL_VERSION__=310", "-isystem", str(_header_folder()),
        *(f"-I{folder}" for folder in folders), *(f"-D{k}={v}" for k, v in defines.items()), "-",
    ]  # fmt: skip
    return run_tool(command, f'#line 1 "{name}"\n{text}')


@functools.cache
def _header_folder() -> Path:
    def make(to: Path) -> None:
        for header in _HEADERS:
            path = to / header
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    return cached(f"headers-{content_key(*_HEADERS)}", make)


def to_ir(text: str, mode: Mode, *, optimised: bool) -> str:
    """Translated source to LLVM IR, before or after LLVM's passes and instrumentation."""
    passes = [] if optimised else ["-Xclang", "-disable-llvm-passes"]
    return _compile(text, [*_source_flags(mode), *passes, "-S", "-emit-llvm"], Path("-"))


def compile_library(text: str, mode: Mode, to: Path) -> None:
    """Translated source to a shared library whose open symbols the runtime fills in."""
    _link(text, _source_flags(mode), to)


def compile_ir(text: str, mode: Mode, to: Path, *, optimised: bool) -> None:
    """The same for IR; what is optimised has been instrumented already."""
    _link(text, [*_flags("fast" if optimised else mode), "-x", "ir"], to)


def _link(text: str, flags: Sequence[str], to: Path) -> None:
    unit = to.with_suffix(".o")
    open_symbols = ["-undefined", "dynamic_lookup"] if platform.system() == "Darwin" else []
    try:
        _compile(text, [*flags, "-c"], unit)
        run_tool([tool("clang++"), "-shared", "-nostdlib", *open_symbols, str(unit), "-o", str(to)])
    finally:
        unit.unlink(missing_ok=True)


def _compile(text: str, flags: Sequence[str], to: Path) -> str:
    return run_tool([tool("clang++"), *flags, "-", "-o", str(to)], text)


def _flags(mode: Mode) -> list[str]:
    # -O2 comes first: it would turn the vectorisers on again.
    return ["-O2", *_DIALECT, *_PROCESSOR[platform.machine()], *_MODES[mode]]


def _source_flags(mode: Mode) -> list[str]:
    return [*_flags(mode), "-include-pch", str(_precompiled_shim(mode)), "-x", "c++"]


@functools.cache
def _precompiled_shim(mode: Mode) -> Path:
    """The shim as clang has read it: most of the time of a small kernel would go there."""

    def make(to: Path) -> None:
        flags = [*_flags(mode), "-x", "c++-header", "-Xclang", "-fno-pch-timestamp"]
        run_tool([tool("clang++"), *flags, str(_SHIM), "-o", str(to)])

    return cached(f"{content_key('shim', mode, str(_SHIM))}.pch", make)


def compile_runtime(to: Path) -> None:
    """The emulated GPU itself, as one unit, which takes half as long as file by file."""
    sources = sorted((HERE / "runtime").glob("*.cpp"))
    text = "".join(f'#include "{path}"\n' for path in sources)
    flags = ["-std=c++20", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    # Kernels find libm through it.
    math = [] if platform.system() == "Darwin" else ["-Wl,--no-as-needed", "-lm", "-ldl"]
    run_tool([tool("clang++"), *flags, "-x", "c++", "-", "-o", str(to), *math], text)


def check_syntax(text: str) -> list[str]:
    """What clang says of a translated source that it parses as C++ for OpenCL."""
    command = [
        tool("clang"), "-x", "clcpp", "-cl-std=clc++2021", "-cl-no-stdinc", "-fsyntax-only",
        "-fdeclspec", "-w", "-Wno-reserved-user-defined-literal", "-Wno-static-float-init",
        "-ferror-limit=0", "-fno-caret-diagnostics", f"-I{_SHIM.parent}", "-",
    ]  # fmt: skip
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return done.stderr.splitlines()


def places(library: Path, addresses: Iterable[int]) -> dict[int, str]:
    """``file:line`` for addresses within a library, the kernel's own places before the shim's."""
    wanted = sorted({a for a in addresses if a})
    if not wanted:
        return {}
    command = [tool("llvm-symbolizer"), f"--obj={library}", "--output-style=JSON", "--inlining"]
    read = json.loads(run_tool([*command, *map(hex, wanted)]))
    result = {}
    for address, entry in zip(wanted, read, strict=True):
        frames = [(Path(f["FileName"]), f["Line"]) for f in entry.get("Symbol", [])]
        named = [f for f in frames if f[0].name != ENTRIES]
        own = [f for f in named if f[0].parent != _SHIM.parent] or named
        result[address] = " in ".join(f"{file.name}:{line}" for file, line in own[:3])
    return result
