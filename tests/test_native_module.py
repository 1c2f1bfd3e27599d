"""The native module as a build product: its stub, its libraries, its references."""

import gc
import importlib
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

TOOLS = Path(__file__).parents[1] / "tools"
core = importlib.import_module("mixbit._core")


def test_the_stub_is_what_the_module_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(TOOLS)
    write_stubs = importlib.import_module("write_stubs")
    assert write_stubs.STUB.read_text(encoding="utf-8") == write_stubs.render(), "run: make stubs"


def test_it_is_one_stable_abi_file() -> None:
    assert ".abi3." in Path(core.__file__).name


def test_importing_it_first_brings_mlx_along() -> None:
    code = "import mixbit._core, sys; assert 'mlx.core' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_arrays_are_not_leaked() -> None:
    x, w = mx.ones((4, 1024)), mx.ones((1024, 1024))
    mx.eval(x, w)

    def bytes_after(calls: int) -> int:
        for _ in range(calls):
            mx.eval(core.matmul(x, [core.Weight(w)]))
        gc.collect()
        return mx.get_active_memory()

    assert bytes_after(100) == bytes_after(100)
