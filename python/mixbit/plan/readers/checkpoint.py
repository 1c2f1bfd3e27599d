"""The plan that a packed checkpoint was made by, read from its config and its tensors."""

from typing import TYPE_CHECKING

from mixbit.checkpoint import (
    Checkpoint,
    ModelStructure,
    ModuleShape,
    TensorInfo,
    describe,
    open_checkpoint,
    read_json,
    side_part,
)
from mixbit.errors import MixbitError
from mixbit.plan.check import nearest
from mixbit.plan.model import Plan
from mixbit.plan.readers.mlx_config import (
    PathResolver,
    block_of,
    module_paths,
    named_entries,
)
from mixbit.plan.readers.plan_json import plan_of_document
from mixbit.plan.spec import QuantSpec

if TYPE_CHECKING:
    from mixbit.plan.readers import Source

SIDECAR = "mixbit.json"


def accepts(source: "Source") -> bool:
    """Whether it is a folder."""
    return source.path.is_dir()


def read(source: "Source", structure: ModelStructure | None) -> Plan:
    """Read a checkpoint folder.

    The tensors decide which modules are packed; how, the config says, and it must agree with
    their shapes. Where it says nothing, the shapes do.
    """
    checkpoint = open_checkpoint(source.path)
    structure = structure or describe(checkpoint.config)
    name = str(source.path)
    packed = _packed_specs(checkpoint, structure)
    block = block_of(checkpoint.config, source.path / "config.json")
    if block is None and packed:
        raise MixbitError(
            f"{name} holds packed tensors ({next(iter(packed))}) but its config.json has no "
            "quantization block."
        )
    declared = named_entries(block, structure, name) if block else {}
    for path, spec in declared.items():
        if spec != packed.get(path):
            raise MixbitError(
                f"{name}: config.json says {spec or 'not quantised'} for {path}, but its tensors "
                f"are {packed.get(path) or 'not quantised'}."
            )
    modules = {path: packed.get(path) for path in module_paths(structure)}
    plan = Plan(modules, source.path.resolve().name, {"format": "mlx"}, structure)
    return _with_story(plan, checkpoint)


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
    return Plan(plan.modules, recorded.name, recorded.provenance, plan.structure) if same else plan


def _packed_specs(checkpoint: Checkpoint, structure: ModelStructure) -> dict[str, QuantSpec]:
    shapes = {shape.path: shape for shape in structure.modules}
    resolve = PathResolver(shapes)
    specs: dict[str, QuantSpec] = {}
    for name, scales in checkpoint.tensors.items():
        if not name.endswith(".scales") or side_part(name):
            continue
        key = name.removesuffix(".scales")
        path, weight = resolve(key), checkpoint.tensors.get(f"{key}.weight")
        if path is None or weight is None:
            raise MixbitError(
                f"{checkpoint.folder} holds {name}, which belongs to no module of this "
                f"{structure.model_type} model{nearest(key, shapes)}."
            )
        specs[path] = _spec_of(shapes[path], weight, scales)
    return specs


def _spec_of(shape: ModuleShape, weight: TensorInfo, scales: TensorInfo) -> QuantSpec:
    """What the tensors are packed to, given the true width of the module.

    Words and scale columns alone do not tell: 4/128 and 8/64 look the same.
    """
    lead = (shape.experts, shape.out_dims) if shape.kind == "switch" else (shape.out_dims,)
    words, groups = weight.shape[-1:], scales.shape[-1:]
    fits = (
        weight.dtype == "U32"
        and (weight.shape, scales.shape) == (lead + words, lead + groups)
        and groups[0] > 0
        and shape.in_dims % groups[0] == 0
    )
    # Multiplied first: 3, 5 and 6 bits do not fit a whole number of times into a word.
    bits, rest = divmod(words[0] * 32, shape.in_dims) if fits else (0, 1)
    group_size = shape.in_dims // groups[0] if fits else 0
    spec = QuantSpec(bits, group_size, _mode(scales.dtype, bits, group_size))
    if rest or spec.violation(shape.in_dims):
        raise MixbitError(
            f"{weight.file}: {shape.path} is {shape.out_dims} x {shape.in_dims}, to which a packed "
            f"weight of shape {weight.shape} with scales of shape {scales.shape} does not belong."
        )
    return spec


def _mode(scales_dtype: str, bits: int, group_size: int) -> str:
    if scales_dtype != "U8":
        return "affine"
    modes = {(4, 32): "mxfp4", (8, 32): "mxfp8", (4, 16): "nvfp4"}
    return modes.get((bits, group_size), "unknown")
