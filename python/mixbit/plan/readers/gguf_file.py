"""GGUF files: the types of their tensors, from the header alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mixbit.errors import MixbitError
from mixbit.plan import ggml
from mixbit.plan.model import Plan
from mixbit.plan.readers.request import Request

_MAGIC = b"GGUF"


def accepts(request: Request) -> bool:
    """Whether the file begins as a GGUF file does."""
    return request.magic == _MAGIC


def read(request: Request) -> Plan:
    """Read the nearest packing of MLX's for every tensor, for a model that must be given.

    A model that is split over files is read whole, whichever of them is given.
    """
    structure = request.model()
    entries = request.entries(structure)
    types = {name: kind for file in _files(request.path) for name, kind in _tensors(file)}
    mtp_layers = {name.split(".nextn.")[0] + "." for name in types if ".nextn." in name}
    used = set()
    for name, kind in types.items():
        meaning = entries.table.find(name)
        if name.startswith(tuple(mtp_layers)) or (meaning and meaning.kind == "fixed"):
            continue
        entries.add(name, ggml.spec_of(kind, f"{request.path}: {name}"))
        used.add(kind)
    provenance: dict[str, Any] = {"format": "gguf"}
    if notes := [*entries.notes(), *ggml.inexact(used)]:
        provenance["notes"] = notes
    return Plan(entries.settled(), request.path.stem, provenance, structure)


def _files(path: Path) -> list[Path]:
    """The file, or all files of its split model."""
    count = _field(_open(path), "split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return [path]
    stem = path.name.rpartition("-of-")[0].rpartition("-")[0]
    files = [path.with_name(f"{stem}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise MixbitError(f"{path} is one of {count} files, of which {missing.name} is missing.")
    return files


def _tensors(path: Path) -> Iterator[tuple[str, str]]:
    reader = _open(path)
    if _field(reader, "general.type", "model") == "imatrix":
        raise MixbitError(f"{path} is an importance matrix, which holds no types; give the model.")
    for tensor in reader.tensors:
        yield tensor.name, tensor.tensor_type.name


def _open(path: Path) -> Any:
    from gguf import GGUFReader  # pulls in numpy and more

    try:
        return GGUFReader(path)
    except Exception as error:
        # The library leaves whatever its arithmetic on a damaged header raises.
        raise MixbitError(
            f"{path} is truncated or not a sound GGUF file ({type(error).__name__}); "
            "fetch it again."
        ) from None


def _field(reader: Any, name: str, default: object) -> object:
    field = reader.get_field(name)
    return default if field is None else field.contents()
