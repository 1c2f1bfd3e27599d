"""mixbit's own ``plan.json``."""

from collections.abc import Mapping
from typing import Any

from mixbit.checkpoint import ModelStructure
from mixbit.errors import MixbitError
from mixbit.plan.model import PLAN_SCHEMA, Plan
from mixbit.plan.readers.request import Request
from mixbit.plan.spec import QuantSpec


def accepts(request: Request) -> bool:
    """Whether the file says of itself that it is a plan."""
    return str(request.document.get("schema", "")).startswith("mixbit.plan/")


def read(request: Request) -> Plan:
    """Read a ``plan.json``; the model it was made for stands in where none is given."""
    return plan_of_document(request.document, str(request.path), request.structure)


def plan_of_document(
    document: Mapping[str, Any], origin: str, structure: ModelStructure | None = None
) -> Plan:
    """Read the JSON object of a plan.

    Args:
        document: what :meth:`mixbit.plan.Plan.to_json` wrote.
        origin: where it was read, for messages.
        structure: the model, else the one that the document holds.

    Raises:
        MixbitError: the schema is another version's, or something in it is malformed.
    """
    if document.get("schema") != PLAN_SCHEMA:
        raise MixbitError(
            f"{origin} has schema {document.get('schema')!r}, but this mixbit reads {PLAN_SCHEMA}."
        )
    modules, provenance = document.get("modules"), document.get("provenance", {})
    if not isinstance(modules, dict) or not isinstance(provenance, dict):
        raise MixbitError(f"{origin} needs objects for modules and provenance.")
    if structure is None and "model" in document:
        structure = _structure(document["model"], origin)
    return Plan(
        {path: _spec(entry, path, origin) for path, entry in modules.items()},
        str(document.get("name", "custom")),
        provenance,
        structure,
        method=document.get("method"),
        methods={path: e["method"] for path, e in modules.items() if e and "method" in e},
    )


def _spec(entry: object, path: str, origin: str) -> QuantSpec | None:
    if entry is False:
        return None
    if isinstance(entry, dict) and entry.keys() - {"method"} == {"bits", "group_size", "mode"}:
        bits, group_size, mode = entry["bits"], entry["group_size"], entry["mode"]
        if type(bits) is int and type(group_size) is int and isinstance(mode, str):
            return QuantSpec(bits, group_size, mode)
    raise MixbitError(
        f"{origin}: {path} must be false or hold whole numbers bits and group_size and a mode, and "
        "may hold a method."
    )


def _structure(document: object, origin: str) -> ModelStructure:
    try:
        if isinstance(document, dict):
            return ModelStructure.from_json(document)
        raise TypeError("not an object")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MixbitError(f"{origin}: the model it describes is malformed ({error}).") from None
