"""The plan itself."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mixbit.checkpoint import ModelStructure, write_json
from mixbit.errors import MixbitError
from mixbit.plan.check import check_specs
from mixbit.plan.spec import QuantSpec

if TYPE_CHECKING:
    from mixbit.plan.entries import OnConflict


@dataclass(frozen=True)
class Plan:
    """Bits per module of one model.

    Attributes:
        modules: mlx-lm's module path to what its weight is quantised to, None for left as it is.
            A module that is not named is left as it is too.
        name: what to call the plan in tables and messages.
        provenance: where it comes from; JSON values only.
        structure: the model it was made for, where that is known. It takes no part in comparisons.
        method: how the weights that are quantised are packed (``"gptq+search"``, …), where it
            matters; see docs/quantize.md. None leaves that to whoever quantises.
        methods: module path to method, for quantised modules that have one of their own.
    """

    modules: Mapping[str, QuantSpec | None]
    name: str = "custom"
    provenance: Mapping[str, Any] = field(default_factory=dict)
    structure: ModelStructure | None = field(default=None, compare=False, repr=False)
    method: str | None = None
    methods: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Close the mappings, so that a plan can be shared safely."""
        for name in ("modules", "provenance", "methods"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @classmethod
    def load(
        cls,
        source: Path | str,
        *,
        model: Path | str | Mapping[str, Any] | ModelStructure | None = None,
        on_conflict: "OnConflict" = "refuse",
        target_bpw: float | None = None,
    ) -> "Plan":
        """Read a plan, or make one by a recipe; what ``source`` is follows from its content.

        Args:
            source: a file in any of the formats of ``docs/plans.md``, a checkpoint folder, or the
                name of a recipe (``uniform-4``, ``unsloth-2026-03@3``, …). A string that is a
                recipe's name means the recipe even if a file is called so; ``./uniform-4`` is the
                file.
            model: the model that the plan is for: its folder, its ``config.json``, the parsed
                config, or its structure. A source that does not say which model it is for needs
                it; others are checked against it.
            on_conflict: ``"highest"`` lets the most bits stand where entries for one module, such
                as the parts of a fused projection, differ; ``"refuse"`` raises.
            target_bpw: the size in bits per weight of a plan made from a ranking of modules.

        Raises:
            MixbitError: nothing readable is there, or the plan fails :func:`mixbit.plan.check`.
        """
        from mixbit.plan.readers import load  # the readers build plans

        return load(source, model, on_conflict=on_conflict, target_bpw=target_bpw)

    @classmethod
    def from_mlx_config(
        cls, block: Mapping[str, Any], structure: ModelStructure, *, name: str = "config.json"
    ) -> "Plan":
        """Read the ``quantization`` block of an mlx-lm ``config.json``.

        A module that the block does not name gets the block's top-level values if its width
        permits, as in mlx-lm's own conversion.

        Raises:
            MixbitError: the block is malformed, names no module, or asks for what MLX cannot pack.
        """
        from mixbit.plan.readers.mlx_config import plan_of_block

        return plan_of_block(block, structure, name=name)

    def method_of(self, path: str) -> str | None:
        """The method that the plan names for a module, or for all; None where it names none."""
        return self.methods.get(path, self.method)

    def to_mlx_config(self) -> dict[str, Any]:
        """The plan as mlx-lm's ``quantization`` block; empty if nothing is quantised.

        Every module is named, also where its values equal the top-level ones (the most frequent),
        so that no reader has to guess; ``false`` stands for not quantised. Methods are left out:
        mlx-lm refuses keys that it does not know, and loading needs none of them.
        """
        frequent = Counter(spec for spec in self.modules.values() if spec is not None)
        if not frequent:
            return {}
        top, _ = frequent.most_common(1)[0]
        return top.to_json() | self._modules_to_json()

    def to_json(self) -> dict[str, Any]:
        """The plan as the JSON object of a ``plan.json``."""
        modules = self._modules_to_json()
        for path, method in self.methods.items():
            modules[path]["method"] = method
        document: dict[str, Any] = {
            "schema": PLAN_SCHEMA,
            "name": self.name,
            "provenance": dict(self.provenance),
            "modules": modules,
        }
        if self.method is not None:
            document["method"] = self.method
        if self.structure is not None:
            document["model"] = self.structure.to_json()
        return document

    def save(self, path: Path | str) -> None:
        """Write the plan as a ``plan.json``, replacing the file if there is one.

        Raises:
            MixbitError: the plan holds values that MLX cannot pack, or an unknown method, or the
                file cannot be written.
        """
        check_specs(self)
        write_json(Path(path), self.to_json())

    def report(self, structure: ModelStructure | None = None) -> dict[str, Any]:
        """Sizes under the plan, in all, per module and per class of modules.

        The result is the JSON of ``mixbit plan show``; :mod:`mixbit.plan.report` describes it.

        Args:
            structure: the model; without it the one that the plan was made for.

        Raises:
            MixbitError: no model is known, or the plan does not fit it.
        """
        from mixbit.plan.report import report

        structure = structure or self.structure
        if structure is None:
            raise MixbitError(
                f"Plan {self.name} does not say which model it is for; name the model as well."
            )
        return report(self, structure)

    def _modules_to_json(self) -> dict[str, Any]:
        items = self.modules.items()
        return {path: False if spec is None else spec.to_json() for path, spec in items}


PLAN_SCHEMA = "mixbit.plan/1"
