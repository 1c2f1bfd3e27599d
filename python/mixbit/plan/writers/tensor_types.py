"""llama.cpp's ``--tensor-type-file``: patterns on GGUF tensor names, and their types."""

from mixbit.errors import MixbitError
from mixbit.plan import ggml
from mixbit.plan.model import Plan
from mixbit.plan.names import PathTable
from mixbit.plan.writers.grouping import grouped


def render(plan: Plan, nearest: bool) -> tuple[str, list[str]]:
    """One line for the tensors of a class that have equal types, over all layers.

    llama.cpp's types stand for groups of 32; other groups are only nearly what the plan says.

    Raises:
        MixbitError: the plan's model is not known or has no GGUF names, or there is no type for a
            module's values and the nearest will not do.
    """
    if plan.structure is None:
        raise MixbitError(
            f"Plan {plan.name} does not say which model it is for; name the model as well."
        )
    table = PathTable(plan.structure)
    pairs: list[tuple[str, str]] = []
    near = 0
    for path, spec in plan.modules.items():
        name, is_exact = ggml.type_for(spec)
        gguf_names = table.gguf_names(path)
        if not gguf_names:
            raise MixbitError(f"{path} has no name in GGUF, so plan {plan.name} cannot be written.")
        if not is_exact and not nearest:
            raise MixbitError(
                f"Plan {plan.name} gives {path} {spec}, for which llama.cpp has no type; have the "
                "nearest written (--nearest)."
            )
        near += not is_exact
        pairs += [(gguf_name, name) for gguf_name in gguf_names]
    notes = [f"{near} modules are written as the nearest type, in groups of 32"] if near else []
    if any(name.endswith("ffn_gate_inp.weight") and kind != "bf16" for name, kind in pairs):
        notes.append("llama.cpp quantises no router (ffn_gate_inp), whatever its line says")
    return "".join(f"{line}\n" for line in grouped(pairs)), notes
