"""Find what would keep a macOS wheel of mixbit from working, without a Mac.

python tools/macos/verify.py WHEEL        one line for each fault; exit status 1 if there is any
"""

from __future__ import annotations

import email
import functools
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import lief
from macho import FLAT, MachO, signature_problem
from mlx_wheels import MINIMUM, ROOT, fetch, pinned, system_symbols
from packaging.requirements import Requirement

__all__ = ["problems"]

_MODULE = "mixbit/_core.abi3.so"
_KINDS = {_MODULE: "BUNDLE", "mixbit/libmixbit.dylib": "DYLIB"}
_FOLDERS = {
    "@rpath/libmixbit.dylib": "@loader_path",
    "@rpath/libmlx.dylib": "@loader_path/../mlx/lib",
}
_TAG = f"cp311-abi3-macosx_{MINIMUM}_0_arm64"
# Only the Metal side of the native code calls these.
_METAL_HOST = {"__ZN3mlx4core5metal6deviceENS0_6DeviceE", "_objc_msgSend"}
# Platform, ABI of the backend, version of the internals: types are shared where this is equal.
_NANOBIND_INTERNALS = re.compile(rb"nanobind_[a-z0-9_]*_a\d+_v\d+(?:_stable)?")


def problems(wheel: Path, sites: list[Path]) -> list[str]:
    """What is wrong with ``wheel``, one sentence each.

    Args:
        wheel: the file.
        sites: MLX's wheels, unpacked, of every macOS on which it shall work; the oldest first.
    """
    with tempfile.TemporaryDirectory() as scratch:
        content = Path(scratch)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(content)
        return [*_packaging(wheel, content), *_native(content, sites), *_abi3(wheel)]


def _packaging(wheel: Path, content: Path) -> Iterator[str]:
    """Tags, pins and the Metal sources."""
    (info,) = content.glob("*.dist-info")
    tags = _fields(info / "WHEEL", "Tag")
    if tags != [_TAG] or not wheel.name.endswith(f"-{_TAG}.whl"):
        yield f"{wheel.name} has the tag {', '.join(tags)} instead of {_TAG}"
    requirements = map(Requirement, _fields(info / "METADATA", "Requires-Dist"))
    demanded = {r.name: str(r.specifier) for r in requirements if not r.extras}
    for name, version in pinned().items():
        if demanded.get(name) != f"=={version}":
            yield f"METADATA demands {name}{demanded.get(name, '')} instead of {name}=={version}"
    sources = {path.name: path.read_bytes() for path in (ROOT / "metal").glob("*")}
    shipped = {path.name: path.read_bytes() for path in (content / "mixbit/metal").glob("*")}
    for name in sorted(sources.keys() | shipped.keys()):
        if sources.get(name) != shipped.get(name):
            yield f"mixbit/metal/{name} is not the metal/{name} of the source"


def _fields(path: Path, name: str) -> list[str]:
    return email.message_from_string(path.read_text(encoding="utf-8")).get_all(name, [])


def _native(content: Path, sites: list[Path]) -> Iterator[str]:
    """The native files: which there are, what they are, what they need."""
    found = {
        str(path.relative_to(content)): path
        for path in content.rglob("*")
        if path.suffix in (".so", ".dylib")
    }
    for name in sorted(found.keys() ^ _KINDS.keys()):
        yield f"{name} is {'unexpected' if name in found else 'missing'}"
    files: dict[str, MachO] = {}
    for name in sorted(found.keys() & _KINDS.keys()):
        try:
            files[name] = MachO(found[name])
        except ValueError as error:
            yield str(error)
    for name, macho in files.items():
        for fault in (*_layout(macho, _KINDS[name]), *_loading(macho)):
            yield f"{name}: {fault}"
    yield from _symbols(files, sites)
    if _MODULE in files:
        yield from _nanobind(files[_MODULE], sites)
    called = {wanted.name for macho in files.values() for wanted in macho.imports}
    for name in sorted(_METAL_HOST - called):
        yield f"the native code does not call {name}: its GPU part is missing"


