"""Which implementation runs: the native primitives or stock MLX operations.

The native module matches one MLX build: C++ layouts hold for one version, and nanobind shares
``mx.array`` only between equal internals. A mismatch is no load error; every array is rejected as a
wrong type, or worse. So it is tried out once at import, and if anything is off the stock
operations serve, with one warning that says what to install.

On a Metal GPU the native module compiles a kernel when it is first wanted and tries it on a small
case. For a kernel that fails, stock operations serve, again with one warning.

``MIXBIT_BACKEND=stock|cpu|metal`` forces one; ``cpu`` and ``metal`` turn the warnings into errors.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

import mlx.core as mx

from mixbit.errors import MixbitError

__all__ = [
    "MixbitWarning",
    "name_here",
    "native",
    "native_here",
    "reason",
    "run_native",
    "select",
]

_CHOICES = ("stock", "cpu", "metal")

_T = TypeVar("_T")


class MixbitWarning(UserWarning):
    """Something works, but not as fast or as exactly as it should; the text says the mend."""


native: ModuleType | None = None
"""The native module ``mixbit._core``, or ``None`` when stock MLX operations serve."""

reason: str | None = None
"""Why :data:`native` is ``None``."""

_demanded: str | None = None
"""The one backend, ``cpu`` or ``metal``, that :data:`native` serves, or ``None`` for both."""

_told: set[str] = set()
"""Of kernels that failed, what was said."""


def _load() -> ModuleType:
    """Import the native module and pass an array through it; raises ``ImportError`` if it fails."""
    core = importlib.import_module("mixbit._core")
    here = importlib.metadata.version("mlx")
    if core.mlx_version != here:
        raise ImportError(
            f"mixbit's native module was built for mlx {core.mlx_version}, but mlx {here} is "
            f"installed; run: pip install 'mlx=={core.mlx_version}', or reinstall mixbit"
        )
    with mx.stream(mx.cpu):
        x = mx.array([[1.0, 2.0]])
        try:
            y = core.matmul(x, [core.Weight(mx.array([[3.0, 4.0]]))])[0].tolist()
        except TypeError as error:
            raise ImportError(
                "mixbit's native module and mlx do not share array types (different nanobind "
                "builds); reinstall both: pip install --force-reinstall mixbit"
            ) from error
    if y != [[11.0]]:
        raise ImportError(
            f"mixbit's native module computed {y} instead of [[11.0]]; reinstall mixbit"
        )
    return core


def select(choice: str | None = None) -> None:
    """Set :data:`native` by ``choice``: ``"stock"``, ``"cpu"``, ``"metal"`` or ``None`` for both.

    Raises:
        MixbitError: for another choice, or if ``"cpu"`` or ``"metal"`` is asked for and is not to
            be had.
    """
    global native, reason, _demanded
    if choice is not None and choice not in _CHOICES:
        raise MixbitError(f"MIXBIT_BACKEND={choice} is unknown; use one of {', '.join(_CHOICES)}.")
    native, reason, _demanded = None, "MIXBIT_BACKEND=stock", choice
    if choice == "stock":
        return
    try:
        if choice == "metal" and not mx.metal.is_available():
            raise ImportError("MLX finds no Metal GPU on this machine")
        native, reason = _load(), None
    except (ImportError, ValueError) as error:
        reason = str(error)
        if choice is not None:
            raise MixbitError(f"MIXBIT_BACKEND={choice} cannot be had: {reason}.") from error
        warnings.warn(f"{reason}. Stock MLX operations are used.", MixbitWarning, stacklevel=2)


def name_here() -> str:
    """The backend of the default device: ``cpu``, ``metal`` or ``stock``."""
    if native is None:
        return "stock"
    if mx.default_device() == mx.cpu:
        wanted = "cpu"
    elif mx.metal.is_available():
        wanted = "metal"
    else:
        return "stock"
    return wanted if _demanded in (None, wanted) else "stock"


def native_here() -> ModuleType | None:
    """The native module for an operation that it has for CPUs only, else ``None``."""
    return native if name_here() == "cpu" else None


def run_native(operation: Callable[[ModuleType], _T]) -> _T | None:
    """What ``operation`` makes of the native module, or ``None`` where stock MLX has to serve.

    Raises:
        MixbitError: if the backend was demanded, and a kernel of it does not work here.
    """
    if native is None or name_here() == "stock":
        return None
    try:
        return operation(native)
    except native.NoKernel as error:
        _tell(str(error))
        return None


def _tell(fault: str) -> None:
    """Say what a kernel's fault is, unless it was said or there is none."""
    if not fault:
        return
    if _demanded is not None:
        raise MixbitError(f"MIXBIT_BACKEND={_demanded} cannot be had: {fault}.")
    if fault not in _told:
        _told.add(fault)
        text = f"{fault}. Stock MLX operations are used in its place."
        warnings.warn(text, MixbitWarning, stacklevel=2)


select(os.environ.get("MIXBIT_BACKEND") or None)
