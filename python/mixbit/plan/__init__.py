"""Plans: how many bits each module of a model gets."""

from mixbit.plan.audit import Audit, Finding, audit
from mixbit.plan.check import check
from mixbit.plan.diff import diff
from mixbit.plan.method import METHODS, method_fault
from mixbit.plan.model import Plan
from mixbit.plan.override import override, with_methods
from mixbit.plan.picture import draw
from mixbit.plan.recipes import RECIPES, recipe_name
from mixbit.plan.spec import QuantSpec
from mixbit.plan.writers import FORMATS, write

__all__ = [
    "FORMATS",
    "METHODS",
    "RECIPES",
    "Audit",
    "Finding",
    "Plan",
    "QuantSpec",
    "audit",
    "check",
    "diff",
    "draw",
    "method_fault",
    "override",
    "recipe_name",
    "with_methods",
    "write",
]
