"""A plan from a ranking of modules and a size."""

import heapq
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from mixbit.checkpoint import ModelStructure
from mixbit.errors import MixbitError
from mixbit.plan.check import nearest
from mixbit.plan.model import Plan
from mixbit.plan.report import module_bytes, report
from mixbit.plan.spec import QuantSpec

if TYPE_CHECKING:
    from mixbit.plan.readers.request import Request

Candidates = tuple[str, Mapping[int, float]]
"""A key for a module, and what each width costs there, in any unit that all share."""


def ranked_plan(
    ranking: Iterable[Candidates],
    structure: ModelStructure,
    request: "Request",
    format_name: str,
    *,
    group_size: int = 64,
) -> Plan:
    """Raise modules from their lowest width, the best gain per byte first, until the size is met.

    Modules that the ranking leaves out stay as they are.

    Raises:
        MixbitError: no size is given or it cannot be met, or a key names no module.
    """
    if request.target_bpw is None:
        raise MixbitError(
            f"{request.path} holds a ranking without bits; give the size that the plan shall have, "
            "in bits per weight (target_bpw, --target-bpw)."
        )
    shapes = {shape.path: shape for shape in structure.modules}
    table = request.entries(structure).table
    costs: dict[str, Mapping[int, float]] = {}
    for key, widths in ranking:
        meaning = table.find(key)
        if meaning is None:
            raise MixbitError(
                f"{request.path} ranks {key}, which is no module of this {structure.model_type} "
                f"model that can be quantised{nearest(key, shapes)}."
            )
        if not all(map(math.isfinite, widths.values())):
            raise MixbitError(f"{request.path}: the value of {key} is not finite.")
        costs |= dict.fromkeys(meaning.paths, widths)

    modules: dict[str, QuantSpec | None] = dict.fromkeys(shapes)
    steps: list[tuple[float, str, int]] = []
    for path, widths in costs.items():
        spec = QuantSpec(min(widths), group_size)
        if spec.violation(shapes[path].in_dims) is None:
            modules[path] = spec
            _push(steps, path, spec.bits, widths, shapes[path].params)
    start = Plan(modules, str(request.path), {}, structure)
    budget = request.target_bpw * structure.params / 8 - report(start, structure)["bytes"]
    if budget < 0:
        raise MixbitError(
            f"{request.path}: {request.target_bpw} bits per weight cannot be met; the "
            f"lowest widths take {report(start, structure)['bpw']:.3f}."
        )
    while steps:
        _, path, bits = heapq.heappop(steps)
        old, new = modules[path], QuantSpec(bits, group_size)
        growth = module_bytes(shapes[path], new) - module_bytes(shapes[path], old)
        if growth <= budget:
            budget -= growth
            modules[path] = new
            _push(steps, path, bits, costs[path], shapes[path].params)
    provenance = {"format": format_name, "target_bpw": request.target_bpw}
    return Plan(modules, str(request.path), provenance, structure)


def _push(
    steps: list[tuple[float, str, int]],
    path: str,
    bits: int,
    widths: Mapping[int, float],
    params: int,
) -> None:
    """Queue the next higher width of a module, by its gain per added bit of all weights."""
    higher = [width for width in widths if width > bits]
    if higher:
        gain = (widths[bits] - widths[min(higher)]) / ((min(higher) - bits) * params)
        heapq.heappush(steps, (-gain, path, min(higher)))
