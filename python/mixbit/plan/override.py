"""Changing single modules of a plan by pattern."""

from collections.abc import Iterable

from mixbit.checkpoint import ModelStructure
from mixbit.errors import MixbitError
from mixbit.plan.check import check
from mixbit.plan.model import Plan


def override(plan: Plan, overrides: Iterable[str], structure: ModelStructure | None = None) -> Plan:
    """Lay ``PATTERN=VALUE`` overrides over a plan.

    ``VALUE`` is bits (groups of 64), ``BITS/GROUP``, a mode (``mxfp4``, …) or a floating-point
    type, which stands for not quantised. Patterns are regular expressions, searched in module
    paths; the first that is found decides.

    Raises:
        MixbitError: an override is malformed, matches no module, or asks for what MLX cannot pack.
    """
    from mixbit.plan.readers.lines import apply_overrides  # the readers build plans

    structure = structure or plan.structure
    if structure is None:
        raise MixbitError(
            f"Plan {plan.name} does not say which model it is for; name the model as well."
        )
    told = list(overrides)
    modules, _ = apply_overrides(told, structure, dict(plan.modules), "override")
    earlier = plan.provenance.get("overrides", [])
    provenance = {**plan.provenance, "overrides": [*earlier, *told]}
    changed = Plan(modules, f"{plan.name}+overrides", provenance, structure)
    check(changed, structure)
    return changed
