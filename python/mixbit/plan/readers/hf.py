"""What the formats of the Hugging Face world share: where the block is and whom its names mean."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from mixbit.checkpoint import ModelStructure, ModuleShape, and_more, stem_of
from mixbit.errors import MixbitError
from mixbit.plan.entries import Entries
from mixbit.plan.model import Plan
from mixbit.plan.readers.request import Request, block_in, whole_number
from mixbit.plan.spec import QuantSpec


class Hit(NamedTuple):
    """What a rule says of a module; None in ``spec`` for not quantised."""

    spec: QuantSpec | None


class Rules:
    """Patterns in order, each with what it says; the first that matches a name's start counts."""

    def __init__(self, rules: Iterable[tuple[re.Pattern[str], Hit]]) -> None:
        self._rules = list(rules)
        self._used: set[int] = set()

    def __call__(self, name: str) -> Hit | None:
        """What the rules say of a Hugging Face module name."""
        for index, (pattern, hit) in enumerate(self._rules):
            if pattern.match(name):
                self._used.add(index)
                return hit
        return None

    def notes(self) -> list[str]:
        """A remark on patterns that have decided nothing; a typo may be the cause."""
        idle = [p.pattern for i, (p, _) in enumerate(self._rules) if i not in self._used]
        if not idle:
            return []
        return [f"the pattern {idle[0]!r}{and_more(len(idle) - 1)} decides nothing in this model"]


Decide = Callable[[str], Hit | None]
"""What a format's rules say of a Hugging Face module name, None where they say nothing."""

InScope = Callable[[ModuleShape], bool]
"""Whether the base of a format reaches a module that no rule names."""


def block_of(request: Request) -> dict[str, Any]:
    """The ``quantization_config`` of a config, or the file itself where it is one.

    Empty where the config has MLX's own block, which counts before it.
    """
    document = request.document
    if block_in(document, "quantization") and "quant_method" not in document:
        return {}
    return block_in(document, "quantization_config") or document


def has_method(request: Request, *names: str) -> bool:
    """Whether the block's ``quant_method`` is one of these."""
    return block_of(request).get("quant_method") in names


def number(block: Mapping[str, Any], key: str, origin: object, default: int | None = None) -> int:
    """A whole number in a block.

    Raises:
        MixbitError: it is missing without a default, or something else.
    """
    value = whole_number(block.get(key, default))
    if value is None:
        raise MixbitError(f"{origin}: {key} is {block.get(key)!r}, not a whole number.")
    return value


def base_spec(block: Mapping[str, Any], origin: object) -> QuantSpec:
    """``bits`` and ``group_size`` of a block as affine packing.

    Raises:
        MixbitError: they are missing, or one group spans a whole row, which MLX has no packing for.
    """
    spec = QuantSpec(number(block, "bits", origin), number(block, "group_size", origin))
    if spec.group_size == -1:
        raise MixbitError(
            f"{origin} quantises whole rows (group_size -1), which MLX cannot; start from the "
            "unquantised model with a plan in groups of 32, 64 or 128."
        )
    if fault := spec.violation():
        raise MixbitError(f"{origin}: {fault}.")
    return spec


def in_layers(shape: ModuleShape) -> bool:
    """Whether a module lies in a decoder layer: not the embedding, not the head."""
    return stem_of(shape.path).startswith("layers.")


def is_router(shape: ModuleShape) -> bool:
    """Whether a module chooses among experts."""
    return shape.path.rpartition(".")[2] in ("gate", "shared_expert_gate")


def gather(entries: Entries, decide: Decide) -> None:
    """Ask ``decide`` for every module under its Hugging Face names and keep what it says.

    Of the alternative spellings of a module, the first that is hit at all counts.
    """
    for path in entries.table.paths:
        for names in entries.table.hf_names(path):
            hits = {name: hit for name in names if (hit := decide(name))}
            for name, hit in hits.items():
                meaning = entries.table.find(name)
                entries.put(path, meaning.part if meaning else "", hit.spec)
            if hits:
                break


def finished(
    request: Request,
    structure: ModelStructure,
    entries: Entries,
    base: QuantSpec | None,
    in_scope: InScope,
    *,
    format_name: str,
    notes: Iterable[str] = (),
) -> Plan:
    """The plan of a format: what its rules say, else its base where that reaches."""
    named = entries.named(base)
    modules = {
        shape.path: named[shape.path]
        if shape.path in named
        else (base if base and in_scope(shape) and not base.violation(shape.in_dims) else None)
        for shape in structure.modules
    }
    provenance: dict[str, Any] = {"format": format_name}
    if told := [*entries.notes(), *notes]:
        provenance["notes"] = told
    return Plan(modules, str(request.path), provenance, structure)
