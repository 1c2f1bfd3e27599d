"""Reading a plan from wherever it is: one module a format, chosen by content."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from mixbit.checkpoint import ModelStructure, describe, read_json
from mixbit.errors import MixbitError
from mixbit.plan import recipes
from mixbit.plan.check import check, check_specs
from mixbit.plan.model import Plan
from mixbit.plan.readers import checkpoint, mlx_config, plan_json


@dataclass(frozen=True)
class Source:
    """A file or folder that a plan is to be read from; its content is read once, when wanted."""

    path: Path

    @cached_property
    def document(self) -> dict[str, Any]:
        """The file's JSON object; MixbitError if it is none."""
        return read_json(self.path)


class Reader(Protocol):
    """What the module of a format offers."""

    def accepts(self, source: Source) -> bool:
        """Whether the source is in this format; its content decides, not its name."""

    def read(self, source: Source, structure: ModelStructure | None) -> Plan:
        """The plan in the source, for the model of that structure if one is given."""


_READERS: tuple[Reader, ...] = (checkpoint, plan_json, mlx_config)


def load(source: Path | str, model: Path | str | Mapping[str, Any] | ModelStructure | None) -> Plan:
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
    content = Source(path)
    reader = next((reader for reader in _READERS if reader.accepts(content)), None)
    if reader is None:
        raise MixbitError(
            f"{path} is neither a plan.json nor a config.json with a quantization block."
        )
    plan = reader.read(content, structure)
    known = structure or plan.structure
    if known is None:
        check_specs(plan)
    else:
        check(plan, known)
    return plan
