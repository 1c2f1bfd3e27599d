"""The options that name a plan: ``--recipe NAME --q-bits D``, or ``--plan FILE``; and methods."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mixbit.plan import Plan


def add_plan_options(parser: argparse.ArgumentParser, *, plan_file: bool) -> None:
    """Add ``--recipe`` and ``--q-bits``, and ``--plan`` where a finished plan may be given."""
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument(
        "--recipe", metavar="NAME", help="uniform, unsloth, unsloth-2026-03 or unsloth-2026-06"
    )
    if plan_file:
        choice.add_argument("--plan", metavar="FILE", help="plan.json, config.json or checkpoint")
    parser.add_argument("--q-bits", type=int, metavar="D", help="base bits of the recipe")
    parser.set_defaults(plan=None, usage_error=parser.error)


def add_method_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--method``, for all modules or, as often as wanted, for those that a pattern finds."""
    parser.add_argument(
        "--method",
        action="append",
        default=[],
        metavar="[PATTERN=]METHOD",
        help="how scales and codes are chosen: rtn, or some of search, awq and gptq joined by '+' "
        "(default: what the plan says, else rtn); after PATTERN= for the modules that a regular "
        "expression finds, the first match counts",
    )


def chosen_plan(args: argparse.Namespace, model: Path) -> Plan:
    """The plan that the options name, for ``model`` (a folder or a config.json)."""
    if args.plan is not None and args.q_bits is not None:
        args.usage_error("--q-bits goes with --recipe; a plan says its bits itself")
    if args.recipe is not None and args.q_bits is None:
        args.usage_error("--recipe needs --q-bits")
    from mixbit.plan import Plan, recipe_name

    if args.plan is not None:
        return Plan.load(args.plan, model=model)
    return Plan.load(recipe_name(args.recipe, args.q_bits), model=model)
