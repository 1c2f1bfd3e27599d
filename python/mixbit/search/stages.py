"""A model as stages that run one after the other, so that a run can begin in the middle.

Stage 0 is the embedding, four stages are a layer, and the last is the final norm and the output
head. A layer's stages are its mixer up to the output projection, that with the residual sum, its
MLP up to the down projection, and that with the residual sum; experts are one stage with their
router, and nothing is left for the stage after them. Whole windows run at once and from an empty
context, so no cache is needed.

What goes from stage to stage is a tuple of arrays: the residual stream ``[B, T, hidden]``, tokens
``[B, T]`` before stage 0, and behind it what a projection yet to come reads.
"""

from __future__ import annotations

import re
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_attention_mask

from mixbit.checkpoint import ModelStructure
from mixbit.errors import MixbitError
from mixbit.integration import body_and_head
from mixbit.nn.attention import Attention
from mixbit.nn.decoder import DecoderLayer, Qwen3NextDecoderLayer, feed
from mixbit.nn.gated_delta_net import GatedDeltaNet, Qwen3NextGatedDeltaNet
from mixbit.nn.mlp import MLP
from mixbit.nn.projections import add_product

States = tuple[mx.array, ...]
"""What a stage takes."""

_LAYERS = (DecoderLayer, Qwen3NextDecoderLayer)
_MIXERS = (Attention, GatedDeltaNet, Qwen3NextGatedDeltaNet)
_LAST = {"out_proj": 1, "o_proj": 1, "down_proj": 3}
"""Projections that end a block, with their stage in a layer."""


class Stages:
    """The stages of a model loaded by :func:`mixbit.load`."""

    def __init__(self, model: Any, structure: ModelStructure) -> None:
        """Take the model apart, and see that its stages make the whole.

        Raises:
            MixbitError: the model is not one of the hybrid families.
        """
        self._body, _ = body_and_head(model)
        layers = getattr(self._body, "layers", [])
        if not all(type(x) in _LAYERS and type(_mixer(x)) in _MIXERS for x in layers):
            raise MixbitError(
                f"{type(model).__module__} is not built of layers that mixbit can run in parts; "
                "sensitivity is measured of qwen3_5, qwen3_5_moe and qwen3_next models."
            )
        self.head = 1 + 4 * len(layers)
        """Index of the last stage."""
        self._tied = not any(_is_head(shape.path) for shape in structure.modules)
        self.work = [0] * (self.head + 1)
        """Weights that a token is multiplied by in each stage."""
        for shape in structure.modules:
            stage = self.stage_of(shape.path)
            if shape.kind == "switch":
                self.work[stage] += shape.params * self._experts_used(stage) // shape.experts
            elif self.holds_head(shape.path):
                self.work[self.head] += shape.params
            elif shape.kind == "linear":
                self.work[stage] += shape.params
        probe = mx.arange(5)[None]
        (last,) = self.run((probe,), 0, self.head + 1)
        if not mx.array_equal(last, self._body(probe)).item():
            raise MixbitError(
                f"{type(model).__module__} does more than its layers show, so it cannot be run in "
                "parts."
            )

    def stage_of(self, path: str) -> int:
        """The stage that a module belongs to."""
        found = re.search(r"\blayers\.(\d+)\.(\w+)\.", path)
        if found is None:
            return self.head if _is_head(path) else 0
        layer = int(found[1])
        if found[2] == "mlp" and type(self._body.layers[layer].mlp) is not MLP:
            return 3 + 4 * layer
        last = _LAST.get(path.rpartition(".")[2])
        return 1 + 4 * layer + (last if last is not None else 2 * (found[2] == "mlp"))

    def end_of_block(self, stage: int) -> int:
        """The first stage after the mixer or MLP that a stage belongs to."""
        return stage + 2 - (stage - 1) % 2

    def holds_head(self, path: str) -> bool:
        """Whether a module is the output head, or an embedding that serves as one too."""
        return _is_head(path) or (self._tied and self.stage_of(path) == 0)

    def run(self, states: States, begin: int, end: int) -> States:
        """Stages ``begin`` to ``end - 1`` of what ``begin`` takes, unevaluated.

        The last stage of all gives states after the final norm.
        """
        for stage in range(begin, end):
            states = self._step(states, stage)
        return states

    def _step(self, states: States, stage: int) -> States:
        x, inner = states[0], states[-1]
        if stage == 0:
            return (self._body.embed_tokens(x),)
        if stage == self.head:
            return (self._body.norm(x),)
        at, part = divmod(stage - 1, 4)
        layer = self._body.layers[at]
        if part == 0:
            mask = None if layer.is_linear else create_attention_mask(x, None)
            return x, _mixer(layer).mixed(x, mask, None, layer.input_layernorm)
        if part == 1:
            mixer = _mixer(layer)
            return (add_product(x, inner, mixer.out_proj if layer.is_linear else mixer.o_proj),)
        if type(layer.mlp) is not MLP:
            return (feed(layer, x),) if part == 2 else states
        if part == 2:
            return x, layer.mlp.inner(x, layer.post_attention_layernorm)
        return (add_product(x, inner, layer.mlp.down_proj),)

    def _experts_used(self, stage: int) -> int:
        return int(self._body.layers[(stage - 1) // 4].mlp.top_k)


def _mixer(layer: Any) -> Any:
    return layer.linear_attn if layer.is_linear else layer.self_attn


def _is_head(path: str) -> bool:
    return path.rpartition(".")[2] == "lm_head"
