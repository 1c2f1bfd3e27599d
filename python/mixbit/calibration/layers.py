"""One layer after the other over all of the text, with files to go on from."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from mlx_lm.models.base import create_attention_mask

from mixbit.calibration.inputs import layer_and_role, place_of
from mixbit.calibration.record import Recorder, Sums
from mixbit.calibration.saved import write_places
from mixbit.checkpoint import ModelStructure, ModuleShape, TensorInfo, gather_rows
from mixbit.errors import MixbitError
from mixbit.integration import body_and_head
from mixbit.kld.files import save

Progress = Callable[[int, int, str], None]
Places = Mapping[str, Mapping[str, ModuleShape]]


def measured_places(structure: ModelStructure) -> dict[str, dict[str, ModuleShape]]:
    """Layer -> path -> module at which an input is measured, the output head last under ``""``."""
    found: dict[str, dict[str, ModuleShape]] = {}
    for module in structure.modules:
        layer, _ = layer_and_role(module.path)
        if layer and place_of(module.path) == module.path:
            found.setdefault(layer, {})[module.path] = module
    outside = [module for module in structure.modules if not layer_and_role(module.path)[0]]
    head = outside[-1]  # the embedding, where that is the head as well
    return found | {"": {head.path: head}}


class LayerRun:
    """A model on its way through calibration text.

    A layer's statistics and the residual stream behind it are written when it is done; the stream
    first, so that statistics that are there can be gone on from.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[npt.NDArray[np.int32]],
        places: Places,
        folder: Path,
        hessians: Container[str],
        embedding: TensorInfo | None,
    ) -> None:
        """Take a lazily loaded model, tokens [B, T] each, and a folder for the files.

        ``hessians`` are the places where they are kept. ``embedding`` is where the embedding lies,
        unless it is packed: of the largest matrix only the rows of tokens that occur are read.
        """
        self._body, _ = body_and_head(model)
        self._batches, self._places, self._folder = batches, places, folder
        self._hessians, self._embedding = hessians, embedding
        self._files = [folder / f"layer-{i:05d}.safetensors" for i in range(len(places))]

    def run(self, progress: Progress | None) -> list[Path]:
        """Do what is left to do; returns the statistics' files."""
        begin = next((i for i, file in enumerate(self._files) if not file.exists()), None)
        if begin is None:
            return self._files
        stream = self._begin_stream(begin)
        for index, (layer, modules) in enumerate(self._places.items()):
            if index >= begin:
                sums = {path: self._sums(module) for path, module in modules.items()}
                stream = self._through(index, layer, sums, stream)
                places = {path: own.statistics() for path, own in sums.items()}
                save(self._files[index], partial(write_places, places=places))
                del sums, places  # as large as the layer, with Hessians
                mx.clear_cache()
                self._stream_file(index - 1).unlink(missing_ok=True)
            if progress is not None:
                progress(index + 1, len(self._files), layer.rstrip(".") or "output head")
        return self._files

    def _sums(self, module: ModuleShape) -> Sums:
        experts = module.experts if module.kind == "switch" else None
        return Sums(module.in_dims, experts, hessian=module.path in self._hessians)

    def _begin_stream(self, layer: int) -> list[mx.array]:
        """The residual stream before a layer, an array [B, T, hidden] a batch."""
        if layer > 0:
            loaded: Any = mx.load(str(self._stream_file(layer - 1)))
            return [loaded[f"{i:06d}"] for i in range(len(self._batches))]
        rows = self._body.embed_tokens.weight.shape[0]
        for tokens in self._batches:
            if not 0 <= tokens.min() <= tokens.max() < rows:
                raise MixbitError(
                    f"The data hold tokens from {tokens.min()} to {tokens.max()}, but the model's "
                    f"vocabulary is 0 to {rows - 1}; were they made with another tokenizer?"
                )
        if self._embedding is None:
            stream = [self._body.embed_tokens(mx.array(tokens)) for tokens in self._batches]
        else:
            used = np.unique(np.concatenate([tokens.ravel() for tokens in self._batches]))
            table = gather_rows(self._embedding, [range(row, row + 1) for row in used.tolist()])
            stream = [table[mx.array(np.searchsorted(used, t))] for t in self._batches]
        mx.eval(stream)
        self._body.embed_tokens = nn.Module()  # its weight may go
        return stream

    def _through(
        self, index: int, layer: str, sums: Mapping[str, Sums], stream: list[mx.array]
    ) -> list[mx.array]:
        """The stream behind a layer; of the last one's the head reads the norm."""
        if not layer:
            (own,) = sums.values()
            for states in stream:
                own.add(self._body.norm(states))
                mx.eval(own.pending())
                own.collect()
            return stream
        block = self._body.layers[index]
        for path, own in sums.items():
            _record(block, path.removeprefix(layer), own)
        behind = []
        for states in stream:
            mask = None if block.is_linear else create_attention_mask(states, None)
            behind.append(block(states, mask, None))
            mx.eval(behind[-1], *(own.pending() for own in sums.values()))
            for own in sums.values():
                own.collect()
        self._body.layers[index] = nn.Module()  # its weights may go
        mx.clear_cache()
        tensors = {f"{i:06d}": states for i, states in enumerate(behind)}
        save(self._stream_file(index), lambda path: mx.save_safetensors(str(path), tensors))
        return behind

    def _stream_file(self, layer: int) -> Path:
        return self._folder / f"stream-{layer:05d}.safetensors"


def _record(block: Any, role: str, sums: Sums) -> None:
    """Put a recorder around the module at ``role`` of a layer."""
    *parents, name = role.split(".")
    for parent in parents:
        block = getattr(block, parent)
    setattr(block, name, Recorder(getattr(block, name), sums))
