"""The search: the best plan under each budget, by measurement."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from mixbit.errors import MixbitError
from mixbit.kld.ranks import ranks
from mixbit.kld.reference import Data
from mixbit.kld.stream import Protocol
from mixbit.plan import Plan, check
from mixbit.search.choices import ROUTER_FLOOR, Choices
from mixbit.search.journal import Journal
from mixbit.search.knapsack import Choice
from mixbit.search.measurements import Measurements, Progress
from mixbit.search.result import Found, Point, SearchResult, Tried
from mixbit.search.score import Score
from mixbit.search.swap import KeptPacking, Packing
from mixbit.search.table import Sensitivity
from mixbit.search.workplace import Workplace

JOB_SCHEMA = "mixbit.search-job/1"
_FRONT = 24
"""Points of the predicted front."""


def search(
    model: str | Path,
    table: Sensitivity | str | Path,
    data: Data,
    out: str | Path,
    *,
    bpw: Sequence[float] = (),
    nbytes: Sequence[int] = (),
    against: Sequence[Plan | str | Path] = (),
    tie: str | None = None,
    floors: Mapping[str, int] = ROUTER_FLOOR,
    candidates: int = 6,
    pairs: int = 6,
    packing: Packing | None = None,
    num_samples: int | None = None,
    window: int | None = 512,
    score: str = "half",
    batch_size: int = 8,
    progress: Progress | None = None,
) -> SearchResult:
    """Find plans of least KLD under budgets, from measured sensitivities, and measure them.

    For each budget the sum of sensitivities is minimised exactly. The ``pairs`` groups that
    contribute most to it are then measured two by two, and what both together add or save enters
    the sum; the best ``candidates`` of that are measured as whole plans, and the best measured one
    is what is found. Plans given to compare with, and the largest ``uniform-N`` that keeps the
    budget, take part: if one of them measures lower than everything else, it is what is found. For
    each plan given, besides, the smallest plan is looked for that measures lower by at least the
    standard error of the difference. Their sizes are the budgets if none is given.

    If the run ends early, the same call goes on from the measurements that were finished.

    Args:
        model: folder or hub id of the model that was measured.
        table: what :func:`mixbit.search.sensitivity` found, or its folder.
        data: text to measure plans over, as for :func:`mixbit.kld.measure`.
        out: folder to make: ``plan-N.json`` for each budget, ``search.json``, ``report.html``.
        bpw: budgets in bits per weight, scales and all parameters included.
        nbytes: budgets in bytes of all tensors.
        against: plans or recipes to compare with; methods that they name are passed over.
        tie: what is chosen as one: the grain of the table, or a coarser one.
        floors: patterns of module paths to the least bits there.
        candidates: whole plans to measure for each budget.
        pairs: groups to measure two by two, for each budget.
        packing: how weights are packed; round to nearest if None.
        num_samples, window, score: as for :func:`mixbit.kld.measure`.
        batch_size: windows run together.
        progress: called with (measurements so far, what is measured).

    Raises:
        MixbitError: something given cannot be used, or a budget is too small for any plan.
    """
    begun = time.monotonic()
    out = Path(out)
    if not isinstance(table, Sensitivity):
        table = Sensitivity.load(table)
    if candidates < 1 or pairs < 0:
        raise MixbitError("candidates must be at least 1, and pairs at least 0.")
    packing = packing or Packing()
    if packing.method.name != "rtn":  # which costs no time
        packing = KeptPacking(packing.method, packing.calibration)
    place = Workplace.open(model, data, num_samples, Protocol(window, score), packing, batch_size)
    if place.identity()["model"]["sha256"] != table.identity["model"]["sha256"]:
        raise MixbitError(
            f"The sensitivities are those of another model ({table.identity['model']['name']}); "
            f"measure those of {model}."
        )
    choices = Choices(table, tie or table.by, floors)
    inputs = [_input(source, place) for source in against]
    limits = _limits(bpw, nbytes, inputs, place.structure.params)
    for limit in limits:
        choices.refuse_too_small(limit)
    journal = Journal(out, {"schema": JOB_SCHEMA, **place.identity()})
    hunt = _Hunt(choices, Measurements(place, journal, progress), candidates, pairs)
    tried = hunt.try_inputs(inputs)
    result = SearchResult(
        identity=place.identity(),
        table=table,
        documents=int(np.count_nonzero(hunt.measurements.counts.documents)),
        tokens=int(hunt.measurements.counts.documents.sum()),
        inputs=tuple(tried),
        found=tuple(hunt.under(limit, tried) for limit in limits),
        smaller=tuple(hunt.smaller_than(one) for one in tried),
        front=tuple(hunt.front(_FRONT)),
        tried=tuple(hunt.tried.values()),
        measured=hunt.measurements.done,
        seconds=time.monotonic() - begun,
    )
    if ranks().index == 0:
        result.save(out)
    return result


class _Hunt:
    """What has been tried, and what is known of pairs."""

    def __init__(
        self, choices: Choices, measurements: Measurements, candidates: int, pairs: int
    ) -> None:
        self._choices, self.measurements = choices, measurements
        self._candidates, self._most = candidates, pairs
        self._pairs: dict[tuple[int, int, int, int], float] = {}
        self.tried: dict[Choice, Tried] = {}

    def try_inputs(self, plans: Sequence[Plan]) -> list[Tried]:
        """Measure plans that were given."""
        scores = self.measurements.measure([dict(plan.modules) for plan in plans], "what was given")
        return [
            self._tried(plan, self._choices.predicted(plan), score)
            for plan, score in zip(plans, scores, strict=True)
        ]

    def under(self, limit: int, inputs: Sequence[Tried]) -> Found:
        """The best measured plan of at most ``limit`` bytes."""
        room = limit - self._choices.fixed
        knapsack = self._choices.knapsack({})
        first = knapsack.best(room)
        assert first is not None
        self._try({first: knapsack.value(first)})
        self._measure_pairs(first)
        knapsack = self._choices.knapsack(self._pairs)
        best: dict[Choice, float] = {}
        while len(best) < self._candidates:
            choice = knapsack.best(room, but=list(best))
            if choice is None:
                break
            best[choice] = knapsack.value(choice)
        self._try(best)
        rivals = [one for one in [*self.tried.values(), *inputs] if one.nbytes <= limit]
        uniform = self._choices.uniform(limit)
        if uniform is not None:
            rivals += self.try_inputs([uniform])
        return Found(limit, min(rivals, key=lambda one: one.mean))

    def smaller_than(self, given: Tried) -> Tried:
        """The smallest plan found that measures lower than a given one by more than chance."""
        # What the sum says of a plan of that KLD, by what it said of those tried of about that.
        near = min(
            (one for one in self.tried.values() if one.predicted and one.mean > 0),
            key=lambda one: abs(np.log(one.mean / max(given.mean, 1e-12))),
            default=None,
        )
        aim = given.mean * (near.predicted / near.mean if near and near.predicted else 1.0)
        knapsack = self._choices.knapsack(self._pairs)
        for _ in range(self._candidates):
            choice = knapsack.smallest(aim) if aim > 0 else None
            if choice is None:
                break
            value = knapsack.value(choice)
            (one,) = self._try({choice: value})
            if one.mean <= 0 or not np.isfinite(one.mean):
                break
            aim = value * self._surely(one, given) / one.mean
        fitting = [one for one in self.tried.values() if one.mean <= self._surely(one, given)]
        return min([*fitting, given], key=lambda one: (one.nbytes, one.mean))

    def _surely(self, one: Tried, given: Tried) -> float:
        """What ``one`` may measure to lie below a given plan by the error of their difference."""
        return given.mean - one.score.difference_error(given.score, self.measurements.counts)

    def front(self, count: int) -> list[Point]:
        """The least predicted KLD at sizes from the smallest to the largest packed ones."""
        knapsack = self._choices.knapsack(self._pairs)
        smallest, best = knapsack.smallest(np.inf), knapsack.best(np.inf)
        assert smallest is not None and best is not None
        points = []
        for size in np.linspace(knapsack.size(smallest), knapsack.size(best), count):
            choice = knapsack.best(int(size))
            if choice is not None:
                nbytes = knapsack.size(choice) + self._choices.fixed
                points.append(Point(nbytes, knapsack.value(choice)))
        return points

    def _try(self, predicted: Mapping[Choice, float]) -> list[Tried]:
        """Measure choices, whose values say what is predicted of them."""
        new = [choice for choice in predicted if choice not in self.tried]
        scores = self.measurements.measure(
            [self._choices.change(choice) for choice in new], "whole plans"
        )
        for choice, score in zip(new, scores, strict=True):
            plan = self._choices.plan(choice, "search", {"search": "mixbit"})
            self.tried[choice] = self._tried(plan, predicted[choice], score)
        return [self.tried[choice] for choice in predicted]

    def _tried(self, plan: Plan, predicted: float | None, score: Score) -> Tried:
        counts = self.measurements.counts
        return Tried(
            plan, predicted, score.mean(counts), score.error(counts),
            score.top1 / int(counts.documents.sum()), score,
        )  # fmt: skip

    def _measure_pairs(self, choice: Choice) -> None:
        """Measure the groups that contribute most, alone and two by two."""
        costs = [self._choices.cost(group, at) for group, at in enumerate(choice)]
        order = sorted(range(len(costs)), key=lambda group: -costs[group])
        most = sorted(group for group in order[: self._most] if costs[group] > 0)
        sets = [*((group,) for group in most), *combinations(most, 2)]
        changes = [self._choices.change(choice, only) for only in sets]
        scores = self.measurements.measure(changes, "pairs of groups")
        mean = {
            only: score.mean(self.measurements.counts)
            for only, score in zip(sets, scores, strict=True)
        }
        for g, h in combinations(most, 2):
            extra = self._choices.interaction(g, h, mean[g, h], (mean[g,], mean[h,]))
            if np.isfinite(extra):
                self._pairs[g, choice[g], h, choice[h]] = extra


def _input(source: Plan | str | Path, place: Workplace) -> Plan:
    plan = source if isinstance(source, Plan) else Plan.load(source, model=place.structure)
    check(plan, place.structure)
    return replace(plan, structure=place.structure)


def _limits(
    bpw: Sequence[float], nbytes: Sequence[int], inputs: Sequence[Plan], params: int
) -> list[int]:
    """Budgets in bytes, the smallest first."""
    limits = [int(bits * params / 8) for bits in bpw] + list(nbytes)
    if not limits:
        limits = [plan.report()["bytes"] for plan in inputs]
    if not limits:
        raise MixbitError("A search needs a budget; give bits per weight, bytes or a plan's size.")
    return sorted(set(limits))
