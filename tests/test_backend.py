"""What happens when the native module does not match the installed MLX."""

import importlib
import os
import sys
import types
from collections.abc import Callable, Iterator

import mlx.core as mx
import pytest

from mixbit import MixbitError, backend, ops


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    backend.select(os.environ.get("MIXBIT_BACKEND") or None)


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


def on_metal(monkeypatch: pytest.MonkeyPatch, **attributes: object) -> None:
    """As on a Mac whose GPU is the default device; the operations themselves still run here."""
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    replaced(monkeypatch, **attributes)


def failing(fault: str) -> Callable[..., None]:
    """An operation without a working kernel; the import's own trial passes."""
    real = importlib.import_module("mixbit._core")

    def matmul(x: mx.array, weights: list[object], **_: object) -> list[mx.array]:
        if x.shape == (1, 2):
            return real.matmul(x, weights, stream=mx.cpu)
        raise real.NoKernel(fault)

    return matmul


X, W = mx.array([[1.0, 2.0, 1.0]]), mx.array([[3.0, 4.0, 5.0]])


def test_a_failing_kernel_means_stock_and_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    on_metal(monkeypatch, matmul=failing("the Metal kernel k1 cannot be had: why"))
    backend.select()
    with pytest.warns(backend.MixbitWarning, match="k1 cannot be had: why. Stock MLX") as warned:
        assert [ops.linear(X, W).tolist() for _ in range(3)] == [[[16.0]]] * 3
    assert len(warned) == 1


def test_a_plan_may_prefer_stock_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    on_metal(monkeypatch, matmul=failing(""))
    backend.select("metal")
    assert ops.linear(X, W).tolist() == [[16.0]]


def test_a_demanded_kernel_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    on_metal(monkeypatch, matmul=failing("the Metal kernel k2 cannot be had: why"))
    backend.select("metal")
    with pytest.raises(MixbitError, match=r"MIXBIT_BACKEND=metal cannot be had: .* k2 .*: why\."):
        ops.linear(X, W)


def test_metal_demands_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    with pytest.raises(MixbitError, match="MIXBIT_BACKEND=metal cannot be had: MLX finds no Metal"):
        backend.select("metal")


@pytest.mark.parametrize(
    ("choice", "device", "name"),
    [
        (None, mx.cpu, "cpu"),
        (None, mx.gpu, "metal"),
        ("cpu", mx.gpu, "stock"),
        ("metal", mx.gpu, "metal"),
        ("metal", mx.cpu, "stock"),
        ("stock", mx.cpu, "stock"),
    ],
)
def test_the_device_decides_among_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, choice: str | None, device: mx.DeviceType, name: str
) -> None:
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    backend.select(choice)
    monkeypatch.setattr(mx, "default_device", lambda: device)
    assert backend.name_here() == name
    assert (backend.native_here() is not None) == (name == "cpu")
    assert (backend.run_native(lambda core: core) is not None) == (name != "stock")


def test_a_gpu_that_is_not_metal_is_served_by_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    assert backend.name_here() == "stock"
