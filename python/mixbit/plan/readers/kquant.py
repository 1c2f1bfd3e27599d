"""mlx-kquant: a codec of llama.cpp's for each tensor, in ``quantization.per_tensor``."""

from typing import Any

from mixbit.errors import MixbitError
from mixbit.plan import ggml
from mixbit.plan.model import Plan
from mixbit.plan.readers.request import Request, block_in


def accepts(request: Request) -> bool:
    """Whether the block's mode is ``kquant``."""
    return _block(request).get("mode") == "kquant"


def read(request: Request) -> Plan:
    """Read the codecs as the nearest packing of MLX's; a tensor that is not named is dense."""
    structure = request.model(request.document)
    per_tensor = _block(request).get("per_tensor")
    if not isinstance(per_tensor, dict):
        raise MixbitError(f"{request.path}: a kquant block needs an object per_tensor.")
    entries = request.entries(structure)
    for key, codec in per_tensor.items():
        entries.add(key, ggml.spec_of(str(codec), f"{request.path}: {key}"))
    provenance: dict[str, Any] = {"format": "kquant"}
    if notes := [*entries.notes(), *ggml.inexact(set(map(str, per_tensor.values())))]:
        provenance["notes"] = notes
    return Plan(entries.settled(), str(request.path), provenance, structure)


def _block(request: Request) -> dict[str, Any]:
    block = block_in(request.document, "quantization")
    return block or block_in(request.document, "quantization_config") or request.document
