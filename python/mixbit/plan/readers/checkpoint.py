"""The plan that a packed checkpoint was made by, read from its tensors."""

from collections.abc import Mapping
from dataclasses import replace

from mixbit.checkpoint import (
    Checkpoint,
    ModelStructure,
    describe,
    open_checkpoint,
    read_json,
    side_part,
)
from mixbit.errors import MixbitError
from mixbit.plan.check import nearest
from mixbit.plan.entries import Entries
from mixbit.plan.model import Plan
from mixbit.plan.names import PathTable
from mixbit.plan.readers.packed import Stored, contradictions, packed_specs
from mixbit.plan.readers.plan_json import plan_of_document
from mixbit.plan.readers.request import Request
from mixbit.plan.spec import QuantSpec

SIDECAR = "mixbit.json"


def accepts(request: Request) -> bool:
    """Whether it is a folder."""
    return request.path.is_dir()


def read(request: Request) -> Plan:
    """Read a checkpoint folder.

    The tensors decide; what the config says otherwise is told in the plan's provenance, under
    ``contradictions``. Name and methods are those of the plan that mixbit made it by, if it did.
    """
    checkpoint = open_checkpoint(request.path)
    structure = request.structure or describe(checkpoint.config)
    name = str(request.path)
    tensors = canonical_tensors(checkpoint, PathTable(structure))
    packed = packed_specs(tensors, structure, name)
    lines = contradictions(checkpoint.config, packed, structure, name)
    told = {"contradictions": lines} if lines else {}
    modules = {path: packed.get(path) for path in Entries(structure, name).settled()}
    recorded = recorded_plan(checkpoint, packed, structure)
    if recorded is not None:
        return replace(recorded, modules=modules, provenance={**recorded.provenance, **told})
    return Plan(modules, request.path.resolve().name, {"format": "mlx", **told}, structure)


def canonical_tensors(checkpoint: Checkpoint, table: PathTable) -> dict[str, Stored]:
    """The tensors of modules under their canonical names; those of side parts are left out.

    Raises:
        MixbitError: scales that belong to no module of the model.
    """
    tensors: dict[str, Stored] = {}
    for name, info in checkpoint.tensors.items():
        module, _, part = name.rpartition(".")
        meaning = table.find(module)
        if side_part(name) or (meaning and meaning.kind == "tied"):
            continue
        whole = meaning.paths if meaning and meaning.kind == "module" and not meaning.part else ()
        if part == "scales" and not whole:
            raise MixbitError(
                f"{checkpoint.folder} holds {name}, which belongs to no module of this "
                f"{table.model_type} model{nearest(module, table.paths)}."
            )
        canonical = f"{whole[0]}.{part}" if len(whole) == 1 else name
        tensors[canonical] = Stored(info.dtype, info.shape)
    return tensors


def recorded_plan(
    checkpoint: Checkpoint, packed: Mapping[str, QuantSpec], structure: ModelStructure
) -> Plan | None:
    """The plan that mixbit made a checkpoint by; None if it did not, or the tensors are others now.

    Raises:
        MixbitError: ``mixbit.json`` is damaged.
    """
    sidecar = checkpoint.folder / SIDECAR
    if not sidecar.exists():
        return None
    document = read_json(sidecar).get("plan")
    if not isinstance(document, dict):
        raise MixbitError(f"{sidecar} holds no plan; remove the file or make the model again.")
    plan = plan_of_document(document, str(sidecar), structure)
    return plan if {p: spec for p, spec in plan.modules.items() if spec} == packed else None
