"""Make a folder with which clang on Linux compiles and links for arm64 macOS.

The compiler and the libc++ and libc headers come from the ziglang package, the linker is Debian's
ld64.lld, MLX's headers and metal-cpp come from its macOS wheel. Apple's libraries are stubs that
hold the symbols MLX itself imports from them.
"""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import ziglang
from mlx_wheels import system_symbols

__all__ = ["make_toolchain"]

_LINKER = "ld64.lld-19"

_STUBS = {
    "/usr/lib/libc++.1.dylib": "libc++.1.tbd",
    "/usr/lib/libobjc.A.dylib": "libobjc.tbd",
    "/usr/lib/libSystem.B.dylib": "libSystem.tbd",
}

# In the place of libc++'s __config_site, as on macOS. With availability markup on, nothing newer
# than the deployment target's own libc++ is referenced.
_LIBCXX = (
    "ABI_VERSION=1 ABI_NAMESPACE=__1 HAS_VENDOR_AVAILABILITY_ANNOTATIONS=1 HAS_THREADS=1 "
    "HAS_THREAD_API_PTHREAD=1 HAS_MONOTONIC_CLOCK=1 HAS_TERMINAL=1 HAS_MUSL_LIBC=0 "
    "HAS_FILESYSTEM=1 HAS_RANDOM_DEVICE=1 HAS_LOCALIZATION=1 HAS_UNICODE=1 HAS_WIDE_CHARACTERS=1 "
    "HAS_TIME_ZONE_DATABASE=0 PSTL_BACKEND_SERIAL=1 "
    "HARDENING_MODE=_LIBCPP_HARDENING_MODE_NONE "
    "ASSERTION_SEMANTIC_DEFAULT=_LIBCPP_ASSERTION_SEMANTIC_IGNORE"
)


def make_toolchain(folder: Path, site: Path) -> None:
    """Write ``bin``, ``lib`` and ``include`` below ``folder``.

    Args:
        folder: is replaced; ``toolchain.cmake`` takes it as ``MACOS_TOOLCHAIN``.
        site: MLX's wheels for the oldest macOS.

    Raises:
        SystemExit: without the linker.
    """
    linker = shutil.which(_LINKER)
    if linker is None:
        raise SystemExit(f"{_LINKER} is missing; run: apt-get install lld-19")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(Path(__file__).parent / "include", folder / "include")
    (folder / "include/python-host").symlink_to(sysconfig.get_path("include"))

    (folder / "lib").mkdir()
    known = system_symbols(site)
    for library, name in _STUBS.items():
        (folder / "lib" / name).write_text(_stub(library, known[library]), encoding="utf-8")

    (folder / "bin").mkdir()
    (folder / "bin/ld64.lld").symlink_to(linker)
    zig = Path(ziglang.__file__).parent
    # `zig clang` is the bare driver; `zig c++` would link a libc++ of its own.
    _script(folder / "bin/clang++", f"{zig}/zig clang {' '.join(_flags(zig / 'lib', folder))}")
    _script(folder / "bin/ar", f"{zig}/zig ar")
    _script(folder / "bin/ranlib", f"{zig}/zig ranlib")


def _flags(lib: Path, folder: Path) -> list[str]:
    headers = [lib / "libcxx/include", lib / "libcxxabi/include", lib / "include"]
    headers += [lib / "libc/include/any-darwin-any", folder / "include"]
    return [
        "--driver-mode=g++",
        "--no-default-config",
        "-target arm64-apple-macosx",
        "-mcpu=apple-m1",
        "-nostdinc -nostdinc++",
        "-fno-sized-deallocation",  # as Apple's clang
        *(f"-D_LIBCPP_{define}" for define in _LIBCXX.split()),
        *(f"-isystem {path}" for path in headers),
    ]


def _stub(library: str, symbols: dict[str, bool]) -> str:
    """A text-based library with these symbols (name -> weak)."""
    lines = ["--- !tapi-tbd", "tbd-version: 4", "targets: [ arm64-macos ]"]
    lines += [f"install-name: '{library}'", "exports:", "  - targets: [ arm64-macos ]"]
    for key, wanted in (("symbols", False), ("weak-symbols", True)):
        names = [f"'{name}'" for name, weak in sorted(symbols.items()) if weak == wanted]
        if names:
            lines.append(f"    {key}: [ {', '.join(names)} ]")
    return "\n".join([*lines, "...", ""])


def _script(path: Path, command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
