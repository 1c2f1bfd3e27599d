"""The file of a calibration.

``calibration.safetensors`` holds ``PATH.mean_square``, ``PATH.mean_abs``, ``PATH.count`` and
perhaps ``PATH.hessian`` for each place where an input is measured (:func:`place_of`), and in its
metadata, under ``mixbit``, a JSON object that says what it was made of.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import mlx.core as mx

from mixbit.calibration.imatrix import is_imatrix, read_imatrix
from mixbit.calibration.inputs import hessian_place_of, place_of
from mixbit.calibration.statistics import InputStatistics
from mixbit.checkpoint import (
    ModelStructure,
    TensorInfo,
    copy_tensors,
    describe,
    read_header,
    read_rows,
)
from mixbit.errors import MixbitError

SCHEMA = "mixbit.calibration/1"

_FIELDS = ("mean_square", "mean_abs", "count", "hessian")


class Calibration:
    """Statistics of a model's inputs, by module path."""

    def __init__(
        self,
        places: Mapping[str, InputStatistics],
        provenance: Mapping[str, Any],
        hessians: Mapping[str, TensorInfo] = MappingProxyType({}),
    ) -> None:
        """Take statistics by the places of :func:`place_of`, and what they were made of.

        ``hessians`` says, by the places of :func:`hessian_place_of`, where in files those lie that
        are large: they are read when they are asked for, and not kept.
        """
        self._places, self.provenance = dict(places), dict(provenance)
        self._hessians = hessians

    @classmethod
    def load(cls, path: Path | str, config: Mapping[str, Any]) -> Calibration:
        """Read what ``mixbit calibrate`` wrote, or an importance matrix of llama.cpp's.

        Args:
            path: a ``.safetensors`` file, or an imatrix as ``.gguf`` or of the older binary form.
            config: that of the model which it shall serve.

        Raises:
            MixbitError: the file is neither, or is not of such a model.
        """
        path = Path(path)
        if not path.is_file():
            raise MixbitError(f"There is no calibration file {path}.")
        calibration = cls(*read_imatrix(path, config)) if is_imatrix(path) else cls(*_read(path))
        calibration._check(describe(config), path)
        return calibration

    def of(self, path: str, *, hessian: bool = True) -> InputStatistics | None:
        """Statistics of the input of the module at ``path``; None if they were not taken.

        Without ``hessian`` none is read.
        """
        known = self._places.get(place_of(path))
        info = self._hessians.get(hessian_place_of(path))
        if known is None or info is None or not hessian:
            return known
        return replace(known, hessian=read_rows(info, 0, info.shape[0]))

    def _check(self, structure: ModelStructure, path: Path) -> None:
        """Refuse statistics of another model."""
        shapes: dict[str, tuple[int, ...]] = {}
        for module in structure.modules:
            experts = (module.experts,) if module.kind == "switch" else ()
            shapes.setdefault(place_of(module.path), (*experts, module.in_dims))
        for place, statistics in self._places.items():
            shape = shapes.get(place)
            if shape is None:
                raise MixbitError(f"{path} is of another model: this one has no module {place}.")
            hessian = self._hessians.get(place)
            for found, expected in (
                (statistics.mean_square.shape, shape),
                (None if statistics.mean_abs is None else statistics.mean_abs.shape, shape),
                (statistics.count.shape, shape[:-1]),
                (None if hessian is None else hessian.shape, (*shape, shape[-1])),
            ):
                if found is not None and tuple(found) != expected:
                    raise MixbitError(
                        f"{path} is of another model: its statistics of {place} have shape "
                        f"{tuple(found)}, not {expected}."
                    )
            if not mx.isfinite(statistics.mean_square).all().item():
                raise MixbitError(
                    f"{path}: the statistics of {place} are not finite; make it again."
                )
            if (statistics.mean_square < 0).any().item():
                raise MixbitError(f"{path}: a mean square of {place} is negative; make it again.")


def write_places(path: Path, places: Mapping[str, InputStatistics]) -> None:
    """Write statistics without provenance."""
    tensors = {
        f"{place}.{field}": value
        for place, statistics in places.items()
        for field in _FIELDS
        if (value := getattr(statistics, field)) is not None
    }
    mx.save_safetensors(str(path), tensors)


def join(files: Iterable[Path], out: Path, provenance: Mapping[str, Any]) -> None:
    """Put files of :func:`write_places` together in one, byte by byte, beside and then renamed.

    Raises:
        MixbitError: the file cannot be written.
    """
    tensors = {name: info for file in files for name, info in read_header(file).items()}
    metadata = {"format": "mlx", "mixbit": json.dumps(provenance, sort_keys=True)}
    beside = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    try:
        copy_tensors(tensors, tensors, beside, metadata)
        beside.replace(out)
    except OSError as error:
        raise MixbitError(f"{out} cannot be written: {error.strerror}.") from None
    finally:
        beside.unlink(missing_ok=True)


def _read(
    path: Path,
) -> tuple[dict[str, InputStatistics], dict[str, Any], dict[str, TensorInfo]]:
    loaded: Any
    try:
        loaded = mx.load(str(path), format="safetensors", return_metadata=True)
        tensors, metadata = loaded
        provenance = json.loads(metadata["mixbit"])
        if provenance["schema"] != SCHEMA:
            raise KeyError(SCHEMA)
        names = [name.removesuffix(".count") for name in tensors if name.endswith(".count")]
        places = {
            name: InputStatistics(
                mean_square=tensors[f"{name}.mean_square"],
                count=tensors[f"{name}.count"],
                mean_abs=tensors.get(f"{name}.mean_abs"),
            )
            for name in names
        }
    except (RuntimeError, ValueError, KeyError, TypeError):
        raise MixbitError(
            f"{path} is no calibration: neither made by mixbit calibrate nor an imatrix."
        ) from None
    entries = read_header(path)
    hessians = {name: entries[key] for name in names if (key := f"{name}.hessian") in entries}
    return places, provenance, hessians
