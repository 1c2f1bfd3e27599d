"""What a sweep found, and the file that keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mixbit.checkpoint import ModelStructure, read_json, write_json
from mixbit.errors import MixbitError
from mixbit.plan import QuantSpec
from mixbit.search.groups import Group
from mixbit.search.score import Counts, Score, rank_correlation

SCHEMA = "mixbit.sensitivity/1"
FILE = "sensitivity.json"


@dataclass(frozen=True)
class Cell:
    """One group at one width, all else as it is."""

    group: Group
    spec: QuantSpec
    nbytes: int
    """Bytes of the group so packed."""
    mean: float
    """Mean KLD, nats; inf where a token's divergence is not finite."""
    error: float
    """Its standard error, documents for independent."""
    top1: float
    """Share of tokens whose most likely token stays."""
    contexts: tuple[float, ...]
    """Mean KLD by doublings of context; NaN where no token has that much."""
    proxies: Mapping[str, float]
    """See :mod:`mixbit.search.proxies`."""

    @classmethod
    def of(
        cls,
        group: Group,
        spec: QuantSpec,
        score: Score,
        counts: Counts,
        proxies: Mapping[str, float],
    ) -> Cell:
        """The cell that a score makes."""
        with np.errstate(invalid="ignore", divide="ignore"):
            contexts = score.contexts / counts.contexts
        return cls(
            group,
            spec,
            group.nbytes(spec),
            score.mean(counts),
            score.error(counts),
            score.top1 / int(counts.documents.sum()),
            tuple(contexts.tolist()),
            proxies,
        )


