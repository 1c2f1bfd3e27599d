"""MLX's macOS wheels, unpacked: the native code is compiled, linked and checked against them."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from macho import FLAT, MachO
from packaging.requirements import Requirement

__all__ = ["MACOS_VERSIONS", "MINIMUM", "fetch", "pinned", "system_symbols"]

ROOT = Path(__file__).parents[2]
MACOS_VERSIONS = (14, 15, 26)
"""Those for which there are wheels of MLX."""

MINIMUM = MACOS_VERSIONS[0]

# Here too, in every macOS that runs on arm64, though MLX needs none of them. A link that misses a
# symbol says so; it belongs here if libc++'s or Apple's headers know it without an availability
# mark, or with one below MINIMUM.
_ALSO_THERE = {
    "/usr/lib/libSystem.B.dylib": ("_getpid", "_wmemchr"),
    "/usr/lib/libc++.1.dylib": (
        "___dynamic_cast",
        "__ZNSt3__19to_stringEj",
        "__ZNSt3__113basic_istreamIcNS_11char_traitsIcEEE6sentryC1ERS3_b",
        "__ZNSt3__15mutex8try_lockEv",
        "__ZNSt3__16thread6detachEv",
        "__ZdaPvSt11align_val_t",
        "__ZnamSt11align_val_t",
    ),
}


def pinned() -> dict[str, str]:
    """The versions that the package demands exactly, e.g. ``{"mlx": "0.32.4", …}``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = {}
    for text in project["dependencies"]:
        requirement = Requirement(text)
        for specifier in requirement.specifier:
            if specifier.operator == "==":
                found[requirement.name] = specifier.version
    return found


def fetch(folder: Path) -> list[Path]:
    """Unpack the wheels for each of :data:`MACOS_VERSIONS` below ``folder``, unless they are there.

    Returns:
        One site-packages folder for each.
    """
    pins = pinned()
    names = [f"{name}=={version}" for name, version in pins.items() if name != "mlx"]
    names += [f"mlx=={pins['mlx']}", f"mlx-metal=={pins['mlx']}"]
    sites = []
    for macos in MACOS_VERSIONS:
        site = folder / f"macos-{macos}"
        wanted = "\n".join(names)
        stamp = site / "fetched.txt"
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
            shutil.rmtree(site, ignore_errors=True)
            options = ["--no-deps", "--no-compile", "--only-binary=:all:"]
            options += ["--implementation", "cp", "--python-version", "3.12"]
            options += ["--platform", f"macosx_{macos}_0_arm64", "--target", str(site)]
            pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            subprocess.run([*pip, *options, *names], check=True)
            stamp.write_text(wanted, encoding="utf-8")
        sites.append(site)
    return sites


@functools.cache
def system_symbols(site: Path) -> dict[str, dict[str, bool]]:
    """What is known to be in macOS's libraries: name -> weak, by install name.

    It is what MLX's wheels import from them, and a few more names. So code that links against
    these needs nothing that MLX does not need on the same macOS.
    """
    known: dict[str, dict[str, bool]] = {}
    for path in sorted([*site.rglob("*.so"), *site.rglob("*.dylib")]):
        for wanted in MachO(path).imports:
            if wanted.library != FLAT and not wanted.library.startswith("@"):
                symbols = known.setdefault(wanted.library, {})
                symbols[wanted.name] = symbols.get(wanted.name, True) and wanted.weak
    for library, names in _ALSO_THERE.items():
        known[library].update(dict.fromkeys(names, False))
    return known
