"""What a plan needs to know of a model: which modules there are, and how large."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

ModuleKind = Literal["linear", "embedding", "switch"]


@dataclass(frozen=True)
class ModuleShape:
    """A module whose weight can be quantised.

    Attributes:
        path: mlx-lm's module path, such as ``language_model.model.layers.0.mlp.gate_proj``.
        kind: a linear layer, an embedding, or a stack of expert layers.
        out_dims: rows of the weight (of each expert).
        in_dims: columns of the weight; groups run along them.
        experts: how many weights are stacked; 1 unless ``kind`` is ``"switch"``.
    """

    path: str
    kind: ModuleKind
    out_dims: int
    in_dims: int
    experts: int = 1

    @property
    def params(self) -> int:
        """Number of weights."""
        return self.experts * self.out_dims * self.in_dims


@dataclass(frozen=True)
class ModelStructure:
    """What a plan needs to know of a model.

    Attributes:
        model_type: mlx-lm's name of the architecture.
        modules: every module that can be quantised, in the model's order.
        params: number of parameters of the whole model, those that are never quantised included.
    """

    model_type: str
    modules: tuple[ModuleShape, ...]
    params: int

    def to_json(self) -> dict[str, Any]:
        """The structure as a JSON object; :meth:`from_json` is the way back."""
        modules = {shape.path: asdict(shape) for shape in self.modules}
        for entry in modules.values():
            del entry["path"]
        return {"model_type": self.model_type, "params": self.params, "modules": modules}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "ModelStructure":
        """Read what :meth:`to_json` wrote; KeyError, TypeError or ValueError where it did not."""
        modules = tuple(
            ModuleShape(
                path,
                _module_kind(entry["kind"]),
                _positive(entry["out_dims"]),
                _positive(entry["in_dims"]),
                _positive(entry["experts"]),
            )
            for path, entry in document["modules"].items()
        )
        return cls(str(document["model_type"]), modules, _positive(document["params"]))


def _module_kind(value: object) -> ModuleKind:
    if value not in ("linear", "embedding", "switch"):
        raise ValueError(f"unknown kind {value!r}")
    return value


def _positive(value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{value!r} is not a positive whole number")
    return value