@dataclass(frozen=True)
class Sensitivity:
    """The table of a sweep."""

    identity: Mapping[str, Any]
    """Model, data, method and versions that it holds for."""
    structure: ModelStructure
    by: str
    cells: tuple[Cell, ...]
    documents: int
    """Documents that were measured."""
    tokens: int
    """Predictions that were scored for each cell."""
    contexts: tuple[int, ...]
    """How many of them have how much context, by doublings."""
    settled: float
    """Mean rank correlation with what documents drawn anew would have given."""
    saved: float
    """Weight products that whole forward passes would have taken, over those that were computed;
    the output head, which every measurement needs whole, left out of both."""
    seconds: float

    @property
    def groups(self) -> list[Group]:
        """The groups, in the model's order."""
        return list(dict.fromkeys(cell.group for cell in self.cells))

    def noise(self) -> dict[Group, float]:
        """What any change at all of each group costs, nats.

        Whatever changes, 16-bit activations round differently from there on. Beyond that the KLD of
        a width falls fourfold with each bit, so of two high widths ``b < c`` of a group, with means
        ``K_b`` and ``K_c``, the constant part is ``(r K_c - K_b) / (r - 1)``, ``r = 4^(c - b)``. 0
        for groups without two widths of 5 bits or more.
        """
        return {group: _noise([c for c in self.cells if c.group == group]) for group in self.groups}

    def costs(self) -> dict[tuple[Group, QuantSpec], float]:
        """Mean KLD of each cell less the noise of its group, which a plan pays once."""
        noise = self.noise()
        return {
            (cell.group, cell.spec): max(cell.mean - noise[cell.group], 0.0) for cell in self.cells
        }

    def correlations(self) -> dict[str, float]:
        """Spearman's rank correlation of each proxy with the measured KLD, over all cells."""
        measured = np.array([cell.mean for cell in self.cells])
        return {
            name: rank_correlation(measured, np.array([c.proxies[name] for c in self.cells]))
            for name in self.cells[0].proxies
        }

    def to_json(self) -> dict[str, Any]:
        """The table as a JSON object; :meth:`from_json` is the way back."""
        groups = []
        for group in self.groups:
            own = [cell for cell in self.cells if cell.group == group]
            groups.append(
                {"name": group.name, "modules": list(group.paths), "widths": list(map(_row, own))}
            )
        return {
            "schema": SCHEMA,
            **self.identity,
            "structure": self.structure.to_json(),
            "by": self.by,
            "documents": self.documents,
            "tokens": self.tokens,
            "contexts": list(self.contexts),
            "settled": self.settled,
            "saved": self.saved,
            "seconds": self.seconds,
            "proxies": self.correlations(),
            "groups": groups,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Sensitivity:
        """Read what :meth:`to_json` wrote; KeyError, TypeError or ValueError where it did not."""
        structure = ModelStructure.from_json(document["structure"])
        shapes = {shape.path: shape for shape in structure.modules}
        cells = []
        for entry in document["groups"]:
            group = Group(str(entry["name"]), tuple(shapes[path] for path in entry["modules"]))
            cells += [_cell(group, row) for row in entry["widths"]]
        if not cells:
            raise ValueError("it has no groups")
        identity = ("model", "stream", "method", "batch_size", "versions")
        return cls(
            identity={key: document[key] for key in identity},
            structure=structure,
            by=str(document["by"]),
            cells=tuple(cells),
            documents=int(document["documents"]),
            tokens=int(document["tokens"]),
            contexts=tuple(map(int, document["contexts"])),
            settled=float(document["settled"]),
            saved=float(document["saved"]),
            seconds=float(document["seconds"]),
        )

    def save(self, folder: Path) -> None:
        """Write ``sensitivity.json``.

        Raises:
            MixbitError: it cannot be written.
        """
        write_json(folder / FILE, self.to_json())

    @classmethod
    def load(cls, source: str | Path) -> Sensitivity:
        """Read a table: its file, or the folder that a sweep made.

        Raises:
            MixbitError: there is none, or it is damaged or unfinished.
        """
        path = Path(source)
        path = path / FILE if path.is_dir() else path
        if not path.exists():
            raise MixbitError(
                f"{path} does not exist; make it with mixbit sensitivity, or finish that."
            )
        document = read_json(path)
        if document.get("schema") != SCHEMA:
            raise MixbitError(f"{path} holds no sensitivities of mixbit.")
        try:
            return cls.from_json(document)
        except (KeyError, TypeError, ValueError) as error:
            raise MixbitError(f"{path} is damaged ({type(error).__name__}: {error}).") from None


def _noise(cells: Sequence[Cell]) -> float:
    """What any change of a group costs, from its two highest widths."""
    *_, low, high = [None, None, *sorted(cells, key=lambda cell: cell.spec.bits)]
    if low is None or high is None or low.spec.bits < 5 or low.spec.bits == high.spec.bits:
        return 0.0
    ratio = 4.0 ** (high.spec.bits - low.spec.bits)
    found = (ratio * high.mean - low.mean) / (ratio - 1)
    return min(max(found, 0.0), high.mean) if np.isfinite(found) else 0.0


def _row(cell: Cell) -> dict[str, Any]:
    return {
        **cell.spec.to_json(),
        "bytes": cell.nbytes,
        "mean": None if np.isinf(cell.mean) else cell.mean,
        "se": None if np.isinf(cell.error) else cell.error,
        "top1": cell.top1,
        "contexts": [None if np.isnan(value) else value for value in cell.contexts],
        "proxies": dict(cell.proxies),
    }


def _cell(group: Group, row: Mapping[str, Any]) -> Cell:
    spec = QuantSpec(int(row["bits"]), int(row["group_size"]), str(row["mode"]))
    if not group.permits(spec):
        raise ValueError(f"{group.name} cannot be packed as {spec}")
    return Cell(
        group,
        spec,
        group.nbytes(spec),
        np.inf if row["mean"] is None else float(row["mean"]),
        np.inf if row["se"] is None else float(row["se"]),
        float(row["top1"]),
        tuple(np.nan if value is None else float(value) for value in row["contexts"]),
        {str(name): float(value) for name, value in row["proxies"].items()},
    )
