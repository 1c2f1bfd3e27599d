"""NVIDIA ModelOpt: one algorithm for the model or one a layer, with wildcards of exceptions."""

import fnmatch
import re
from collections.abc import Mapping
from typing import Any

from mixbit.errors import MixbitError
from mixbit.plan.model import Plan
from mixbit.plan.readers.hf import Hit, block_of, finished, gather, number
from mixbit.plan.readers.request import Request
from mixbit.plan.spec import QuantSpec


def accepts(request: Request) -> bool:
    """Whether there is a ``quant_algo``, in the block or nested in it."""
    return "quant_algo" in _settings(request)


def read(request: Request) -> Plan:
    """Read the algorithm, the layers' own ones, and the exceptions."""
    structure = request.model(request.document)
    settings = _settings(request)
    entries = request.entries(structure)
    excluded = [
        re.compile(fnmatch.translate(str(pattern)))
        for key in ("exclude_modules", "ignore")
        for pattern in _listed(settings, key, request.path)
    ]
    base: QuantSpec | None = None
    if settings["quant_algo"] == "MIXED_PRECISION":
        layers = settings.get("quantized_layers")
        if not isinstance(layers, dict):
            raise MixbitError(f"{request.path}: MIXED_PRECISION needs quantized_layers.")
        for key, layer in layers.items():
            entries.add(key, _spec(layer, f"{request.path}: {key}"))
    else:
        base = _spec(settings, str(request.path))
    named = entries.named()
    gather(
        entries,
        lambda name: Hit(None) if any(p.match(name) for p in excluded) and name not in named
        else None,
    )  # fmt: skip
    return finished(
        request, structure, entries, base, lambda shape: shape.kind != "embedding",
        format_name="modelopt",
    )  # fmt: skip


def _settings(request: Request) -> dict[str, Any]:
    # hf_quant_config.json nests the settings, config.json does not.
    for block in (request.document, block_of(request)):
        nested = block.get("quantization")
        if isinstance(nested, dict) and "quant_algo" in nested:
            return nested
    return block_of(request)


def _listed(settings: Mapping[str, Any], key: str, origin: object) -> list[object]:
    value = settings.get(key) or []
    if not isinstance(value, list):
        raise MixbitError(f"{origin}: {key} must be a list.")
    return value


def _spec(settings: object, where: str) -> QuantSpec | None:
    if not isinstance(settings, dict):
        raise MixbitError(f"{where} must be an object.")
    algorithm = settings.get("quant_algo")
    if algorithm is None:
        return None
    if algorithm == "NVFP4":
        spec = QuantSpec(4, number(settings, "group_size", where, 16), "nvfp4")
    elif algorithm in ("W4A16_AWQ", "W4A8_AWQ"):
        spec = QuantSpec(4, number(settings, "group_size", where, 128))
    else:
        raise MixbitError(f"{where} is quantised by {algorithm}, which MLX has no packing for.")
    if fault := spec.violation():
        raise MixbitError(f"{where}: {fault}.")
    return spec
