"""A model, taken apart, and the text that changes to it are tried over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixbit.checkpoint import ModelStructure, describe
from mixbit.errors import MixbitError
from mixbit.integration import load, resolve
from mixbit.kld.identity import model_hash, versions
from mixbit.kld.reference import Data, stream_of_data, tokenizer_size
from mixbit.kld.sizes import Sizes
from mixbit.kld.stream import Protocol, Stream
from mixbit.search.stages import Stages
from mixbit.search.swap import Packing
from mixbit.search.trials import Trials


@dataclass(frozen=True)
class Workplace:
    """A model, its stages and the text that it is tried over."""

    folder: Path
    model: Any
    structure: ModelStructure
    stages: Stages
    stream: Stream
    vocab_size: int
    packing: Packing
    sizes: Sizes

    @classmethod
    def open(
        cls, model: str | Path, data: Data, num_samples: int | None, protocol: Protocol,
        packing: Packing, batch_size: int,
    ) -> Workplace:  # fmt: skip
        """Load a model that is not quantised, and its data.

        Raises:
            MixbitError: it is quantised, is of no family that can be run in parts, or the data
                cannot be used.
        """
        sizes = Sizes(batch_size)
        folder = resolve(model)
        loaded, tokenizer = load(folder)
        structure = describe(folder)
        packed = [path for path, module in loaded.named_modules() if "scales" in module]
        if packed:
            raise MixbitError(
                f"{model} is quantised already ({packed[0]}); name the model that it was made from."
            )
        stages = Stages(loaded, structure)
        stream = stream_of_data(data, tokenizer, num_samples, protocol)
        rows = next(m.out_dims for m in structure.modules if stages.holds_head(m.path))
        vocab_size = min(rows, tokenizer_size(tokenizer))
        stream.check(vocab_size)
        own = packing.fitted(loaded, structure)
        return cls(folder, loaded, structure, stages, stream, vocab_size, own, sizes)

    def trials(self, stream: Stream) -> Trials:
        """Begin trials over a stream."""
        return Trials(self.model, self.stages, stream, self.vocab_size, self.packing, self.sizes)

    def identity(self) -> dict[str, Any]:
        """What results depend on, JSON-ready."""
        return {
            "model": {"name": self.folder.resolve().name, "sha256": model_hash(self.folder)},
            "stream": self.stream.describe(),
            "method": self.packing.identity(),
            "batch_size": self.sizes.batch,
            "versions": versions(),
        }
