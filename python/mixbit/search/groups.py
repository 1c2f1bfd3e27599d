"""What is measured and planned as one: a module, those of a layer that belong together, a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mixbit.checkpoint import ModelStructure, ModuleShape
from mixbit.errors import MixbitError
from mixbit.plan import QuantSpec
from mixbit.plan.report import module_bytes, module_class

GRAINS = ("tensor", "layer-class", "class")

# Projections of one input that every recipe gives equal bits.
_TIED = (
    ("gate_proj", "up_proj"),
    ("q_proj", "k_proj", "v_proj"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_a", "in_proj_b"),
    ("gate", "shared_expert_gate"),
)
_TIED_NAME = {part: "+".join(parts) for parts in _TIED for part in parts}


@dataclass(frozen=True)
class Group:
    """Modules that get the same bits."""

    name: str
    modules: tuple[ModuleShape, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """Their paths, in the model's order."""
        return tuple(shape.path for shape in self.modules)

    def permits(self, spec: QuantSpec | None) -> bool:
        """Whether every module can be packed so; ``None``, left as it is, always."""
        return spec is None or all(spec.violation(shape.in_dims) is None for shape in self.modules)

    def nbytes(self, spec: QuantSpec | None) -> int:
        """Bytes of all modules together, scales included."""
        return sum(module_bytes(shape, spec) for shape in self.modules)

    def specs(self, widths: Sequence[int], group_sizes: Sequence[int]) -> list[QuantSpec]:
        """Every way to pack the group that is asked for and legal, the smallest first.

        Where no group size asked for divides the rows, 32 is taken if that does.
        """
        for sizes in (group_sizes, (32,)):
            found = [QuantSpec(bits, size) for bits in widths for size in sizes]
            legal = [spec for spec in found if self.permits(spec)]
            if legal:
                return sorted(legal, key=lambda spec: spec.bits_per_weight)
        return []


def groups_of(structure: ModelStructure, by: str) -> list[Group]:
    """The groups of a model, in its order.

    Args:
        structure: the model.
        by: ``"tensor"``, each module alone; ``"layer-class"``, the modules of a layer that recipes
            give equal bits (gate with up; q, k and v; in_proj_qkv with z; in_proj_a with b; the
            routers); ``"class"``, the same over all layers.

    Raises:
        MixbitError: there is no such grain.
    """
    if by not in GRAINS:
        raise MixbitError(f"by must be {', '.join(GRAINS[:-1])} or {GRAINS[-1]}, not {by!r}.")
    members: dict[str, list[ModuleShape]] = {}
    for shape in structure.modules:
        members.setdefault(_name(shape.path, by), []).append(shape)
    return [Group(name, tuple(shapes)) for name, shapes in members.items()]


def _name(path: str, by: str) -> str:
    if by == "tensor":
        return path
    parent, _, last = path.rpartition(".")
    tied = f"{parent}.{_TIED_NAME[last]}" if last in _TIED_NAME else path
    return tied if by == "layer-class" else module_class(tied)
