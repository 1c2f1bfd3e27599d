"""Formats with one width for the whole model and a list of exceptions: AWQ, mxfp4, mxfp8, fp8.

Comes last among the readers of ``quantization_config``, and refuses by name what is none of them.
"""

from collections.abc import Mapping
from typing import Any

from mixbit.errors import MixbitError
from mixbit.plan.model import Plan
from mixbit.plan.readers.hf import (
    Hit,
    base_spec,
    block_of,
    finished,
    gather,
    in_layers,
    is_router,
)
from mixbit.plan.readers.request import Request
from mixbit.plan.spec import QuantSpec


def accepts(request: Request) -> bool:
    """Whether the block names a method at all."""
    return "quant_method" in block_of(request)


def read(request: Request) -> Plan:
    """Read the one width; modules that an exception occurs in the name of are left as they are."""
    block = block_of(request)
    base = _base(block, request.path)
    structure = request.model(request.document)
    exceptions = block.get("modules_to_not_convert") or []
    if not isinstance(exceptions, list):
        raise MixbitError(f"{request.path}: modules_to_not_convert must be a list.")
    entries = request.entries(structure)
    # Whole components only: "mlp.gate" is the router and not "mlp.gate_proj".
    gather(
        entries,
        lambda name: Hit(None) if any(f".{e}." in f".{name}." for e in exceptions) else None,
    )
    return finished(
        request, structure, entries, base,
        lambda shape: in_layers(shape) and not is_router(shape),
        format_name=str(block["quant_method"]),
    )  # fmt: skip


def _base(block: Mapping[str, Any], origin: object) -> QuantSpec:
    method = block["quant_method"]
    if method == "awq":
        return base_spec(block, origin)
    if method == "mxfp4":
        return QuantSpec(4, 32, "mxfp4")
    ue8m0 = block.get("scale_fmt") == "ue8m0" and block.get("weight_block_size") == [32, 32]
    if method == "mxfp8" or (method == "fp8" and ue8m0):
        return QuantSpec(8, 32, "mxfp8")
    raise MixbitError(f"{origin} is quantised as {method}, which mixbit does not read.")
