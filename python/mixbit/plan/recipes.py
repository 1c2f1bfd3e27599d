"""Plans made by rule from a model's structure.

``uniform-N`` gives every module N bits, as mlx-lm's own conversion does. The ``unsloth`` recipes
follow mlx-node's rule table of that name, which was changed on 2026-06-03; the dates tell the two
apart. Everything is affine in groups of 64.
"""

import re
from collections.abc import Callable
from typing import Any

from mixbit.checkpoint import ModelStructure
from mixbit.errors import MixbitError
from mixbit.plan.model import Plan
from mixbit.plan.spec import QuantSpec

_Rule = Callable[[int], int | None]
"""Base bits to the bits of a module, None for left as it is."""


def _above(extra: int) -> _Rule:
    # MLX has no 7 bits and nothing beyond 8.
    return lambda base: min(8, base + extra) if base + extra != 7 else 8


def _pinned(bits: int | None) -> _Rule:
    return lambda _: bits


# Keys are the last component of a module's path. A router decides between experts: at few bits it
# picks the wrong ones, so no recipe goes below 8 there.
_ROUTERS: dict[str, _Rule] = {"gate": _pinned(8), "shared_expert_gate": _pinned(8)}

_UNSLOTH: dict[str, _Rule] = _ROUTERS | {
    "gate_proj": _above(0),
    "up_proj": _above(0),
    "down_proj": _above(1),
    "embed_tokens": _above(2),
    "lm_head": _above(3),
    "q_proj": _above(2),
    "k_proj": _above(2),
    "v_proj": _above(2),
    "in_proj_qkv": _above(2),
    "in_proj_z": _above(2),
    # qwen3_next has qkv and z in one tensor, and likewise b and a, which stays as it is.
    "in_proj_qkvz": _above(2),
    "in_proj_ba": _pinned(None),
}

_SENSITIVE = ("o_proj", "out_proj", "in_proj_a", "in_proj_b")

_TABLES: dict[str, dict[str, _Rule]] = {
    "uniform": _ROUTERS,
    "unsloth-2026-03": _UNSLOTH | dict.fromkeys(_SENSITIVE, _pinned(None)),
    "unsloth-2026-06": _UNSLOTH | dict.fromkeys(_SENSITIVE, _pinned(8)),
}

_ALIASES = {"unsloth": "unsloth-2026-03"}

RECIPES = ("uniform", "unsloth", "unsloth-2026-03", "unsloth-2026-06")
"""The recipes that :func:`recipe_name` combines with base bits."""

_FULL_NAME = re.compile(r"(uniform)-(\d+)|([^@]+)@(\d+)")
_GROUP_SIZES = (64, 32)


def recipe_name(recipe: str, bits: int) -> str:
    """The full name of a recipe at some base bits: ``uniform-4``, ``unsloth-2026-03@3``.

    Raises:
        MixbitError: there is no such recipe, or not at these bits.
    """
    family = _ALIASES.get(recipe, recipe)
    if family not in _TABLES:
        raise unknown_recipe(recipe)
    permitted = (2, 3, 4, 5, 6, 8) if family == "uniform" else range(2, 9)
    if bits not in permitted:
        raise MixbitError(
            f"Recipe {recipe} does not exist at {bits} bits; "
            f"give one of {', '.join(map(str, permitted))}."
        )
    return f"uniform-{bits}" if family == "uniform" else f"{family}@{bits}"


def split_name(name: str) -> tuple[str, int] | None:
    """The recipe and the base bits that a full name consists of, or None if it is not one."""
    match = _FULL_NAME.fullmatch(name)
    if match is None:
        return None
    recipe, bits = match[1] or match[3], int(match[2] or match[4])
    return (recipe, bits) if _ALIASES.get(recipe, recipe) in _TABLES else None


def unknown_recipe(name: str) -> MixbitError:
    """The error for a name that is no recipe, with the names that are."""
    return MixbitError(
        f"{name!r} is neither a file, a folder nor a recipe; the recipes are uniform-N, "
        "unsloth-2026-03@N, unsloth-2026-06@N and unsloth@N (the first of the two) for N bits."
    )


def make(recipe: str, bits: int, structure: ModelStructure) -> Plan:
    """The plan that a recipe gives for a model.

    A module whose width does not split into groups of 64 gets groups of 32, and if it does not
    split into those either it is left as it is. Both are told in the plan's provenance, under
    ``regrouped`` (path to group size) and ``dense_by_width`` (path to width).

    Raises:
        MixbitError: there is no such recipe, or not at these bits.
    """
    name = recipe_name(recipe, bits)
    table = _TABLES[_ALIASES.get(recipe, recipe)]
    modules: dict[str, QuantSpec | None] = {}
    regrouped: dict[str, int] = {}
    dense: dict[str, int] = {}
    for shape in structure.modules:
        rule = table.get(shape.path.rpartition(".")[2], _above(0))
        wanted = rule(bits)
        spec = None if wanted is None else _fit(wanted, shape.in_dims)
        modules[shape.path] = spec
        if wanted is not None and spec is None:
            dense[shape.path] = shape.in_dims
        elif spec is not None and spec.group_size != _GROUP_SIZES[0]:
            regrouped[shape.path] = spec.group_size
    provenance: dict[str, Any] = {"recipe": name}
    if regrouped:
        provenance["regrouped"] = regrouped
    if dense:
        provenance["dense_by_width"] = dense
    return Plan(modules, name, provenance, structure)


def _fit(bits: int, in_dims: int) -> QuantSpec | None:
    specs = (QuantSpec(bits, group_size) for group_size in _GROUP_SIZES)
    return next((spec for spec in specs if spec.violation(in_dims) is None), None)
