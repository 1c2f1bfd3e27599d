"""Gathering what a file says of single modules, under their canonical paths."""

from typing import Literal

from mixbit.checkpoint import ModelStructure, and_more
from mixbit.errors import MixbitError, printable
from mixbit.plan.check import nearest
from mixbit.plan.names import PathTable
from mixbit.plan.spec import QuantSpec

OnConflict = Literal["refuse", "highest"]


class Entries:
    """What a source says, key by key, and what that makes of every module.

    Args:
        structure: the model.
        origin: the source, for messages.
        on_conflict: whether keys that give one module different values are refused, or whether
            the value with the most bits stands.
    """

    def __init__(
        self, structure: ModelStructure, origin: object, on_conflict: OnConflict = "refuse"
    ) -> None:
        self.table = PathTable(structure)
        self._shapes = {shape.path: shape for shape in structure.modules}
        self._origin = origin
        self._on_conflict = on_conflict
        self._values: dict[str, dict[str, QuantSpec | None]] = {}
        self.ignored: list[str] = []
        """Keys of parts that the text model lacks: vision, MTP, the head of a tied model."""

    def add(self, key: str, spec: QuantSpec | None) -> None:
        """Take in one entry, None for not quantised.

        Raises:
            MixbitError: the key is nothing of this model, or something that is never quantised.
        """
        meaning = self.table.find(key)
        if meaning is None or (meaning.kind == "fixed" and spec is not None):
            raise MixbitError(
                f"{self._origin} names {key}, which is no module of this "
                f"{self.table.model_type} model that can be quantised"
                f"{nearest(key, self._shapes)}."
            )
        if meaning.kind in ("side", "tied"):
            self.ignored.append(key)
        for path in meaning.paths:
            self.put(path, meaning.part, spec)

    def put(self, path: str, part: str, spec: QuantSpec | None) -> None:
        """Take in a value for a module or, if ``part`` is not empty, for a part of it.

        Raises:
            MixbitError: there is another value for the same already.
        """
        parts = self._values.setdefault(path, {})
        if part in parts:
            spec = self._resolved(path, parts[part], spec)
        parts[part] = spec

    def named(self, default: QuantSpec | None = None) -> dict[str, QuantSpec | None]:
        """The modules that the source names.

        Args:
            default: what a part of a fused module gets that the source does not name.

        Raises:
            MixbitError: the parts of a fused module disagree.
        """
        return {path: self._whole(path, default) for path in self._shapes if path in self._values}

    def settled(self, default: QuantSpec | None = None) -> dict[str, QuantSpec | None]:
        """Every module of the model; ``default`` for those not named, where their width permits."""
        named = self.named(default)
        return {
            path: named[path] if path in named else self._fit(path, default)
            for path in self._shapes
        }

    def notes(self) -> list[str]:
        """Remarks on what was passed over."""
        if not self.ignored:
            return []
        more = and_more(len(self.ignored) - 1)
        return [f"passed over {printable(self.ignored[0])}{more}: no part of the text model"]

    def _whole(self, path: str, default: QuantSpec | None) -> QuantSpec | None:
        parts = self._values[path]
        if "" not in parts:
            missing = self.table.parts(path, parts)
            parts = {part: self._fit(path, default) for part in missing} | parts
        return self._resolved(path, *parts.values())

    def _resolved(self, path: str, *values: QuantSpec | None) -> QuantSpec | None:
        different = dict.fromkeys(values)
        if len(different) == 1:
            return values[0]
        if self._on_conflict == "highest":
            return max(different, key=_weight)
        told = ", ".join(str(spec or "not quantised") for spec in different)
        raise MixbitError(
            f"{self._origin} has entries for {path} that differ ({told}); give them one value, or "
            "have the highest taken (--on-conflict highest)."
        )

    def _fit(self, path: str, spec: QuantSpec | None) -> QuantSpec | None:
        return None if spec is None or spec.violation(self._shapes[path].in_dims) else spec


def _weight(spec: QuantSpec | None) -> tuple[int, int]:
    """Order of "highest": not quantised, then bits, then smaller groups."""
    return (16, 0) if spec is None else (spec.bits, -spec.group_size)
