"""Results in a folder: a file for each finished unit, so that a run that ended early goes on.

- ``job.json``: of which models, data and versions the results are;
- ``stream.safetensors``: the tokens and what the protocol says of them;
- ``scores-00000.safetensors``, ...: a unit's arrays, ``CANDIDATE.kld`` and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load_file

from mixbit.checkpoint import open_checkpoint, read_json
from mixbit.errors import MixbitError
from mixbit.kld.files import JOB, begin, save_arrays, see_together
from mixbit.kld.identity import model_hash, versions
from mixbit.kld.ranks import ranks
from mixbit.kld.result import KLDResult
from mixbit.kld.rows import RowScores
from mixbit.kld.stream import Stream
from mixbit.kld.stream_file import STREAM, read_stream, write_stream

SCHEMA = "mixbit.kld-scores/1"


@dataclass(frozen=True)
class Saved:
    """One candidate's results as a folder has them."""

    name: str
    nbytes: int
    """Bytes of its tensors."""
    result: KLDResult
    folder: Path | None
    """Where the model lies, if it still does."""


class ScoreFolder:
    """The scores of some candidates, unit by unit."""

    def __init__(
        self,
        folder: Path,
        candidates: Sequence[Path],
        reference: dict[str, Any],
        tokenizer_sha256: str | None,
        stream: Stream,
        vocab_size: int,
        mode: str,
    ) -> None:
        """Begin or take up again; ``reference`` identifies it, and ``mode`` the arithmetic."""
        self.folder, self._stream, self._count = folder, stream, len(candidates)
        job = {
            "schema": SCHEMA,
            "reference": reference,
            "candidates": [
                {
                    "name": path.resolve().name,
                    "folder": str(path.resolve()),
                    "sha256": model_hash(path),
                    "bytes": model_bytes(path),
                }
                for path in candidates
            ],
            "tokenizer_sha256": tokenizer_sha256,
            "vocab_size": vocab_size,
            "stream": stream.describe(),
            "kinds": list(stream.kind_names),
            "mode": mode,
            "versions": versions(),
        }
        if ranks().index == 0:
            begin(folder, job)
            write_stream(folder, stream)
        see_together(folder)

    def get(self, unit: int) -> list[RowScores] | None:
        """A unit's scores for each candidate, if it is finished."""
        path = self.folder / _name(unit)
        return _read(path, self._count) if path.exists() else None

    def put(self, unit: int, scores: Sequence[RowScores]) -> None:
        """Keep a unit's scores."""
        arrays = {
            f"{index}.{name}": array
            for index, own in enumerate(scores)
            for name, array in own._asdict().items()
        }
        save_arrays(self.folder / _name(unit), arrays)


def load_saved(folder: Path) -> list[Saved]:
    """Every candidate of a results folder.

    Raises:
        MixbitError: it is none, or unfinished.
    """
    job = read_json(folder / JOB)
    if job.get("schema") != SCHEMA:
        raise MixbitError(f"{folder} holds no results of mixbit kld.")
    try:
        stream = read_stream(folder, job)
        entries, vocab_size = job["candidates"], int(job["vocab_size"])
        models = [(str(e["name"]), int(e["bytes"]), Path(e["folder"])) for e in entries]
    except (KeyError, TypeError, ValueError) as error:
        raise MixbitError(f"{folder / JOB} is not whole ({error!r}).") from None
    results = [RowScores.empty(stream.scored) for _ in models]
    for index, unit in enumerate(stream.units):
        path = folder / _name(index)
        if not path.exists():
            raise MixbitError(f"{folder} is unfinished; run the command that made it again.")
        for result, scores in zip(results, _read(path, len(models)), strict=True):
            result.put(stream.unit_rows(unit), scores)
    return [
        Saved(
            name,
            nbytes,
            KLDResult.of(scores, stream, vocab_size),
            model if model.is_dir() else None,
        )
        for (name, nbytes, model), scores in zip(models, results, strict=True)
    ]


def is_saved(path: Path | str) -> bool:
    """Whether a folder holds results."""
    return (Path(path) / STREAM).is_file() and not (Path(path) / "head.safetensors").exists()


def model_bytes(folder: Path) -> int:
    """Bytes of all tensors of a model folder."""
    return sum(tensor.nbytes for tensor in open_checkpoint(folder).tensors.values())


def _name(unit: int) -> str:
    return f"scores-{unit:05d}.safetensors"


def _read(path: Path, candidates: int) -> list[RowScores]:
    try:
        arrays = load_file(path)
        return [
            RowScores(*(arrays[f"{index}.{name}"] for name in RowScores._fields))
            for index in range(candidates)
        ]
    except (OSError, SafetensorError, KeyError) as error:
        raise MixbitError(f"{path} is damaged ({error}); remove it and run again.") from None
