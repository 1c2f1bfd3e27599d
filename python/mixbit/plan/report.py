"""How large a model becomes under a plan."""

import re
from collections.abc import Iterable
from typing import Any

from mixbit.checkpoint import ModelStructure, ModuleShape
from mixbit.plan.check import check
from mixbit.plan.model import Plan
from mixbit.plan.spec import QuantSpec

REPORT_SCHEMA = "mixbit.plan-report/1"
_DENSE_BITS = 16


def report(plan: Plan, structure: ModelStructure) -> dict[str, Any]:
    """Sizes of the model under the plan.

    Returns:
        ``{"schema", "name", "bpw", "bytes", "params", "modules", "classes", "layers",
        "provenance"}``. ``bytes`` counts all parameters with their scales, ``bpw`` is bits of those
        per parameter. Each of ``modules`` is ``{"path", "bits", "group_size", "mode", "method",
        "in_dims", "out_dims", "experts", "bytes"}``. Each of ``classes`` is ``{"class", "modules",
        "params", "bits", "group_size", "mode", "method", "bytes", "bpw"}``: the modules of equal
        role and equal values over all layers, and last ``other``, the parameters that are never
        quantised. ``bits`` is None for what is left as it is, counted at 16 bits; ``method`` where
        the plan names none. Each of ``layers`` is ``{"layer", "modules", "params", "bytes",
        "bpw"}`` over the modules of a layer that can be quantised; ``layer`` is None for those
        outside of layers.

    Raises:
        MixbitError: the plan does not fit the model.
    """
    check(plan, structure)
    rows = [_row(plan, shape) for shape in structure.modules]
    other = structure.params - sum(shape.params for shape in structure.modules)
    classes = [_class_row(*group) for group in _by_class(rows)]
    if other:
        classes.append(
            {"class": "other"} | _values(None, None) | _sized(0, other, other * _DENSE_BITS // 8)
        )
    total = sum(row["bytes"] for row in classes)
    return {
        "schema": REPORT_SCHEMA,
        "name": plan.name,
        "bpw": 8 * total / structure.params,
        "bytes": total,
        "params": structure.params,
        "modules": [_module_row(*row) for row in rows],
        "classes": classes,
        "layers": [{"layer": layer} | _totals(group) for layer, group in _by_layer(rows).items()],
        "provenance": dict(plan.provenance),
    }


def module_bytes(shape: ModuleShape, spec: QuantSpec | None) -> int:
    """Bytes of a module's weight, scales and biases included, with 16-bit floats."""
    if spec is None:
        return shape.params * _DENSE_BITS // 8
    return round(shape.params * spec.bits_per_weight) // 8


def module_class(path: str) -> str:
    """The role of a module, without its layer: ``mlp.down_proj``, ``lm_head``."""
    inner = re.sub(r"^.*?\blayers\.\d+\.", "", path)
    return inner if inner != path else path.rpartition(".")[2]


_Row = tuple[ModuleShape, QuantSpec | None, str | None]
"""A module, what it is quantised to, and by which method."""

_Class = tuple[str, QuantSpec | None, str | None]


def _row(plan: Plan, shape: ModuleShape) -> _Row:
    spec = plan.modules.get(shape.path)
    return shape, spec, None if spec is None else plan.method_of(shape.path)


def _by_class(rows: Iterable[_Row]) -> Iterable[tuple[_Class, list[_Row]]]:
    groups: dict[_Class, list[_Row]] = {}
    for row in rows:
        shape, spec, method = row
        groups.setdefault((module_class(shape.path), spec, method), []).append(row)
    return groups.items()


def _by_layer(rows: Iterable[_Row]) -> dict[int | None, list[_Row]]:
    groups: dict[int | None, list[_Row]] = {}
    for row in rows:
        match = re.search(r"\blayers\.(\d+)\.", row[0].path)
        groups.setdefault(int(match[1]) if match else None, []).append(row)
    return groups


def _class_row(key: _Class, rows: list[_Row]) -> dict[str, Any]:
    name, spec, method = key
    return {"class": name} | _values(spec, method) | _totals(rows)


def _totals(rows: list[_Row]) -> dict[str, Any]:
    params = sum(shape.params for shape, *_ in rows)
    nbytes = sum(module_bytes(shape, spec) for shape, spec, _ in rows)
    return _sized(len(rows), params, nbytes)


def _sized(modules: int, params: int, nbytes: int) -> dict[str, Any]:
    return {"modules": modules, "params": params, "bytes": nbytes, "bpw": 8 * nbytes / params}


def _values(spec: QuantSpec | None, method: str | None) -> dict[str, Any]:
    values = dict.fromkeys(("bits", "group_size", "mode")) if spec is None else spec.to_json()
    return values | {"method": method}


def _module_row(shape: ModuleShape, spec: QuantSpec | None, method: str | None) -> dict[str, Any]:
    return {
        "path": shape.path,
        **_values(spec, method),
        "in_dims": shape.in_dims,
        "out_dims": shape.out_dims,
        "experts": shape.experts,
        "bytes": module_bytes(shape, spec),
    }
