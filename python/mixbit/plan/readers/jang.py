"""JANG: ``jang_config.json`` of version 2, and its measured plans."""

from typing import Any

from mixbit.errors import MixbitError
from mixbit.plan.foreign import refuse_private
from mixbit.plan.model import Plan
from mixbit.plan.readers.request import Request, whole_number
from mixbit.plan.readers.table import object_rows, plan_of_rows

MANIFEST = "tensor_quantization_manifest"


def accepts(request: Request) -> bool:
    """Whether it says that it is JANG's, or is a measured plan: base bits and a list of modules."""
    document = request.document
    return str(document.get("format", "")).lower() in ("jang", "jjqf", "mxq", "jangtq") or (
        "base_bits" in document and isinstance(document.get("modules"), list)
    )


def read(request: Request) -> Plan:
    """Read the manifest or the list of modules."""
    document = request.document
    modules = document.get("modules")
    if isinstance(modules, list):
        return _measured(modules, request)
    refuse_private("mxtq" if str(document["format"]).lower() == "jangtq" else None,
                   str(request.path))  # fmt: skip
    version = str(document.get("format_version", ""))
    if not version.startswith("2"):
        raise MixbitError(
            f"{request.path} is JANG of version {version or 'unknown'}, whose .jang files mixbit "
            "does not read; version 2 is read."
        )
    block = document.get("quantization")
    block = block if isinstance(block, dict) else {}
    refuse_private(document.get("weight_format") or block.get("weight_format"), str(request.path))
    if "mxtq" in str(block.get("method", "")):
        refuse_private("mxtq", str(request.path))
    manifest = block.get(MANIFEST)
    if not isinstance(manifest, dict):
        raise MixbitError(
            f"{request.path} has no {MANIFEST}; give the checkpoint's folder, whose tensors tell."
        )
    group_size = whole_number(block.get("block_size")) or 64
    return plan_of_rows(object_rows(manifest, request.path), request, "jang", group_size=group_size)


def _measured(modules: list[Any], request: Request) -> Plan:
    document = request.document
    base, group_size = whole_number(document.get("base_bits")), document.get("group_size", 64)
    rows = []
    for entry in modules:
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            raise MixbitError(f"{request.path}: each of modules needs a path.")
        rows.append((entry["path"], entry.get("bits", base), entry.get("group_size"), None))
    return plan_of_rows(rows, request, "jang", group_size=whole_number(group_size) or 64)
