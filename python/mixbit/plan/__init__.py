"""Plans: how many bits each module of a model gets."""

from mixbit.plan.check import check
from mixbit.plan.model import Plan
from mixbit.plan.recipes import RECIPES, recipe_name
from mixbit.plan.spec import QuantSpec

__all__ = ["RECIPES", "Plan", "QuantSpec", "check", "recipe_name"]
