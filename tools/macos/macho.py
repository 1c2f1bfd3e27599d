"""What a Mach-O file imports and exports, and whether its signature holds."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import lief

__all__ = ["FLAT", "Import", "MachO", "signature_problem"]

FLAT = "flat"
"""In the place of a library: any loaded image may provide the symbol."""

_SUPERBLOB, _CODE_DIRECTORY = 0xFADE0CC0, 0xFADE0C02
_ADHOC, _SHA256 = 0x2, 2


@dataclass(frozen=True)
class Import:
    """A symbol that the loader has to find."""

    name: str
    library: str
    """Install name of the library, or :data:`FLAT`."""
    weak: bool
    """Bound to the first definition in any image, as ``operator new`` is."""


class MachO:
    """One Mach-O file with one architecture.

    Raises:
        ValueError: if it is something else.
    """

    def __init__(self, path: Path) -> None:
        fat = lief.MachO.parse(str(path))
        if fat is None:
            raise ValueError(f"{path.name} is no Mach-O file")
        self._fat = fat  # its parts die with it
        if fat.size != 1:
            raise ValueError(f"{path.name} holds {fat.size} architectures")
        self.path = path
        self.binary = fat.at(0)

    @cached_property
    def identity(self) -> str | None:
        """The install name of a library."""
        return next((lib.name for lib in self.binary.libraries if _is_identity(lib)), None)

    @cached_property
    def libraries(self) -> list[str]:
        """Install names of the libraries it loads, in the order of their ordinals."""
        return [lib.name for lib in self.binary.libraries if not _is_identity(lib)]

    @cached_property
    def rpaths(self) -> list[str]:
        """Folders in which ``@rpath`` libraries are looked for."""
        return [rpath.path for rpath in self.binary.rpaths]

    @cached_property
    def imports(self) -> list[Import]:
        """All symbols that are bound; names that stand in the symbol table only are left out."""
        return list(self._imports())

    def _imports(self) -> Iterator[Import]:
        for symbol in self.binary.imported_symbols:
            if symbol.has_binding_info and symbol.binding_info.has_library:
                yield Import(symbol.name, symbol.binding_info.library.name, weak=False)
            elif 0 < symbol.library_ordinal <= len(self.libraries):
                # A weak binding names no library; the symbol table still does.
                yield Import(symbol.name, self.libraries[symbol.library_ordinal - 1], weak=True)
            elif symbol.has_binding_info:
                yield Import(symbol.name, FLAT, weak=False)

    @cached_property
    def exports(self) -> frozenset[str]:
        """Symbols that others can bind to."""
        return frozenset(symbol.name for symbol in self.binary.exported_symbols)

    @cached_property
    def minimum_macos(self) -> str:
        """The oldest macOS it says to run on, as "14.0.0"."""
        return ".".join(map(str, self.binary.build_version.minos))

    @cached_property
    def strings(self) -> frozenset[bytes]:
        """The C strings in its constant data."""
        found: set[bytes] = set()
        for section in self.binary.sections:
            if section.name in ("__cstring", "__const"):
                found.update(bytes(section.content).split(b"\0"))
        return frozenset(found)


def _is_identity(library: lief.MachO.DylibCommand) -> bool:
    return library.command == lief.MachO.LoadCommand.TYPE.ID_DYLIB


def signature_problem(macho: MachO) -> str | None:
    """Why the kernel would refuse the ad-hoc code signature, or ``None``.

    arm64 macOS runs nothing unsigned. The layout is Apple's CodeDirectory (cs_blobs.h of XNU).
    """
    command = macho.binary.code_signature
    if command is None:
        return "it is not signed"
    data = macho.path.read_bytes()
    directory = _code_directory(data[command.data_offset :][: command.data_size])
    if directory is None:
        return "its signature has no SHA-256 code directory"
    flags, hashes_at, _, _, count, limit = struct.unpack_from(">12x6I", directory)
    hash_size, page_log2 = struct.unpack_from(">BxxB", directory, 36)
    if not flags & _ADHOC:
        return f"its signature is not ad-hoc (flags {flags:#x})"
    if limit != command.data_offset:
        return f"its signature covers {limit} bytes instead of {command.data_offset}"
    page = 1 << page_log2
    if count != -(-limit // page):
        return f"its signature has {count} hashes for {limit} bytes"
    for index in range(count):
        code = data[index * page : min((index + 1) * page, limit)]
        at = hashes_at + index * hash_size
        if hashlib.sha256(code).digest()[:hash_size] != directory[at : at + hash_size]:
            return f"page {index} differs from its signature"
    return None


def _code_directory(blob: bytes) -> bytes | None:
    """The SHA-256 code directory of a signature's superblob."""
    magic, _, count = struct.unpack_from(">3I", blob)
    if magic != _SUPERBLOB:
        return None
    for index in range(count):
        (at,) = struct.unpack_from(">4xI", blob, 12 + 8 * index)
        (magic,) = struct.unpack_from(">I", blob, at)
        if magic == _CODE_DIRECTORY and blob[at + 37] == _SHA256:
            return blob[at:]
    return None
