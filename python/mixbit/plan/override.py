"""Changing single modules of a plan by pattern."""

import re
from collections.abc import Iterable
from dataclasses import replace

from mixbit.checkpoint import ModelStructure
from mixbit.errors import MixbitError
from mixbit.plan.check import check
from mixbit.plan.method import method_fault
from mixbit.plan.model import Plan
from mixbit.plan.patterns import compiled


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
    methods = {path: m for path, m in plan.methods.items() if modules[path] is not None}
    changed = replace(
        plan, modules=modules, name=f"{plan.name}+overrides", provenance=provenance,
        structure=structure, methods=methods,
    )  # fmt: skip
    check(changed, structure)
    return changed


def with_methods(plan: Plan, texts: Iterable[str]) -> Plan:
    """Name methods in a plan.

    Args:
        plan: the plan.
        texts: ``METHOD``, for all modules that have none of their own, or ``PATTERN=METHOD``.
            Patterns are regular expressions, searched in the paths of modules that the plan
            quantises; the first that is found decides.

    Raises:
        MixbitError: a method is unknown, or a pattern is malformed or matches nothing that is
            quantised.
    """
    default = plan.method
    rules: list[tuple[re.Pattern[str], str]] = []
    for text in texts:
        expression, sign, method = text.rpartition("=")
        if fault := method_fault(method):
            raise MixbitError(f"method: {text!r} is not METHOD or PATTERN=METHOD: {fault}.")
        if sign:
            rules.append((compiled(expression, "method"), method))
        else:
            default = method
    packed = [path for path, spec in plan.modules.items() if spec is not None]
    for pattern, _ in rules:
        if not any(map(pattern.search, packed)):
            raise MixbitError(
                f"method: the pattern {pattern.pattern!r} matches nothing that plan {plan.name} "
                "quantises."
            )
    named = {
        path: method
        for pattern, method in reversed(rules)
        for path in packed
        if pattern.search(path)
    }
    return replace(plan, method=default, methods={**plan.methods, **named})
