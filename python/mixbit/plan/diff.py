"""What differs between two plans."""

from typing import Any

from mixbit.plan.model import Plan
from mixbit.plan.report import module_bytes, module_class

DIFF_SCHEMA = "mixbit.plan-diff/1"


def diff(first: Plan, second: Plan) -> dict[str, Any]:
    """The modules to which two plans give different values.

    A module that a plan does not name is not quantised, which makes no difference to one that it
    names so. Methods are compared for modules to which a plan gives one of their own; what plans
    name for all the rest is told once.

    Returns:
        ``{"schema", "first", "second", "method", "modules", "bytes"}``: names of the plans;
        ``{"first", "second"}``, the methods that they name for all the rest or None; for each
        module that differs ``{"path", "class", "first", "second", "bytes"}``, the values as objects
        (with ``method`` where it is compared) or None, and the bytes by which the second is larger,
        None where the model is not known; and the sum of those.
    """
    structure = first.structure or second.structure
    shapes = {shape.path: shape for shape in structure.modules} if structure else {}
    paths = dict.fromkeys([*shapes, *first.modules, *second.modules])
    rows = []
    for path in paths:
        has_method = path in first.methods or path in second.methods
        one, other = (_values(plan, path, has_method) for plan in (first, second))
        if one == other:
            continue
        before, after = first.modules.get(path), second.modules.get(path)
        growth = (
            module_bytes(shapes[path], after) - module_bytes(shapes[path], before)
            if path in shapes
            else None
        )
        rows.append(
            {
                "path": path,
                "class": module_class(path),
                "first": one,
                "second": other,
                "bytes": growth,
            }
        )
    growths = [row["bytes"] for row in rows]
    return {
        "schema": DIFF_SCHEMA,
        "first": first.name,
        "second": second.name,
        "method": {"first": first.method, "second": second.method},
        "modules": rows,
        "bytes": None if None in growths else sum(growths),
    }


def _values(plan: Plan, path: str, has_method: bool) -> dict[str, Any] | None:
    spec = plan.modules.get(path)
    if spec is None:
        return None
    return spec.to_json() | ({"method": plan.method_of(path)} if has_method else {})
