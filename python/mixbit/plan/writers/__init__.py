"""Writing a plan for other tools: one module a format."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from mixbit.checkpoint import write_bytes
from mixbit.errors import MixbitError
from mixbit.plan.check import check, check_specs
from mixbit.plan.model import Plan
from mixbit.plan.spec import QuantSpec
from mixbit.plan.writers import mlx_block, overrides, plan_json, tensor_types

Render = Callable[[Plan, bool], tuple[str, list[str]]]
"""Plan, and whether the nearest will do, to the text of a file and remarks."""

_FORMATS: Mapping[str, Render] = {
    "plan": plan_json.render,
    "mlx": mlx_block.render,
    "tensor-types": tensor_types.render,
    "overrides": overrides.render,
}

FORMATS = tuple(_FORMATS)
"""What :func:`write` can write."""


def write(plan: Plan, path: Path | str, format_name: str, *, nearest: bool = False) -> list[str]:
    """Write a plan to a file in one of :data:`FORMATS`, replacing the file if there is one.

    Reading the file gives the same modules again, unless ``nearest`` allows otherwise. Methods are
    in ``"plan"`` only.

    Args:
        plan: the plan; modules of its model that it does not name are written as not quantised.
        path: the file.
        format_name: ``"plan"``, a ``plan.json``; ``"mlx"``, mlx-lm's ``quantization`` block;
            ``"tensor-types"``, the file of llama.cpp's ``--tensor-type-file``; ``"overrides"``,
            ``PATTERN=VALUE`` lines on module paths.
        nearest: write the nearest that the format has for what it has no word for.

    Returns:
        Remarks, such as on what was only written nearly; none if all is exact.

    Raises:
        MixbitError: there is no such format, it has no word for something in the plan, the plan
            holds what MLX cannot pack, or the file cannot be written.
    """
    if format_name not in _FORMATS:
        raise MixbitError(f"{format_name!r} is no format to write; give {', '.join(FORMATS)}.")
    if plan.structure is None:
        check_specs(plan)
    else:
        check(plan, plan.structure)
        modules: dict[str, QuantSpec | None] = {
            shape.path: plan.modules.get(shape.path) for shape in plan.structure.modules
        }
        plan = replace(plan, modules=modules)
    text, notes = _FORMATS[format_name](plan, nearest)
    write_bytes(Path(path), text.encode())
    if format_name != "plan" and (plan.method or plan.methods):
        notes.append(f"methods are left out: format {format_name} has no word for them")
    return notes
