"""Which implementation runs: the native primitives or stock MLX operations.

The native module matches one MLX build: C++ layouts hold for one version, and nanobind shares
``mx.array`` only between equal internals. A mismatch is no load error; every array is rejected as a
wrong type, or worse. So it is tried out once at import, and if anything is off the stock
operations serve, with one warning that says what to install.

``MIXBIT_BACKEND=stock|cpu`` forces one; ``cpu`` turns the warning into an error.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import warnings
from types import ModuleType

import mlx.core as mx

from mixbit.errors import MixbitError

__all__ = ["MixbitWarning", "native", "native_here", "reason", "select"]

_CHOICES = ("stock", "cpu")


class MixbitWarning(UserWarning):
    """Something works, but not as fast or as exactly as it should; the text says the mend."""


native: ModuleType | None = None
"""The native module ``mixbit._core``, or ``None`` when stock MLX operations serve."""

reason: str | None = None
"""Why :data:`native` is ``None``."""


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
    """Set :data:`native` by ``choice``, ``"stock"``, ``"cpu"`` or ``None`` for the best.

    Raises:
        MixbitError: for another choice, or if ``"cpu"`` is asked for and does not work.
    """
    global native, reason
    if choice is not None and choice not in _CHOICES:
        raise MixbitError(f"MIXBIT_BACKEND={choice} is unknown; use one of {', '.join(_CHOICES)}.")
    native, reason = None, "MIXBIT_BACKEND=stock"
    if choice == "stock":
        return
    try:
        native, reason = _load(), None
    except (ImportError, ValueError) as error:
        reason = str(error)
        if choice == "cpu":
            raise MixbitError(f"MIXBIT_BACKEND=cpu cannot be had: {reason}.") from error
        warnings.warn(f"{reason}. Stock MLX operations are used.", MixbitWarning, stacklevel=2)


def native_here() -> ModuleType | None:
    """The native module if it serves the default device, else ``None``."""
    return native if native is not None and mx.default_device() == mx.cpu else None


select(os.environ.get("MIXBIT_BACKEND") or None)
