"""Reading a plan from wherever it is: one module a format, chosen by content."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from mixbit.checkpoint import ModelStructure, describe
from mixbit.errors import MixbitError
from mixbit.plan import recipes
from mixbit.plan.check import check, check_specs
from mixbit.plan.entries import OnConflict
from mixbit.plan.model import Plan
from mixbit.plan.readers import (
    atlas,
    auto_round,
    checkpoint,
    compressed_tensors,
    gguf_file,
    gptq,
    jang,
    kquant,
    lines,
    mlx_config,
    modelopt,
    optiq,
    plan_json,
    sensitivities,
    table,
    uniform,
)
from mixbit.plan.readers.folder import file_to_read
from mixbit.plan.readers.request import Request


class Reader(Protocol):
    """What the module of a format offers."""

    def accepts(self, request: Request) -> bool:
        """Whether the source is in this format; its content decides, not its name."""

    def read(self, request: Request) -> Plan:
        """The plan in the source, for the model that the request gives, if it gives one."""


# In this order: a format that others' files may contain comes after those.
_READERS: tuple[Reader, ...] = (
    checkpoint,
    gguf_file,
    plan_json,
    jang,
    optiq,
    kquant,
    compressed_tensors,
    gptq,
    auto_round,
    modelopt,
    uniform,
    atlas,
    mlx_config,
    table,
    sensitivities,
    lines,
)


def load(
    source: Path | str,
    model: Path | str | Mapping[str, Any] | ModelStructure | None,
    *,
    on_conflict: OnConflict = "refuse",
    target_bpw: float | None = None,
) -> Plan:
    """Do what :meth:`mixbit.plan.Plan.load` describes."""
    structure = model if isinstance(model, ModelStructure | None) else describe(model)
    named = recipes.split_name(source) if isinstance(source, str) else None
    if named is not None:
        if structure is None:
            raise MixbitError(f"Recipe {source} needs a model to make a plan for; name one.")
        return recipes.make(*named, structure)
    path = Path(source)
    if not path.exists():
        raise recipes.unknown_recipe(str(source))
    request = Request(path, structure, on_conflict, target_bpw)
    if path.is_dir():
        request = replace(request, path=file_to_read(path))
    reader = next((reader for reader in _READERS if reader.accepts(request)), None)
    if reader is None:
        raise MixbitError(
            f"{path} is no plan in any format that mixbit reads (plan.json, config.json with a "
            "quantization block, GGUF, PATTERN=VALUE lines, a table of path and bits, …)."
        )
    plan = reader.read(request)
    known = structure or plan.structure
    if known is None:
        check_specs(plan)
    else:
        check(plan, known)
    return plan
