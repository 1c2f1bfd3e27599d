"""The multiple-choice knapsack: one choice for each group, as good as a limit allows.

    minimise  sum_g value(g, x_g) + sum_{g < h} extra(g, x_g, h, x_h)
    subject to  sum_g size(g, x_g) <= limit,

solved by HiGHS as a mixed-integer program, or with both sums in each other's place. The product of
two choices becomes a variable of its own, bounded by both and by their sum less 1.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Choice = tuple[int, ...]
"""Index of what is chosen, for each group."""
Pairs = Mapping[tuple[int, int, int, int], float]
"""Two groups and a choice of each, ``(g, i, h, j)``, to what both together add to the values."""

_GAP = 1e-6


class Knapsack:
    """Values and sizes of every choice.

    Args:
        values: for each group the value of each choice, the less the better; inf forbids it.
        sizes: their sizes.
        pairs: what pairs of choices add.
    """

    def __init__(
        self,
        values: Sequence[Sequence[float]],
        sizes: Sequence[Sequence[int]],
        pairs: Pairs | None = None,
    ) -> None:
        self._counts = list(map(len, values))
        self._starts = np.concatenate([[0], np.cumsum(self._counts)]).astype(int)
        self._pairs = dict(pairs or {})
        self._values = np.concatenate([*map(_floats, values), _floats(self._pairs.values())])
        self._sizes = np.concatenate([*map(_floats, sizes), np.zeros(len(self._pairs))])

    def value(self, choice: Choice) -> float:
        """Value of a choice, pairs included."""
        return float(self._values[self._taken(choice)].sum())

    def size(self, choice: Choice) -> int:
        """Size of a choice."""
        return int(self._sizes[self._taken(choice)].sum())

    def best(self, size: float, *, but: Sequence[Choice] = ()) -> Choice | None:
        """The choice of least value whose size is at most ``size``; None if there is none.

        ``but`` are choices to leave out, for the next best ones.
        """
        return self._solve(self._values, self._sizes, size, but)

    def smallest(self, value: float, *, but: Sequence[Choice] = ()) -> Choice | None:
        """The choice of least size whose value is at most ``value``; None if there is none."""
        return self._solve(self._sizes, self._values, value, but)

    def _solve(
        self, objective: Array, bounded: Array, limit: float, but: Sequence[Choice]
    ) -> Choice | None:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_matrix

        allowed = np.isfinite(self._values)
        costs = np.where(allowed, objective, 0)
        weights = np.where(allowed, bounded, 0)
        limit = min(limit, float(np.abs(weights).sum()))
        # HiGHS' tolerances are absolute, so figures of any unit are brought near 1.
        unit = max(abs(limit), np.finfo(float).tiny)
        rows = [(weights / unit, -np.inf, limit / unit)]
        rows += [(row, 1, 1) for row in self._one_of_each()]
        rows += [(row, low, high) for row, low, high in self._products()]
        rows += [(self._row(choice), -np.inf, len(self._counts) - 1) for choice in but]
        matrix, low, high = zip(*rows, strict=True)
        with _silenced():
            solution = milp(
                costs / max(np.abs(costs).max(), np.finfo(float).tiny),
                constraints=LinearConstraint(csr_matrix(np.stack(matrix)), low, high),
                integrality=np.ones(len(costs)),
                bounds=Bounds(0, allowed.astype(float)),
                options={"mip_rel_gap": _GAP, "presolve": False},
            )
        if solution.x is None:
            return None
        chosen = tuple(
            int(solution.x[begin : begin + count].argmax())
            for begin, count in zip(self._starts, self._counts, strict=False)
        )
        # Its feasibility has a tolerance; a limit has none but that of its own rounding.
        over = float(bounded[self._taken(chosen)].sum()) - limit
        if over <= 1e-12 * abs(limit):
            return chosen
        return self._solve(objective, bounded, limit - 2 * over, but)

    def _one_of_each(self) -> list[Array]:
        rows = np.zeros((len(self._counts), len(self._values)))
        for group, (begin, count) in enumerate(zip(self._starts, self._counts, strict=False)):
            rows[group, begin : begin + count] = 1
        return list(rows)

    def _products(self) -> list[tuple[Array, float, float]]:
        found: list[tuple[Array, float, float]] = []
        for at, (g, i, h, j) in enumerate(self._pairs, start=int(self._starts[-1])):
            first, second = self._starts[g] + i, self._starts[h] + j
            for member in (first, second):
                row = np.zeros(len(self._values))
                row[at], row[member] = 1, -1
                found.append((row, -np.inf, 0))
            row = np.zeros(len(self._values))
            row[at], row[first], row[second] = 1, -1, -1
            found.append((row, -1, np.inf))
        return found

    def _row(self, choice: Choice) -> Array:
        row = np.zeros(len(self._values))
        row[self._starts[:-1] + np.array(choice)] = 1
        return row

    def _taken(self, choice: Choice) -> list[int]:
        """Indices of all that a choice brings."""
        singles = [int(begin) + at for begin, at in zip(self._starts, choice, strict=False)]
        both = [
            at
            for at, (g, i, h, j) in enumerate(self._pairs, start=int(self._starts[-1]))
            if choice[g] == i and choice[h] == j
        ]
        return singles + both


@contextmanager
def _silenced() -> Iterator[None]:
    """Keep C's standard output shut: HiGHS 1.12 prints lines there that no option turns off."""
    flush = ctypes.CDLL(None).fflush
    flush(None)
    own = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        flush(None)
        os.dup2(own, 1)
        os.close(own)
        os.close(nowhere)


def _floats(values: object) -> Array:
    return np.array(list(values), np.float64)  # type: ignore[call-overload]
