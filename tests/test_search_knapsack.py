"""The knapsack against every choice there is."""

import ctypes
import itertools
import math

import numpy as np
import pytest
import scipy.optimize

from mixbit.search.knapsack import Knapsack

GROUPS, WIDTHS = 5, 4
PAIRS = ({}, {(0, 1, 2, 2): 0.3, (1, 0, 3, 1): -0.2, (0, 0, 1, 0): 0.1})
# HiGHS stops within a millionth of the best.
CLOSE = 3e-6


def problem(seed: int) -> tuple[Knapsack, list[tuple[int, ...]], int]:
    """A random problem, all of its choices, and a limit that some of them keep."""
    rng = np.random.default_rng(seed)
    values = np.sort(rng.random((GROUPS, WIDTHS)) ** 4, axis=1)[:, ::-1]
    sizes = np.sort(rng.integers(1, 1000, (GROUPS, WIDTHS)), axis=1)
    limit = int(sizes.sum() / WIDTHS * rng.uniform(0.6, 1.2))
    knapsack = Knapsack(values.tolist(), sizes.tolist(), PAIRS[seed % 2])
    return knapsack, list(itertools.product(range(WIDTHS), repeat=GROUPS)), limit


@pytest.mark.parametrize("seed", range(12))
def test_best_and_next_best_are_those_of_every_choice(seed: int) -> None:
    knapsack, choices, limit = problem(seed)
    fitting = sorted(c for c in choices if knapsack.size(c) <= limit)
    by_value = sorted(map(knapsack.value, fitting))
    found: list[tuple[int, ...]] = []
    for value in by_value[:4]:
        choice = knapsack.best(limit, but=found)
        assert choice in fitting and choice not in found
        assert knapsack.value(choice) == pytest.approx(value, abs=CLOSE)
        found.append(choice)


@pytest.mark.parametrize("seed", range(12))
def test_smallest_is_that_of_every_choice(seed: int) -> None:
    knapsack, choices, _ = problem(seed)
    aim = float(np.quantile(list(map(knapsack.value, choices)), 0.3))
    choice = knapsack.smallest(aim)
    assert choice is not None and knapsack.value(choice) <= aim * (1 + 1e-12)
    assert knapsack.size(choice) == min(
        knapsack.size(c) for c in choices if knapsack.value(c) <= aim
    )


def test_nothing_fits_a_limit_below_the_least() -> None:
    knapsack, choices, _ = problem(0)
    least = min(map(knapsack.size, choices))
    assert knapsack.best(least - 1) is None
    best = knapsack.best(least)
    assert best is not None and knapsack.size(best) == least
    assert knapsack.best(least, but=[best]) is None


def test_what_is_not_finite_is_never_chosen() -> None:
    knapsack = Knapsack([[math.inf, 1.0, 0.5], [0.0, 2.0]], [[1, 2, 9], [1, 2]])
    assert knapsack.best(3) == (1, 0)
    assert knapsack.best(math.inf) == (2, 0)
    assert knapsack.smallest(math.inf) == (1, 0)


def test_a_solver_that_prints_is_not_heard(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """HiGHS prints from C now and then, which would spoil a command's JSON."""
    solve = scipy.optimize.milp

    def talking(*args: object, **options: object) -> object:
        ctypes.CDLL(None).puts(b"HiGHS was here")
        return solve(*args, **options)

    monkeypatch.setattr(scipy.optimize, "milp", talking)
    assert Knapsack([[1.0, 0.5]], [[1, 2]]).best(1) == (0,)
    ctypes.CDLL(None).puts(b"heard")
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out == "heard\n"


def test_sizes_of_large_models_are_kept_to_the_byte() -> None:
    """A tolerance that is relative to a budget of 10 GB would be many kilobytes."""
    rng = np.random.default_rng(5)
    values = np.sort(rng.random((60, 6)), axis=1)[:, ::-1]
    sizes = np.sort(rng.integers(10**6, 10**9, (60, 6)), axis=1)
    limit = int(sizes.mean() * 60)
    choice = Knapsack(values.tolist(), sizes.tolist()).best(limit)
    assert choice is not None
    assert sum(int(sizes[g, c]) for g, c in enumerate(choice)) <= limit
