"""A table of sensitivities as a knapsack, and choices in it as plans."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mixbit.errors import MixbitError
from mixbit.plan import Plan, QuantSpec
from mixbit.plan.report import module_bytes
from mixbit.search.groups import GRAINS, Group, groups_of
from mixbit.search.knapsack import Choice, Knapsack, Pairs
from mixbit.search.swap import Change
from mixbit.search.table import Sensitivity

ROUTER_FLOOR = {r"\.mlp\.(shared_expert_)?gate$": 8}
"""At few bits a router picks the wrong experts."""


class Choices:
    """What each group may be packed to, what that costs and how large it is.

    Every group may also stay as it is, at no cost. Groups that are tied are chosen as one, at the
    sum of their costs.
    """

    def __init__(self, table: Sensitivity, tie: str, floors: Mapping[str, int]) -> None:
        """Make the choices.

        Args:
            table: what was measured.
            tie: the grain of what is chosen, at least as coarse as what was measured; see
                :func:`mixbit.search.groups.groups_of`.
            floors: patterns, searched in module paths, to the least bits there.

        Raises:
            MixbitError: the grain is finer than the table, or a floor is malformed or fits nothing.
        """
        groups = groups_of(table.structure, tie)
        if GRAINS.index(tie) < GRAINS.index(table.by):
            raise MixbitError(
                f"The sensitivities are measured by {table.by}, too coarse to choose by {tie}; "
                f"measure them by {tie}, or tie by {table.by}."
            )
        _refuse_unfit(floors, table)
        self._table = table
        # A measured group lies within one chosen group, where its shares add up to the whole.
        self._cells = table.costs()
        measured = {
            (path, spec): cost / len(group.paths)
            for (group, spec), cost in self._cells.items()
            for path in group.paths
        }
        tried = {path for path, _ in measured}
        self.groups = [group for group in groups if set(group.paths) <= tried]
        self.specs: list[list[QuantSpec | None]] = []
        self._costs: list[list[float]] = []
        for group in self.groups:
            least = _floor(group, floors)
            common = [
                spec
                for spec in dict.fromkeys(cell.spec for cell in table.cells)
                if spec.bits >= least and all((path, spec) in measured for path in group.paths)
            ]
            self.specs.append([*common, None])
            self._costs.append(
                [sum(measured[path, spec] for path in group.paths) for spec in common] + [0.0]
            )
        noise = {path: own for group, own in table.noise().items() for path in group.paths}
        self._noise = [max(noise[path] for path in group.paths) for group in self.groups]
        self._sizes = [
            [group.nbytes(spec) for spec in specs]
            for group, specs in zip(self.groups, self.specs, strict=True)
        ]
        chosen = {path for group in self.groups for path in group.paths}
        rest = [shape for shape in table.structure.modules if shape.path not in chosen]
        others = table.structure.params - sum(shape.params for shape in table.structure.modules)
        self.fixed = 2 * others + sum(module_bytes(shape, None) for shape in rest)
        """Bytes of all that no choice changes."""

    @property
    def params(self) -> int:
        """Parameters of the whole model."""
        return self._table.structure.params

    def knapsack(self, pairs: Pairs) -> Knapsack:
        """The problem, with what pairs of choices add."""
        return Knapsack(self._costs, self._sizes, pairs)

    def refuse_too_small(self, limit: int) -> None:
        """Refuse a budget in bytes that nothing fits.

        Raises:
            MixbitError: it is one.
        """
        least = self.fixed + sum(map(min, self._sizes))
        if limit < least:
            raise MixbitError(
                f"A budget of {limit:,} bytes ({8 * limit / self.params:.3f} bits per weight) "
                f"cannot be met; the lowest widths take {least:,} "
                f"({8 * least / self.params:.3f})."
            )

    def cost(self, group: int, at: int) -> float:
        """Measured KLD of one group packed by one of its choices."""
        return self._costs[group][at]

    def interaction(self, one: int, other: int, both: float, alone: tuple[float, float]) -> float:
        """What two groups packed together add to the sum of their costs, nats.

        Args:
            one: a group.
            other: another group.
            both: measured KLD with both of them packed.
            alone: that with each of them alone.
        """
        # The noise is in every measurement, the larger of two in that of both.
        return both - sum(alone) + min(self._noise[one], self._noise[other])

    def change(self, choice: Choice, only: Sequence[int] | None = None) -> Change:
        """Modules to what they are packed to; of some groups only, if given."""
        return {
            path: self.specs[at][choice[at]]
            for at in (range(len(self.groups)) if only is None else only)
            for path in self.groups[at].paths
        }

    def plan(self, choice: Choice, name: str, provenance: Mapping[str, Any]) -> Plan:
        """The plan that a choice is."""
        whole = dict.fromkeys(shape.path for shape in self._table.structure.modules)
        modules = whole | dict(self.change(choice))
        return Plan(modules, name, provenance, self._table.structure)

    def uniform(self, limit: int) -> Plan | None:
        """The uniform recipe of most bits that takes at most ``limit`` bytes, None if none does."""
        structure = self._table.structure
        plans = (Plan.load(f"uniform-{bits}", model=structure) for bits in (8, 6, 5, 4, 3, 2))
        return next((plan for plan in plans if plan.report()["bytes"] <= limit), None)

    def predicted(self, plan: Plan) -> float | None:
        """Sum of the measured KLD of what a plan does, None where it does what was not measured."""
        total = 0.0
        for group in self._table.groups:
            specs = {plan.modules.get(path) for path in group.paths}
            spec, *others = specs
            if spec is None and not others:
                continue
            cost = None if others or spec is None else self._cells.get((group, spec))
            if cost is None:
                return None
            total += cost
        return total


def _floor(group: Group, floors: Mapping[str, int]) -> int:
    fitting = [
        bits
        for pattern, bits in floors.items()
        if any(re.search(pattern, path) for path in group.paths)
    ]
    return max(fitting, default=0)


def _refuse_unfit(floors: Mapping[str, int], table: Sensitivity) -> None:
    for pattern in floors:
        try:
            re.compile(pattern)
        except re.error as error:
            raise MixbitError(f"The floor {pattern!r} is no regular expression: {error}.") from None
        if pattern in ROUTER_FLOOR:  # models without experts have none
            continue
        if not any(re.search(pattern, shape.path) for shape in table.structure.modules):
            raise MixbitError(f"The floor {pattern!r} fits no module of the model.")
