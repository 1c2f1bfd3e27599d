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
        ``{"schema", "name", "bpw", "bytes", "params", "modules", "classes"}``. ``bytes`` counts all
        parameters with their scales, ``bpw`` is bits of those per parameter. Each of ``modules`` is
        ``{"path", "bits", "group_size", "mode", "in_dims", "out_dims", "experts", "bytes"}``.
        Each of ``classes`` is ``{"class", "modules", "params", "bits", "bytes", "bpw"}``: the
        modules of equal role and equal bits over all layers, and last ``other``, the parameters
        that are never quantised. ``bits`` is None for what is left as it is, counted at 16 bits.

    Raises:
        MixbitError: the plan does not fit the model.
    """
    check(plan, structure)
    rows = [(shape, plan.modules.get(shape.path)) for shape in structure.modules]
    other = structure.params - sum(shape.params for shape in structure.modules)
    classes = [_class_row(*group) for group in _by_class(rows)]
    if other:
        classes.append(_sized("other", 0, other, None, other * _DENSE_BITS // 8))
    total = sum(row["bytes"] for row in classes)
    return {
        "schema": REPORT_SCHEMA,
        "name": plan.name,
        "bpw": 8 * total / structure.params,
        "bytes": total,
        "params": structure.params,
        "modules": [_module_row(shape, spec) for shape, spec in rows],
        "classes": classes,
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


_Row = tuple[ModuleShape, QuantSpec | None]


def _by_class(rows: Iterable[_Row]) -> Iterable[tuple[str, int | None, list[_Row]]]:
    groups: dict[tuple[str, int | None], list[_Row]] = {}
    for shape, spec in rows:
        key = (module_class(shape.path), None if spec is None else spec.bits)
        groups.setdefault(key, []).append((shape, spec))
    return ((name, bits, group) for (name, bits), group in groups.items())


def _class_row(name: str, bits: int | None, rows: list[_Row]) -> dict[str, Any]:
    params = sum(shape.params for shape, _ in rows)
    nbytes = sum(module_bytes(shape, spec) for shape, spec in rows)
    return _sized(name, len(rows), params, bits, nbytes)


def _sized(name: str, modules: int, params: int, bits: int | None, nbytes: int) -> dict[str, Any]:
    return {
        "class": name,
        "modules": modules,
        "params": params,
        "bits": bits,
        "bytes": nbytes,
        "bpw": 8 * nbytes / params,
    }


def _module_row(shape: ModuleShape, spec: QuantSpec | None) -> dict[str, Any]:
    return {
        "path": shape.path,
        "bits": None if spec is None else spec.bits,
        "group_size": None if spec is None else spec.group_size,
        "mode": None if spec is None else spec.mode,
        "in_dims": shape.in_dims,
        "out_dims": shape.out_dims,
        "experts": shape.experts,
        "bytes": module_bytes(shape, spec),
    }
