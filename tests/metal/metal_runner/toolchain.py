"""The compiler, and the cache that keeps what it made by content."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from .errors import SourceError

Mode = Literal["fast", "checked", "counted"]

HERE = Path(__file__).resolve().parent
ENTRIES = "entries"  # the file that generated code is said to be in
_VERSION = 19
_PLACES = (
    f"/usr/lib/llvm-{_VERSION}/bin",
    f"/opt/homebrew/opt/llvm@{_VERSION}/bin",
    f"/usr/local/opt/llvm@{_VERSION}/bin",
)
_KEPT_SECONDS = 14 * 24 * 3600

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
    f"-I{HERE / 'shim'}",
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


@functools.cache
def tool(name: str) -> str:
    """Path of ``clang++``, ``clang`` or ``llvm-symbolizer`` in version 19. Raises SourceError."""
    found = shutil.which(f"{name}-{_VERSION}") or shutil.which(name, path=os.pathsep.join(_PLACES))
    if found is None:
        mend = "brew install llvm@19" if platform.system() == "Darwin" else "make setup"
        raise SourceError(f"{name} {_VERSION}, which runs Metal kernels here, is missing: {mend}")
    return found


def run_tool(command: Sequence[str], text: str = "") -> str:
    """Standard output of a command that reads ``text``. Raises SourceError with what it said."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SourceError(f"{Path(command[0]).name} refuses the source:\n{done.stderr[:6000]}")
    return done.stdout


def content_key(*parts: str | bytes) -> str:
    """A name for what these parts, this tool and this processor make."""
    return _hashed(_tool_key().encode(), *parts)


def _hashed(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:32]


@functools.cache
def _tool_key() -> str:
    files = sorted(p for p in HERE.rglob("*") if p.suffix in (".py", ".h", ".cpp"))
    return _hashed(platform.machine(), tool("clang++"), *(p.read_bytes() for p in files))


@functools.cache
def cache() -> Path:
    """The folder of everything built; what nobody used for two weeks is removed."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "mixbit" / "metal-runner"
    folder.mkdir(parents=True, exist_ok=True)
    oldest = time.time() - _KEPT_SECONDS
    for path in folder.iterdir():
        if path.is_file() and path.stat().st_mtime < oldest:
            path.unlink(missing_ok=True)
    return folder


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """Path of the cached file ``name``; ``make`` writes it, once even if processes race for it."""
    path = cache() / name
    if not path.exists():
        with (cache() / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                beside = path.with_name(f"{path.stem}.{os.getpid()}{path.suffix}")
                try:
                    make(beside)
                    beside.rename(path)
                finally:
                    beside.unlink(missing_ok=True)
    os.utime(path)
    return path


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
    folder = cache() / "headers"
    for header in _HEADERS:
        path = folder / header
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def to_ir(text: str, mode: Mode, *, optimised: bool) -> str:
    """Translated source to LLVM IR, before or after LLVM's passes and instrumentation."""
    passes = [] if optimised else ["-Xclang", "-disable-llvm-passes"]
    flags = [*_flags(mode), *passes, "-S", "-emit-llvm"]
    return run_tool([tool("clang++"), *flags, "-x", "c++", "-", "-o", "-"], text)


def compile_library(text: str, mode: Mode, to: Path) -> None:
    """Translated source to a shared library whose open symbols the runtime fills in."""
    _compile(text, [*_flags(mode), "-x", "c++"], to)


def compile_ir(text: str, mode: Mode, to: Path, *, optimised: bool) -> None:
    """The same for IR; what is optimised has been instrumented already."""
    _compile(text, [*_flags("fast" if optimised else mode), "-x", "ir"], to)


def _compile(text: str, flags: Sequence[str], to: Path) -> None:
    unit = to.with_suffix(".o")
    open_symbols = ["-undefined", "dynamic_lookup"] if platform.system() == "Darwin" else []
    try:
        run_tool([tool("clang++"), *flags, "-c", "-", "-o", str(unit)], text)
        run_tool([tool("clang++"), "-shared", *open_symbols, str(unit), "-o", str(to), "-lm"])
    finally:
        unit.unlink(missing_ok=True)


def _flags(mode: Mode) -> list[str]:
    # -O2 comes first: it would turn the vectorisers on again.
    return ["-O2", *_DIALECT, *_PROCESSOR[platform.machine()], *_MODES[mode]]


def compile_runtime(to: Path) -> None:
    """The emulated GPU itself, as one unit, which takes half as long as file by file."""
    sources = sorted((HERE / "runtime").glob("*.cpp"))
    text = "".join(f'#include "{path}"\n' for path in sources)
    flags = ["-std=c++20", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    run_tool([tool("clang++"), *flags, "-x", "c++", "-", "-o", str(to), "-ldl"], text)


def check_syntax(text: str) -> list[str]:
    """What clang says of a translated source that it parses as C++ for OpenCL."""
    command = [
        tool("clang"), "-x", "clcpp", "-cl-std=clc++2021", "-cl-no-stdinc", "-fsyntax-only",
        "-fdeclspec", "-w", "-Wno-reserved-user-defined-literal", "-Wno-static-float-init",
        "-ferror-limit=0", "-fno-caret-diagnostics", f"-I{HERE / 'shim'}", "-",
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
        own = [f for f in named if f[0].parent != HERE / "shim"] or named
        result[address] = " in ".join(f"{file.name}:{line}" for file, line in own[:3])
    return result
