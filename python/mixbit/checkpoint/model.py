"""The shape of a model, from its config alone."""

import copy
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import mlx.nn as nn
from mlx.utils import tree_flatten

from mixbit.checkpoint.families import family_structure
from mixbit.checkpoint.files import read_config
from mixbit.checkpoint.structure import ModelStructure, ModuleKind, ModuleShape
from mixbit.errors import MixbitError

_MAX_LAYERS = 4096


def describe(source: Path | str | Mapping[str, Any]) -> ModelStructure:
    """Describe a model from its config: a folder, a ``config.json``, or the parsed config.

    Nothing but the config is read and no weight is computed, which takes little time and memory
    at any model size.

    Raises:
        MixbitError: the config is unreadable or mlx-lm cannot build a model from it.
    """
    config = source if isinstance(source, Mapping) else read_config(source)
    own = settled_config(config)
    _refuse_strange(own)
    return family_structure(own) or structure_of(build_model(own), own["model_type"])


def structure_of(model: nn.Module, model_type: str) -> ModelStructure:
    """Describe a model that is not quantised yet; nothing of it is computed."""
    modules = tuple(
        _module_shape(path, module)
        for path, module in _leaves(model.leaf_modules(), nn.Module.is_module)
        if hasattr(module, "to_quantized")
    )
    params = sum(weight.size for _, weight in _leaves(model.parameters()))
    return ModelStructure(model_type, modules, params)


def settled_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy of a config in which its text part says itself whether the head is tied.

    Some files say it only at the top, where mlx-lm does not look.
    """
    # mlx-lm's argument classes edit nested dictionaries, so they too need a copy of their own.
    own = copy.deepcopy(dict(config))
    text = own.get("text_config")
    if isinstance(text, dict) and isinstance(own.get("tie_word_embeddings"), bool):
        text.setdefault("tie_word_embeddings", own["tie_word_embeddings"])
    return own


def build_model(config: Mapping[str, Any]) -> nn.Module:
    """Build the mlx-lm model of a config, with random weights that are never computed.

    Raises:
        MixbitError: mlx-lm does not know the model, or the config is not a sound one.
    """
    own = settled_config(config)
    _refuse_strange(own)
    from mlx_lm.utils import _get_classes  # transformers comes with it: a slow import

    try:
        model_class, args_class = _get_classes(own)
        model = model_class(args_class.from_dict(own))
    except Exception as error:
        # What a wrong config raises depends on the model's code: anything may come.
        raise MixbitError(
            f"mlx-lm cannot build a {own['model_type']} model from this config: "
            f"{type(error).__name__}: {error}."
        ) from error
    assert isinstance(model, nn.Module)
    return model


def _refuse_strange(config: Mapping[str, Any]) -> None:
    model_type = config.get("model_type")
    # The name becomes a module to import: nothing but a plain name may reach that.
    if not isinstance(model_type, str) or not re.fullmatch(r"\w+", model_type):
        raise MixbitError("The config names no model_type; give the config.json of a model.")
    if config.get("model_file") is not None:
        raise MixbitError(
            f"The config asks to run its own code ({config['model_file']}), which mixbit does not."
        )
    text = config.get("text_config")
    for place in (config, text if isinstance(text, Mapping) else {}):
        layers = place.get("num_hidden_layers", 0)
        # Every layer costs time and memory to build, even with weights that are never computed.
        if isinstance(layers, int) and layers > _MAX_LAYERS:
            raise MixbitError(f"The config asks for {layers} layers; no model has that many.")


def parameter_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Name to shape of every parameter of a model, in the model's order; nothing is computed."""
    return {name: tuple(weight.shape) for name, weight in _leaves(model.parameters())}


def _leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[tuple[str, Any]]:
    return cast("list[tuple[str, Any]]", tree_flatten(tree, is_leaf=is_leaf))


def _module_shape(path: str, module: nn.Module) -> ModuleShape:
    *experts, out_dims, in_dims = module.weight.shape
    if experts:
        return ModuleShape(path, "switch", out_dims, in_dims, experts[0])
    kind: ModuleKind = "embedding" if isinstance(module, nn.Embedding) else "linear"
    return ModuleShape(path, kind, out_dims, in_dims)
