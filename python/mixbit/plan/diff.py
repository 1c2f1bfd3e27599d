"""What differs between two plans."""

from typing import Any

from mixbit.plan.model import Plan
from mixbit.plan.report import module_bytes, module_class

DIFF_SCHEMA = "mixbit.plan-diff/1"


def diff(first: Plan, second: Plan) -> dict[str, Any]:
    """The modules to which two plans give different values.

    A module that a plan does not name is not quantised, which makes no difference to one that it
    names so.

    Returns:
        ``{"schema", "first", "second", "modules", "bytes"}``: names of the plans; for each module
        that differs ``{"path", "class", "first", "second", "bytes"}``, the values as objects or
        None, and the bytes by which the second is larger, None where the model is not known; and
        the sum of those.
    """
    structure = first.structure or second.structure
    shapes = {shape.path: shape for shape in structure.modules} if structure else {}
    paths = dict.fromkeys([*shapes, *first.modules, *second.modules])
    rows = []
    for path in paths:
        one, other = first.modules.get(path), second.modules.get(path)
        if one == other:
            continue
        growth = (
            module_bytes(shapes[path], other) - module_bytes(shapes[path], one)
            if path in shapes
            else None
        )
        rows.append(
            {
                "path": path,
                "class": module_class(path),
                "first": None if one is None else one.to_json(),
                "second": None if other is None else other.to_json(),
                "bytes": growth,
            }
        )
    growths = [row["bytes"] for row in rows]
    return {
        "schema": DIFF_SCHEMA,
        "first": first.name,
        "second": second.name,
        "modules": rows,
        "bytes": None if None in growths else sum(growths),
    }
