"""Holding a packed checkpoint against its config, against a plan, and against good sense."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from mixbit.checkpoint import (
    Checkpoint,
    ModelStructure,
    and_more,
    describe,
    open_checkpoint,
    side_part,
)
from mixbit.errors import MixbitError
from mixbit.plan.model import Plan
from mixbit.plan.names import PathTable
from mixbit.plan.readers.checkpoint import SIDECAR, canonical_tensors, recorded_plan
from mixbit.plan.readers.packed import contradictions, packed_specs
from mixbit.plan.report import module_bytes, module_class
from mixbit.plan.spec import QuantSpec

AUDIT_SCHEMA = "mixbit.plan-check/1"

_ROUTERS = ("gate", "shared_expert_gate")
_SENSITIVE = ("out_proj", "o_proj", "in_proj_a", "in_proj_b", "in_proj_ba")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong or risky.

    Attributes:
        level: ``"error"`` where the checkpoint is not what it should be, ``"warning"`` where it
            can be used but its quality or its use in other programs is at risk.
        kind: what was looked at: ``"tensors"``, ``"config"``, ``"plan"``, ``"bytes"``,
            ``"router"`` or ``"sensitive"``.
        text: what was found, with the module's path.
    """

    level: Literal["error", "warning"]
    kind: str
    text: str


@dataclass(frozen=True)
class Audit:
    """What :func:`audit` found.

    Attributes:
        name: the checkpoint.
        plan: name of the plan that it was held against, None for none.
        packed: number of modules that are packed.
        bytes: bytes of the text model's tensors.
        predicted_bytes: bytes of the same as sizes computed from shapes have it.
        findings: everything wrong or risky, errors first.
    """

    name: str
    plan: str | None
    packed: int
    bytes: int
    predicted_bytes: int
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> int:
        """Number of findings that are errors."""
        return sum(finding.level == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The audit as a JSON object."""
        return {"schema": AUDIT_SCHEMA} | asdict(self)


def audit(folder: Path | str, plan: Plan | None = None, *, min_sensitive_bits: int = 5) -> Audit:
    """Check a checkpoint from its headers alone; no weight is loaded.

    Looked at are: that every packed module fits the model and one of MLX's modes; that the config
    names each and says of it what it is; that each is what the plan says, if one is given, and was
    packed by the method that it names, as far as ``mixbit.json`` tells; that its bytes are those
    that sizes are computed with; that routers have 8 bits or more; and that output projections of
    attention and the gates' projections have ``min_sensitive_bits`` or more.

    Raises:
        MixbitError: there is no checkpoint, or its files are damaged.
    """
    checkpoint = open_checkpoint(folder)
    structure = describe(checkpoint.config)
    name = str(folder)
    predicted = nbytes = 0
    packed: dict[str, QuantSpec] = {}
    findings: list[Finding] = []
    try:
        tensors = canonical_tensors(checkpoint, PathTable(structure))
        packed = packed_specs(tensors, structure, name)
        lines = contradictions(checkpoint.config, packed, structure, name)
        findings += [Finding("error", "config", line) for line in lines]
    except MixbitError as error:
        findings.append(Finding("error", "tensors", str(error)))
    else:
        if plan is not None:
            findings += _against_plan(packed, plan, structure)
            made = recorded_plan(checkpoint, packed, structure)
            findings += _methods_against_plan(made, plan) if made else []
        findings += _weak_spots(packed, min_sensitive_bits)
        nbytes, predicted, odd = _sizes(checkpoint, packed, structure)
        findings += odd
    findings.sort(key=lambda finding: finding.level != "error")
    return Audit(name, plan.name if plan else None, len(packed), nbytes, predicted, tuple(findings))


def _against_plan(
    packed: dict[str, QuantSpec], plan: Plan, structure: ModelStructure
) -> Iterator[Finding]:
    for shape in structure.modules:
        wanted, found = plan.modules.get(shape.path), packed.get(shape.path)
        if wanted != found:
            yield Finding(
                "error", "plan",
                f"plan {plan.name} says {wanted or 'not quantised'} for {shape.path}, but its "
                f"tensors are {found or 'not quantised'}",
            )  # fmt: skip
    known = {shape.path for shape in structure.modules}
    for path in plan.modules:
        if path not in known:
            yield Finding("error", "plan", f"plan {plan.name} names {path}, which is no module")


def _methods_against_plan(made: Plan, plan: Plan) -> Iterator[Finding]:
    """One finding for all modules that were packed by the same other method."""
    others: dict[tuple[str, str], list[str]] = {}
    for path, spec in plan.modules.items():
        wanted, found = plan.method_of(path), made.method_of(path)
        if spec is not None and wanted and found and wanted != found:
            others.setdefault((wanted, found), []).append(path)
    for (wanted, found), paths in others.items():
        yield Finding(
            "warning", "plan",
            f"plan {plan.name} names {wanted} for {paths[0]}{and_more(len(paths) - 1)}, but "
            f"{SIDECAR} says {found}",
        )  # fmt: skip


def _weak_spots(packed: dict[str, QuantSpec], min_sensitive_bits: int) -> Iterator[Finding]:
    """One finding for the modules of a class that have the same too few bits."""
    classes: dict[tuple[str, QuantSpec], list[str]] = {}
    for path, spec in packed.items():
        classes.setdefault((module_class(path), spec), []).append(path)
    for (name, spec), paths in classes.items():
        role = name.rpartition(".")[2]
        whose = f"{paths[0]}{and_more(len(paths) - 1)}"
        if role in _ROUTERS and spec.bits < 8:
            yield Finding("warning", "router", f"{whose} has {spec} to choose experts, not 8 bits")
        if role in _SENSITIVE and spec.bits < min_sensitive_bits:
            yield Finding(
                "warning",
                "sensitive",
                f"{whose} is sensitive and has {spec}, less than {min_sensitive_bits} bits",
            )


def _sizes(
    checkpoint: Checkpoint, packed: dict[str, QuantSpec], structure: ModelStructure
) -> tuple[int, int, list[Finding]]:
    """Bytes of the text model's tensors as they are, as predicted, and classes that differ."""
    table = PathTable(structure)
    found: dict[str, int] = {}
    others = 0
    for name, info in checkpoint.tensors.items():
        meaning = table.find(name.rpartition(".")[0])
        if side_part(name) or (meaning and meaning.kind == "tied"):
            continue
        if meaning and meaning.kind == "module" and len(meaning.paths) == 1:
            path = meaning.paths[0]
            found[path] = found.get(path, 0) + info.nbytes
        else:
            others += info.nbytes
    odd: dict[tuple[str, bool], list[tuple[str, int, int]]] = {}
    predicted = others
    for shape in structure.modules:
        size = found.get(shape.path, 0)
        expected = module_bytes(shape, packed.get(shape.path))
        predicted += expected
        if size != expected:
            key = module_class(shape.path), size == 0
            odd.setdefault(key, []).append((shape.path, size, expected))
    findings = [
        Finding(
            "error" if is_missing else "warning",
            "bytes",
            f"{rows[0][0]}{and_more(len(rows) - 1)} takes {sum(row[1] for row in rows):,} bytes, "
            f"but {sum(row[2] for row in rows):,} with 16-bit floats",
        )
        for (_, is_missing), rows in odd.items()
    ]
    return others + sum(found.values()), predicted, findings
