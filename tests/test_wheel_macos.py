"""The wheel for macOS: built here by a cross compiler, and searched for faults.

The verifier is trusted because it names each of the faults planted below, in the real wheel.
"""

import fcntl
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

TOOLS = Path(__file__).parents[1] / "tools" / "macos"
sys.path.insert(0, str(TOOLS))

from build_wheel import build  # noqa: E402
from macho import FLAT, MachO  # noqa: E402
from mlx_wheels import ROOT, fetch  # noqa: E402
from verify import problems  # noqa: E402

MODULE, LIBRARY = "mixbit/_core.abi3.so", "mixbit/libmixbit.dylib"
SYSTEM, LIBMLX = "/usr/lib/libSystem.B.dylib", "@rpath/libmlx.dylib"

Edit = Callable[[bytes], bytes | None]


class Built(NamedTuple):
    """The wheel and what it is checked against."""

    wheel: Path
    sites: list[Path]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The wheel, built once in a process; processes share the object files."""
    work = ROOT / "build" / "macos"
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sites = fetch(work)
        return Built(build(tmp_path_factory.mktemp("wheel"), sites), sites)


def edited(wheel: Path, folder: Path, edits: dict[str, Edit]) -> Path:
    """A copy of the wheel in which members whose names end so are changed, or left out (None)."""
    copy = folder / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(copy, "w") as new:
        for name in old.namelist():
            content: bytes | None = old.read(name)
            for ending, edit in edits.items():
                if name.endswith(ending):
                    changed = edit(old.read(name))
                    assert changed != content
                    content = changed
            if content is not None:
                new.writestr(name, content)
    return copy


def replaced(old: bytes, new: bytes) -> Edit:
    """Every occurrence; the length stays."""
    assert len(old) == len(new)
    return lambda data: data.replace(old, new)


def at(offset: int, value: int) -> Edit:
    """A 32-bit field of the header."""
    return lambda data: data[:offset] + struct.pack("<I", value) + data[offset + 4 :]


def flipped(data: bytes) -> bytes:
    """One bit of the code."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def missing(_: bytes) -> None:
    """Leave the member out."""


def renamed_import(member: str, library: str, tmp_path: Path, wheel: Path) -> tuple[str, Edit]:
    """Another name for the first symbol that ``member`` takes from ``library``."""
    with zipfile.ZipFile(wheel) as archive:
        file = MachO(Path(archive.extract(member, tmp_path)))
    name = next(wanted.name for wanted in file.imports if wanted.library == library)
    new = f"{name[0]}~{name[2:]}"  # also no name of Python's any more
    return new, replaced(b"\0" + name.encode() + b"\0", b"\0" + new.encode() + b"\0")


def test_the_wheel_has_no_fault(built: Built) -> None:
    assert problems(*built) == []


