"""The plan that a packed checkpoint was made by, read from its tensors."""

from dataclasses import replace
from typing import Any

from mixbit.checkpoint import Checkpoint, describe, open_checkpoint, read_json, side_part
from mixbit.errors import MixbitError
from mixbit.plan.check import nearest
from mixbit.plan.entries import Entries
from mixbit.plan.model import Plan
from mixbit.plan.names import PathTable
from mixbit.plan.readers.packed import Stored, contradictions, packed_specs
from mixbit.plan.readers.plan_json import plan_of_document
from mixbit.plan.readers.request import Request

SIDECAR = "mixbit.json"


def accepts(request: Request) -> bool:
    """Whether it is a folder."""
    return request.path.is_dir()


def read(request: Request) -> Plan:
    """Read a checkpoint folder.

    The tensors decide; what the config says otherwise is told in the plan's provenance, under
    ``contradictions``.
    """
    checkpoint = open_checkpoint(request.path)
    structure = request.structure or describe(checkpoint.config)
    name = str(request.path)
    tensors = canonical_tensors(checkpoint, PathTable(structure))
    packed = packed_specs(tensors, structure, name)
    provenance: dict[str, Any] = {"format": "mlx"}
    if lines := contradictions(checkpoint.config, packed, structure, name):
        provenance["contradictions"] = lines
    modules = {path: packed.get(path) for path in Entries(structure, name).settled()}
    plan = Plan(modules, request.path.resolve().name, provenance, structure)
    return _with_story(plan, checkpoint)


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


def _with_story(plan: Plan, checkpoint: Checkpoint) -> Plan:
    """The plan under the name that mixbit gave it, if mixbit made the checkpoint by it."""
    sidecar = checkpoint.folder / SIDECAR
    if not sidecar.exists():
        return plan
    document = read_json(sidecar).get("plan")
    if not isinstance(document, dict):
        raise MixbitError(f"{sidecar} holds no plan; remove the file or make the model again.")
    recorded = plan_of_document(document, str(sidecar), plan.structure)
    same = {p: s for p, s in recorded.modules.items() if s} == {
        p: s for p, s in plan.modules.items() if s
    }
    if not same:
        return plan
    told = {key: plan.provenance[key] for key in ("contradictions",) if key in plan.provenance}
    return replace(recorded, modules=plan.modules, provenance={**recorded.provenance, **told})
