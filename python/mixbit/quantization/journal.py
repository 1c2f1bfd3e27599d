"""How far a run has come, for one that takes it up."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mixbit.checkpoint import write_json


@dataclass
class Done:
    """What the disk holds of a run.

    Attributes:
        units: parameters, from the first.
        changed: tensors on which folds have put scales.
        fallbacks: modules that were quantised by less than what was asked for, with the reasons.
    """

    units: int = 0
    changed: int = 0
    fallbacks: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Done:
        """What :meth:`save` wrote, or the beginning."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return cls()

    def save(self, path: Path) -> None:
        """Write it, when the tensors themselves are on the disk."""
        write_json(path, asdict(self))