@pytest.mark.parametrize(
    ("ending", "edit", "found"),
    [
        pytest.param(LIBRARY, at(4, 0x01000007), "for X86_64 instead of ARM64", id="architecture"),
        pytest.param(MODULE, at(12, 6), "a DYLIB instead of a BUNDLE", id="kind"),
        pytest.param(
            LIBRARY,
            replaced(
                struct.pack("<4I", 0x32, 32, 1, 14 << 16), struct.pack("<4I", 0x32, 32, 1, 15 << 16)
            ),
            "needs macOS 15.0.0",
            id="oldest macOS",
        ),
        pytest.param(LIBRARY, flipped, "differs from its signature", id="signed page"),
        pytest.param(
            LIBRARY,
            replaced(struct.pack(">I", 0xFADE0C02), struct.pack(">I", 0xFADE0C03)),
            "no SHA-256 code directory",
            id="no signature",
        ),
        pytest.param(
            MODULE,
            replaced(b"@loader_path/../mlx/lib", b"/opt/homebrew/lib/mlx/a"),
            "looks for libraries in /opt/homebrew",
            id="absolute rpath",
        ),
        pytest.param(
            LIBRARY,
            replaced(b"@rpath/libmixbit.dylib", b"/build/libmixbit.dylib"),
            "install name is /build",
            id="absolute install name",
        ),
        pytest.param(
            MODULE,
            replaced(b"@rpath/libmixbit.dylib", b"@rpath/libmixbyt.dylib"),
            "loads @rpath/libmixbyt",
            id="library",
        ),
        pytest.param(MODULE, replaced(b"\0mlx\0", b"\0mly\0"), "'mlx' to nanobind", id="domain"),
        pytest.param(
            MODULE,
            replaced(b"_libcpp_abi1\0", b"_libcpp_abi2\0"),
            "_abi1' to nanobind",
            id="platform",
        ),
        pytest.param(
            MODULE,
            replaced(b"\0_PyErr_SetString\0", b"\0_PyErr_SetStrinx\0"),
            "is not in the stable ABI",
            id="stable ABI",
        ),
        pytest.param(LIBRARY, missing, "libmixbit.dylib is missing", id="no library"),
        pytest.param(MODULE, lambda _: b"\x7fELF" * 9, "is no Mach-O file", id="Linux's file"),
        pytest.param("metal/params.h", missing, "metal/params.h is not", id="no Metal source"),
        pytest.param(
            "metal/params.h", lambda text: text + b"\n", "metal/params.h is not", id="Metal source"
        ),
        pytest.param(
            "/WHEEL", replaced(b"_14_0_", b"_13_0_"), "macosx_13_0_arm64 instead", id="tag"
        ),
        pytest.param(
            "/METADATA",
            replaced(b"mlx==0", b"mlx>=0"),
            "METADATA demands mlx>=0",
            id="pinned version",
        ),
    ],
)
def test_a_planted_fault_is_named(
    built: Built, tmp_path: Path, ending: str, edit: Edit, found: str
) -> None:
    faults = problems(edited(built.wheel, tmp_path, {ending: edit}), built.sites)
    assert any(found in fault for fault in faults), faults


IMPORTS = [(LIBRARY, LIBMLX), (MODULE, "@rpath/libmixbit.dylib"), (MODULE, FLAT)]
if sys.platform != "darwin":
    IMPORTS.append((LIBRARY, SYSTEM))


@pytest.mark.parametrize(("member", "library"), IMPORTS)
def test_a_symbol_that_nothing_provides_is_named(
    built: Built, tmp_path: Path, member: str, library: str
) -> None:
    name, edit = renamed_import(member, library, tmp_path, built.wheel)
    faults = problems(edited(built.wheel, tmp_path, {member: edit}), built.sites)
    assert f"{member}: {library} has no {name} (macos-14)" in faults


def test_a_build_without_metal_is_named(built: Built, tmp_path: Path) -> None:
    name = b"__ZN3mlx4core5metal6deviceENS0_6DeviceE"
    edit = replaced(name, name[:-1] + b"F")
    faults = problems(edited(built.wheel, tmp_path, {LIBRARY: edit}), built.sites)
    assert f"the native code does not call {name.decode()}: its GPU part is missing" in faults


def test_a_native_file_too_many_is_named(built: Built, tmp_path: Path) -> None:
    copy = edited(built.wheel, tmp_path, {})
    with zipfile.ZipFile(copy, "a") as archive:
        archive.writestr("mixbit/_core.cpython-311-x86_64-linux-gnu.so", b"\x7fELF")
    expected = "mixbit/_core.cpython-311-x86_64-linux-gnu.so is unexpected"
    assert expected in problems(copy, built.sites)


def test_every_macos_counts(built: Built, tmp_path: Path) -> None:
    """A libmlx without the symbols, and a backend of another nanobind, on the newest macOS only."""
    *others, newest = built.sites
    site = tmp_path / "planted"
    (site / "mlx/lib").mkdir(parents=True)
    (site / "nanobind_backend").mkdir()
    (core,) = newest.glob("mlx/core.*.so")
    (backend,) = newest.glob("nanobind_backend/*.so")
    (site / "mlx" / core.name).symlink_to(core)
    (site / "mlx/lib/libmlx.dylib").symlink_to(backend)
    other = backend.read_bytes().replace(b"_a1_v22\0", b"_a1_v23\0")
    (site / "nanobind_backend" / backend.name).write_bytes(other)
    faults = problems(built.wheel, [*others, site])
    assert all("(planted)" in fault for fault in faults)
    assert any("has internals" in fault for fault in faults)
    assert any("@rpath/libmlx.dylib has no" in fault for fault in faults)
