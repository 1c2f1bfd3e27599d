"""The native kernels against fp64, on every instruction set and on the GPU of this machine."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

ISAS = importlib.import_module("mixbit._core").isas()
THREADS = ["1", "3"]


def _run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(Path(__file__).with_name("kernel_cases.py"))],
        env=os.environ | {"MIXBIT_BACKEND": "cpu"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def results() -> dict[tuple[str, str], dict[str, Any]]:
    """What the cases give, by instruction set and number of threads."""
    found = {}
    for isa in ISAS:
        for threads in THREADS:
            run = _run(MIXBIT_ISA=isa, MIXBIT_NUM_THREADS=threads)
            assert run.returncode == 0, run.stderr
            found[isa, threads] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("isa", ISAS)
def test_kernels_agree_with_fp64(
    isa: str, threads: str, results: dict[tuple[str, str], dict[str, Any]]
) -> None:
    assert results[isa, threads]["isa"] == isa
    assert results[isa, threads]["failures"] == []


def test_integer_products_are_the_same_bits_everywhere(
    results: dict[tuple[str, str], dict[str, Any]],
) -> None:
    assert len({result["integers"] for result in results.values()}) == 1


def test_an_unknown_instruction_set_is_refused_by_name() -> None:
    run = _run(MIXBIT_ISA="sse9")
    assert run.returncode != 0
    assert "MIXBIT_ISA=sse9 is not available on this processor" in run.stderr
    assert "portable" in run.stderr


def test_metal_kernels_agree_with_fp64_where_there_is_a_gpu() -> None:
    run = _run(MIXBIT_BACKEND="metal")
    if mx.metal.is_available():
        assert run.returncode == 0, run.stderr
        assert json.loads(run.stdout)["failures"] == []
    else:
        assert "MIXBIT_BACKEND=metal cannot be had: MLX finds no Metal GPU" in run.stderr
