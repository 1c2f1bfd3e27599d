"""Settings of the benchmark suites: run them with ``make bench``."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture


@pytest.fixture
def rng() -> np.random.Generator:
    """Seeded, so that every engine gets the same numbers."""
    return np.random.default_rng(0)


@pytest.fixture
def timed(benchmark: BenchmarkFixture) -> Callable[..., None]:
    """Time an operation to the end of its evaluation; the engines of a group stand side by side."""

    def run(group: str, operation: Callable[[], Any], rounds: int, iterations: int = 1) -> None:
        benchmark.group = group
        benchmark.pedantic(
            lambda: mx.eval(operation()), rounds=rounds, iterations=iterations, warmup_rounds=1
        )

    return run
