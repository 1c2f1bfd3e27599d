"""The gate that every plan passes before any work is done."""

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mixbit.checkpoint import ModelStructure, and_more
from mixbit.errors import MixbitError
from mixbit.plan.method import method_fault

if TYPE_CHECKING:
    from mixbit.plan.model import Plan


def check(plan: "Plan", structure: ModelStructure) -> None:
    """Raise unless every entry of the plan names a module and can be packed, by known methods.

    Raises:
        MixbitError: naming the first entry at fault, and for a path that names no module the real
            ones nearest to it.
    """
    shapes = {shape.path: shape for shape in structure.modules}
    unknown = [path for path in plan.modules if path not in shapes]
    if unknown:
        raise MixbitError(
            f"Plan {plan.name} names {unknown[0]}{and_more(len(unknown) - 1)}, which is no module "
            f"of this {structure.model_type} model that can be quantised"
            f"{nearest(unknown[0], shapes)}."
        )
    faults = {
        path: fault
        for path, spec in plan.modules.items()
        if spec is not None and (fault := spec.violation(shapes[path].in_dims))
    }
    _raise_first(plan, faults)
    _check_methods(plan)


def check_specs(plan: "Plan") -> None:
    """The part of :func:`check` that needs no model: modes, bits, group sizes and methods.

    Raises:
        MixbitError: naming the first entry that MLX has no packing for or whose method is unknown.
    """
    faults = {
        path: fault
        for path, spec in plan.modules.items()
        if spec is not None and (fault := spec.violation())
    }
    _raise_first(plan, faults)
    _check_methods(plan)


def nearest(path: str, known: Iterable[str]) -> str:
    """A clause with the known paths most like ``path``, or nothing when none is."""
    matches = difflib.get_close_matches(path, list(known), n=3)
    return f"; the nearest are {', '.join(matches)}" if matches else ""


def _check_methods(plan: "Plan") -> None:
    if plan.method is not None and (fault := method_fault(plan.method)):
        raise MixbitError(f"Plan {plan.name} cannot be used: {fault}.")
    for path in plan.methods:
        if plan.modules.get(path) is None:
            raise MixbitError(
                f"Plan {plan.name} names a method for {path}, which it does not quantise."
            )
    faults = {path: fault for path, m in plan.methods.items() if (fault := method_fault(m))}
    _raise_first(plan, faults)


def _raise_first(plan: "Plan", faults: dict[str, str]) -> None:
    if faults:
        path = next(iter(faults))
        raise MixbitError(
            f"Plan {plan.name} cannot be applied to {path}{and_more(len(faults) - 1)}: "
            f"{faults[path]}."
        )
