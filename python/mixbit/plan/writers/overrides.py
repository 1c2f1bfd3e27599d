"""``PATTERN=VALUE`` lines on module paths, as mlx-lm's ``--q-override`` was to take them."""

from mixbit.plan.model import Plan
from mixbit.plan.spec import QuantSpec
from mixbit.plan.writers.grouping import grouped


def render(plan: Plan, _nearest: bool) -> tuple[str, list[str]]:
    """One line for the modules of a class that have equal values, over all layers."""
    lines = grouped((path, _value(spec)) for path, spec in plan.modules.items())
    return "".join(f"{line}\n" for line in lines), []


def _value(spec: QuantSpec | None) -> str:
    if spec is None:
        return "bfloat16"
    if spec.mode != "affine":
        return spec.mode
    return f"{spec.bits}" if spec.group_size == 64 else f"{spec.bits}/{spec.group_size}"
