"""The native kernels against fp64, on every instruction set of this machine."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ISAS = ["portable"] + (["avx2"] if platform.machine() in ("x86_64", "AMD64") else [])


def _run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(Path(__file__).with_name("kernel_cases.py"))],
        env=os.environ | {"MIXBIT_BACKEND": "cpu"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("isa", ISAS)
def test_kernels_agree_with_fp64(isa: str, threads: str) -> None:
    run = _run(MIXBIT_ISA=isa, MIXBIT_NUM_THREADS=threads)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {"isa": isa, "failures": []}


def test_an_unknown_instruction_set_is_refused_by_name() -> None:
    run = _run(MIXBIT_ISA="sse9")
    assert run.returncode != 0
    assert "MIXBIT_ISA=sse9 is not available on this processor" in run.stderr
    assert "portable" in run.stderr
