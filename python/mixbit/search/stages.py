"""A model as stages that run one after the other, so that a run can begin in the middle.

Stage 0 is the embedding; stages ``1 + 2 i`` and ``2 + 2 i`` are the mixer and the MLP of layer
``i``, each with its norm and residual sum; the last is the final norm and the output head. Whole
windows run at once and from an empty context, so no cache is needed.
"""

from __future__ import annotations

import re
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_attention_mask

from mixbit.checkpoint import ModelStructure
from mixbit.errors import MixbitError
from mixbit.integration import body_and_head
from mixbit.nn.decoder import DecoderLayer, Qwen3NextDecoderLayer, feed, mix


class Stages:
    """The stages of a model loaded by :func:`mixbit.load`."""

    def __init__(self, model: Any, structure: ModelStructure) -> None:
        """Take the model apart, and see that its stages make the whole.

        Raises:
            MixbitError: the model is not one of the hybrid families.
        """
        self._body, _ = body_and_head(model)
        layers = getattr(self._body, "layers", [])
        if not all(type(layer) in (DecoderLayer, Qwen3NextDecoderLayer) for layer in layers):
            raise MixbitError(
                f"{type(model).__module__} is not built of layers that mixbit can run in parts; "
                "sensitivity is measured of qwen3_5, qwen3_5_moe and qwen3_next models."
            )
        self.head = 1 + 2 * len(layers)
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
        if not mx.array_equal(self.run(probe, 0, self.head + 1), self._body(probe)).item():
            raise MixbitError(
                f"{type(model).__module__} does more than its layers show, so it cannot be run in "
                "parts."
            )

    def stage_of(self, path: str) -> int:
        """The stage that a module belongs to."""
        layer = re.search(r"\blayers\.(\d+)\.(\w+)\.", path)
        if layer is None:
            return self.head if _is_head(path) else 0
        return 1 + 2 * int(layer[1]) + (layer[2] == "mlp")

    def holds_head(self, path: str) -> bool:
        """Whether a module is the output head, or an embedding that serves as one too."""
        return _is_head(path) or (self._tied and self.stage_of(path) == 0)

    def run(self, x: mx.array, begin: int, end: int) -> mx.array:
        """Stages ``begin`` to ``end - 1``, unevaluated.

        Args:
            x: what stage ``begin`` takes: tokens ``[B, T]`` for stage 0, else hidden states
                ``[B, T, hidden]``.
            begin: the first stage.
            end: one beyond the last; the last of all gives states after the final norm.
        """
        for stage in range(begin, end):
            x = self._step(x, stage)
        return x

    def _step(self, x: mx.array, stage: int) -> mx.array:
        if stage == 0:
            return self._body.embed_tokens(x)
        if stage == self.head:
            return self._body.norm(x)
        layer = self._body.layers[(stage - 1) // 2]
        if stage % 2 == 0:
            return feed(layer, x)
        return mix(layer, x, None if layer.is_linear else create_attention_mask(x, None), None)

    def _experts_used(self, stage: int) -> int:
        return int(self._body.layers[(stage - 1) // 2].mlp.top_k)


def _is_head(path: str) -> bool:
    return path.rpartition(".")[2] == "lm_head"