def _layout(macho: MachO, kind: str) -> Iterator[str]:
    """Architecture, oldest macOS and signature."""
    header = macho.binary.header
    if header.cpu_type != lief.MachO.Header.CPU_TYPE.ARM64:
        yield f"it is for {header.cpu_type.name} instead of ARM64"
    if header.file_type.name != kind:
        yield f"it is a {header.file_type.name} instead of a {kind}"
    if macho.minimum_macos != f"{MINIMUM}.0.0":
        yield f"it needs macOS {macho.minimum_macos} instead of {MINIMUM}.0.0"
    if (fault := signature_problem(macho)) is not None:
        yield fault


def _loading(macho: MachO) -> Iterator[str]:
    """Names and folders by which the libraries are found."""
    if macho.identity not in (None, f"@rpath/{macho.path.name}"):
        yield f"its install name is {macho.identity}"
    for rpath in macho.rpaths:
        if rpath not in _FOLDERS.values():
            yield f"it looks for libraries in {rpath}"
    for library in macho.libraries:
        folder = _FOLDERS.get(library)
        if folder is None and not library.startswith("/usr/lib/"):
            yield f"it loads {library}"
        if folder is not None and folder not in macho.rpaths:
            yield f"it does not look for {library} in {folder}"


def _symbols(files: dict[str, MachO], sites: list[Path]) -> Iterator[str]:
    """Imports that nothing provides on one of the macOS versions."""
    system = system_symbols(sites[0])
    ours = {f"@rpath/{macho.path.name}": macho.exports for macho in files.values()}
    for site in sites:
        provided = {**system, **ours, "@rpath/libmlx.dylib": _exports_of_mlx(site)}
        for name, macho in files.items():
            for wanted in macho.imports:
                if wanted.library.startswith("/usr/lib/") and sys.platform == "darwin":
                    continue  # Apple's linker knows its libraries better
                if wanted.library == FLAT:
                    there = wanted.name.startswith(("_Py", "__Py"))
                else:
                    there = wanted.name in provided.get(wanted.library, ())
                if not there:
                    yield f"{name}: {wanted.library} has no {wanted.name} ({site.name})"


@functools.cache
def _exports_of_mlx(site: Path) -> frozenset[str]:
    return MachO(site / "mlx/lib/libmlx.dylib").exports


def _nanobind(module: MachO, sites: list[Path]) -> Iterator[str]:
    """Whether the module can exchange ``mx.array`` with MLX: equal internals, one domain."""
    for site in sites:
        core, backend = (
            set(_NANOBIND_INTERNALS.findall(next(site.glob(pattern)).read_bytes()))
            for pattern in ("mlx/core.*.so", "nanobind_backend/_nb_backend*.so")
        )
        if len(core) != 1 or core != backend:
            yield f"nanobind-backend has internals {backend}, mlx {core} ({site.name})"
        named = {b"nanobind_backend", b"mlx"} | {key.rpartition(b"_a")[0] for key in core}
        for text in sorted(named - module.strings):
            yield f"{_MODULE} does not name '{text.decode()}' to nanobind ({site.name})"


def _abi3(wheel: Path) -> Iterator[str]:
    """Names outside the stable ABI of the Python version in the tag."""
    command = [sys.executable, "-m", "abi3audit", "--strict", "--report", str(wheel)]
    run = subprocess.run(command, capture_output=True, text=True)
    if not run.stdout:
        yield f"abi3audit failed: {run.stderr.strip()}"
        return
    (report,) = json.loads(run.stdout)["specs"].values()
    for audited in report["wheel"]:
        result = audited["result"]
        where = f"the stable ABI of Python {result['baseline']}"
        for name in (*result["non_abi3_symbols"], *result["future_abi3_objects"]):
            yield f"{audited['name']}: {name} is not in {where}"


if __name__ == "__main__":
    faults = problems(Path(sys.argv[1]), fetch(ROOT / "build" / "macos"))
    print("\n".join(faults) or "no fault found")
    sys.exit(bool(faults))
