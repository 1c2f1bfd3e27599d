"""What a search found, and the files that it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from mixbit.checkpoint import write_json
from mixbit.plan import Plan
from mixbit.search.score import Score
from mixbit.search.table import Sensitivity

SCHEMA = "mixbit.search/1"


@dataclass(frozen=True)
class Tried:
    """A plan that was measured."""

    plan: Plan
    predicted: float | None
    """Sum of sensitivities, and of what was known of pairs, nats; None where not known."""
    mean: float
    """Measured KLD, nats; inf where a token's is not finite."""
    error: float
    """Its standard error."""
    top1: float
    """Share of tokens whose most likely token stays."""
    score: Score = field(compare=False, repr=False)
    """What was measured, document by document."""

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return int(self.plan.report()["bytes"])

    @property
    def bpw(self) -> float:
        """Bits per weight."""
        return float(self.plan.report()["bpw"])

    def to_json(self) -> dict[str, Any]:
        """JSON values, without the plan."""
        return {
            "name": self.plan.name,
            "bpw": self.bpw,
            "bytes": self.nbytes,
            "predicted": self.predicted,
            "mean": None if np.isinf(self.mean) else self.mean,
            "se": None if np.isinf(self.error) else self.error,
            "top1": self.top1,
        }


@dataclass(frozen=True)
class Found:
    """The best of a budget."""

    limit: int
    """Bytes that it may take."""
    best: Tried


@dataclass(frozen=True)
class Point:
    """A point of the predicted front."""

    nbytes: int
    predicted: float


@dataclass(frozen=True)
class SearchResult:
    """What :func:`mixbit.search.search` found."""

    identity: Mapping[str, Any]
    table: Sensitivity
    documents: int
    tokens: int
    """Predictions that each plan was measured over."""
    inputs: tuple[Tried, ...]
    found: tuple[Found, ...]
    """The best plan of each budget, the smallest budget first."""
    smaller: tuple[Tried, ...]
    """For each input the smallest plan that surely measures no higher, itself if there is none."""
    front: tuple[Point, ...]
    tried: tuple[Tried, ...]
    """Every plan that the search measured."""
    measured: int
    """Measurements in all."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The result as a JSON object; plans are named by their files."""
        params = self.table.structure.params
        return {
            "schema": SCHEMA,
            **self.identity,
            "documents": self.documents,
            "tokens": self.tokens,
            "measured": self.measured,
            "seconds": self.seconds,
            "budgets": [
                {
                    "bytes_at_most": found.limit,
                    "bpw_at_most": 8 * found.limit / params,
                    "plan": self.file_of(found.limit),
                    **found.best.to_json(),
                }
                for found in self.found
            ],
            "inputs": [
                {
                    **given.to_json(),
                    "smaller": {"plan": self.file_like(at), **small.to_json()},
                }
                for at, (given, small) in enumerate(zip(self.inputs, self.smaller, strict=True))
            ],
            "front": [
                {"bytes": p.nbytes, "bpw": 8 * p.nbytes / params, "predicted": p.predicted}
                for p in self.front
            ],
            "tried": [one.to_json() for one in self.tried],
        }

    def file_of(self, limit: int) -> str:
        """Name of the file with the plan of a budget, of as many digits as tell budgets apart."""
        bpw = {found.limit: 8 * found.limit / self.table.structure.params for found in self.found}
        digits = next(
            n for n in count(3) if len({f"{bits:.{n}f}" for bits in bpw.values()}) == len(bpw)
        )
        return f"plan-{bpw[limit]:.{digits}f}.json"

    @staticmethod
    def file_like(at: int) -> str:
        """Name of the file with the smallest plan as good as an input."""
        return f"plan-like-{at}.json"

    @property
    def files(self) -> dict[str, Tried]:
        """Every plan that is left, by the name of its file."""
        return {self.file_of(found.limit): found.best for found in self.found} | {
            self.file_like(at): small for at, small in enumerate(self.smaller)
        }

    def save(self, folder: Path) -> None:
        """Write the plans, ``search.json`` and ``report.html``.

        Raises:
            MixbitError: one of them cannot be written.
        """
        from mixbit.search.report import write_report

        for name, one in self.files.items():
            self.named(one, name).save(folder / name)
        write_report(self, folder)
        write_json(folder / "search.json", self.to_json())

    def named(self, one: Tried, file_name: str) -> Plan:
        """A plan that says where it comes from, what it measured, and packed by which method."""
        told = {
            "kld": one.to_json()["mean"],
            "predicted": one.predicted,
            "data_sha256": self.identity["stream"]["sha256"],
        }
        return replace(
            one.plan,
            name=one.plan.name if one in self.inputs else file_name.removesuffix(".json"),
            provenance={**one.plan.provenance, **told},
            method=self.identity["method"]["name"],
            methods={},
        )
