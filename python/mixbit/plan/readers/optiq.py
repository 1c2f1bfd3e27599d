"""mlx-optiq's ``metadata.json``, and the sensitivities it measured."""

from typing import Any

from mixbit.errors import MixbitError
from mixbit.plan.model import Plan
from mixbit.plan.ranking import Candidates, ranked_plan
from mixbit.plan.readers.request import Request, whole_number
from mixbit.plan.readers.table import object_rows, plan_of_rows

_METHODS = ("optiq_mixed_precision", "static_mixed_precision")


def accepts(request: Request) -> bool:
    """Whether it names one of optiq's methods, or lists sensitivities by layer."""
    document = request.document
    return document.get("method") in _METHODS or (
        isinstance(document.get("layers"), list) and "candidate_bits" in document
    )


def read(request: Request) -> Plan:
    """Read bits per layer; from sensitivities, make a plan of the size that the request gives."""
    if request.document.get("method") in _METHODS:
        table = _per_layer(request)
        return plan_of_rows(object_rows(table, request.path), request, "optiq")
    structure = request.model(request.document)
    group_size = whole_number(request.document.get("group_size", 64))
    ranking = [_candidates(layer, request) for layer in request.document["layers"]]
    return ranked_plan(ranking, structure, request, "optiq", group_size=group_size or 64)


def _per_layer(request: Request) -> dict[str, Any]:
    document = request.document
    nested = document.get("optimization")
    for place in (document, nested if isinstance(nested, dict) else {}):
        table = place.get("per_layer")
        if isinstance(table, dict):
            return table
    raise MixbitError(f"{request.path} holds no per_layer table.")


def _candidates(layer: object, request: Request) -> Candidates:
    if isinstance(layer, dict):
        name, costs = layer.get("layer_name"), layer.get("sensitivities")
        if isinstance(name, str) and isinstance(costs, dict) and costs:
            bits = {int(key): value for key, value in costs.items() if _is_width(key)}
            if len(bits) == len(costs) and all(type(v) in (int, float) for v in bits.values()):
                return name, bits
    raise MixbitError(f"{request.path}: each of layers needs layer_name and sensitivities.")


def _is_width(key: str) -> bool:
    return key.isascii() and key.isdecimal() and len(key) < 3
