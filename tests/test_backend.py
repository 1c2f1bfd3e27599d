"""What happens when the native module does not match the installed MLX."""

import importlib
import sys
import types
from collections.abc import Iterator

import mlx.core as mx
import pytest

from mixbit import MixbitError, backend, ops


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    native, reason = backend.native, backend.reason
    yield
    backend.native, backend.reason = native, reason


def replaced(monkeypatch: pytest.MonkeyPatch, **attributes: object) -> None:
    """A native module that differs from the real one in ``attributes``."""
    real = importlib.import_module("mixbit._core")
    fake = types.ModuleType("mixbit._core")
    fake.__dict__.update({**vars(real), **attributes})
    monkeypatch.setitem(sys.modules, "mixbit._core", fake)


def still_works() -> None:
    """The operations serve, and not through the native module."""
    assert backend.native is None
    y = ops.linear(mx.array([[1.0, 2.0]]), mx.array([[3.0, 4.0]]))
    assert y.tolist() == [[11.0]]


def test_another_mlx_version_means_stock_and_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, mlx_version="0.1.2")
    with pytest.warns(backend.MixbitWarning, match=r"pip install 'mlx==0\.1\.2'") as warned:
        backend.select()
    assert len(warned) == 1
    still_works()


def test_arrays_of_another_nanobind_mean_stock_and_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rejecting(*_: object, **__: object) -> None:
        raise TypeError("incompatible function arguments: Invoked with types: mlx.core.array")

    replaced(monkeypatch, matmul=rejecting)
    with pytest.warns(backend.MixbitWarning, match="do not share array types") as warned:
        backend.select()
    assert len(warned) == 1
    still_works()


def test_a_missing_module_means_stock_and_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mixbit._core", None)
    with pytest.warns(backend.MixbitWarning, match="Stock MLX operations are used") as warned:
        backend.select()
    assert len(warned) == 1
    still_works()


def test_wrong_numbers_mean_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, matmul=lambda x, _: [x])
    with pytest.warns(backend.MixbitWarning, match=r"instead of \[\[11\.0\]\]"):
        backend.select()
    still_works()


def test_stock_can_be_asked_for_without_a_warning() -> None:
    backend.select("stock")
    still_works()


def test_cpu_can_be_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    backend.select("cpu")
    assert backend.native is not None
    replaced(monkeypatch, mlx_version="0.1.2")
    with pytest.raises(MixbitError, match=r"MIXBIT_BACKEND=cpu cannot be had: .*0\.1\.2"):
        backend.select("cpu")


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(MixbitError, match="MIXBIT_BACKEND=cuda is unknown"):
        backend.select("cuda")
