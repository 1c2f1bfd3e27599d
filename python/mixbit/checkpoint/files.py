"""Opening a checkpoint folder: its config, its weight files and their headers, all checked."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors import SafetensorError, safe_open

from mixbit.checkpoint.wording import and_more
from mixbit.errors import MixbitError

INDEX_NAME = "model.safetensors.index.json"

_DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as the header of its file describes it.

    Attributes:
        file: the file that holds it.
        dtype: safetensors' name of the element type, such as ``"BF16"``.
        shape: its dimensions.
        nbytes: bytes it takes in the file.
        offset: where in the file they begin.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int


@dataclass(frozen=True)
class Checkpoint:
    """A model folder whose config and headers have been read and checked; no weight is loaded.

    Attributes:
        folder: the folder.
        config: ``config.json`` as it stands.
        files: the weight files, in order of name.
        tensors: every tensor of those files by name.
    """

    folder: Path
    config: dict[str, Any]
    files: tuple[Path, ...]
    tensors: Mapping[str, TensorInfo]


def open_checkpoint(folder: Path | str) -> Checkpoint:
    """Read a checkpoint folder's ``config.json`` and the headers of its weight files.

    The weight files are those that ``model.safetensors.index.json`` names, else
    ``model*.safetensors`` directly in the folder; sidecars and subfolders are not looked at.

    Raises:
        MixbitError: something is missing, truncated or inconsistent; the message names the file.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise MixbitError(f"{folder} is not a folder; give the folder of a model.")
    config = read_config(folder)
    placement = _read_index(folder)
    files = _weight_files(folder, placement.values())
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        for name, info in read_header(file).items():
            if name in tensors:
                raise MixbitError(
                    f"Tensor {name} is in both {tensors[name].file.name} and {file.name} "
                    f"of {folder}; remove one of the two files."
                )
            tensors[name] = info
    for name, file_name in placement.items():
        if name not in tensors or tensors[name].file.name != file_name:
            raise MixbitError(
                f"{folder / INDEX_NAME} places tensor {name} in {file_name}, which does not "
                "hold it; fetch the model again."
            )
    return Checkpoint(folder, config, files, MappingProxyType(tensors))


def read_config(source: Path | str) -> dict[str, Any]:
    """Read a ``config.json``, given as the file or as the folder that holds it."""
    path = Path(source)
    return read_json(path / "config.json" if path.is_dir() else path)


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        MixbitError: the file is missing, is not JSON, or holds something else than an object.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MixbitError(f"{path} does not exist.") from None
    except OSError as error:
        raise MixbitError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise MixbitError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(document, dict):
        raise MixbitError(f"{path} must hold a JSON object, not {type(document).__name__}.")
    return document


def _read_index(folder: Path) -> dict[str, str]:
    """Tensor name to file name as the index has it; empty without an index."""
    path = folder / INDEX_NAME
    if not path.exists():
        return {}
    placement = read_json(path).get("weight_map")
    if not isinstance(placement, dict) or not placement:
        raise MixbitError(f"{path} has no weight_map; fetch the model again.")
    for file_name in set(map(str, placement.values())):
        # A plain name cannot lead out of the folder, whatever the file system.
        plain = Path(file_name).name == file_name and not {"\\", "\0"} & set(file_name)
        if not plain or not file_name.endswith(".safetensors"):
            raise MixbitError(
                f"{path} names {file_name!r}, which is not a weight file of its own folder."
            )
    return {name: str(file_name) for name, file_name in placement.items()}


def _weight_files(folder: Path, indexed: Iterable[str]) -> tuple[Path, ...]:
    files = sorted({folder / name for name in indexed}) or sorted(folder.glob("model*.safetensors"))
    if not files:
        raise MixbitError(f"{folder} holds no model*.safetensors; give the folder of a model.")
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise MixbitError(
            f"{folder} lacks {missing[0]}, which its index names"
            f"{and_more(len(missing) - 1)}; fetch the model again."
        )
    return tuple(files)


def read_header(file: Path) -> dict[str, TensorInfo]:
    """The tensors of a safetensors file.

    Raises:
        MixbitError: the file is missing, truncated or of another kind.
    """
    # safetensors checks on opening that the header is sound and that the offsets cover the file
    # exactly, so a truncated file is found here and not in the middle of the work.
    try:
        with safe_open(file, framework="numpy") as handle:
            names = list(handle.keys())
        with file.open("rb") as content:
            length = int.from_bytes(content.read(8), "little")
            header = json.loads(content.read(length))
    except (SafetensorError, OSError) as error:
        raise MixbitError(
            f"{file} is truncated or not a safetensors file ({error}); fetch it again."
        ) from None
    return {name: _tensor_info(file, name, header[name], 8 + length) for name in names}


def _tensor_info(file: Path, name: str, entry: Mapping[str, Any], data: int) -> TensorInfo:
    """What an entry of a checked header says; tensors begin behind byte ``data``."""
    dtype, shape = entry["dtype"], tuple(entry["shape"])
    if dtype not in _DTYPE_BITS:
        raise MixbitError(f"Tensor {name} in {file} has the unknown type {dtype}.")
    nbytes = math.prod(shape) * _DTYPE_BITS[dtype] // 8
    return TensorInfo(file, dtype, shape, nbytes, data + entry["data_offsets"][0])
