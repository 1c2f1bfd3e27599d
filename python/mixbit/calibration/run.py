"""Running a model over calibration text, layer by layer."""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mixbit.calibration.inputs import hessian_place_of
from mixbit.calibration.layers import LayerRun, Progress, measured_places
from mixbit.calibration.saved import SCHEMA, join
from mixbit.checkpoint import TensorInfo, describe, open_checkpoint, stem_of
from mixbit.checkpoint.weights import HYBRIDS
from mixbit.errors import MixbitError
from mixbit.integration import load, resolve
from mixbit.kld.documents import read_documents
from mixbit.kld.files import begin, sha256
from mixbit.kld.identity import model_hash, versions

REPORT_SCHEMA = "mixbit.calibrate/1"


@dataclass(frozen=True)
class CalibrateReport:
    """What :func:`calibrate` did.

    Attributes:
        out: the file it wrote.
        bytes: its size.
        documents: how many were read.
        tokens: how many tokens the model ran over.
        inputs: places at which inputs were measured.
        idle_experts: expert inputs without a single token, of all layers.
        seconds: time it took.
    """

    out: Path
    bytes: int
    documents: int
    tokens: int
    inputs: int
    idle_experts: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {"schema": REPORT_SCHEMA} | asdict(self) | {"out": str(self.out)}


def calibrate(
    model: Path | str,
    data: Path | str,
    out: Path | str,
    *,
    num_samples: int | None = None,
    window: int = 2048,
    batch_size: int = 1,
    hessian: str | None = None,
    progress: Progress | None = None,
) -> CalibrateReport:
    """Measure the inputs of a model's linear layers over text, and keep the statistics in a file.

    One layer after the other runs over all of the text, so memory holds one layer, the residual
    stream of every token, and what Hessians were asked for. If the run ends early, however it does,
    the same call goes on from the layers that were finished and comes to the same bytes; until then
    they lie in ``OUT.part``.

    Args:
        model: folder or hub id of a qwen3_5, qwen3_5_moe or qwen3_next model.
        data: as for :func:`mixbit.kld.measure`: conversations through the chat template, or text.
        out: the ``.safetensors`` file to write, which must not exist.
        num_samples: use only the first so many documents.
        window: documents are cut into pieces of so many tokens, each from an empty context.
        batch_size: windows of equal length run together up to so many.
        hessian: keep the Hessian of the inputs of modules in whose path this regular expression is
            found, 4 bytes times the square of the input's width each. Experts have one each for
            ``down_proj``; for ``gate_proj`` and ``up_proj`` that of all tokens of the layer serves.
        progress: called as ``progress(done, total, name)`` after each layer.

    Raises:
        MixbitError: the model or the data cannot be used, or the file cannot be written.
    """
    begun = time.monotonic()
    out = Path(out)
    if out.suffix != ".safetensors":
        raise MixbitError(f"The calibration {out} must be named .safetensors.")
    if out.exists():
        raise MixbitError(f"{out} exists already; remove it or name another file.")
    for name, value in (("window", window), ("batch_size", batch_size)):
        if value < 1:
            raise MixbitError(f"{name} must be at least 1, not {value}.")
    wanted = _pattern(hessian)
    folder = resolve(model)
    structure = describe(folder)
    if structure.model_type not in HYBRIDS:
        raise MixbitError(
            f"{folder} is a {structure.model_type} model; only {', '.join(HYBRIDS)} models can be "
            "calibrated."
        )
    loaded, tokenizer = load(folder, lazy=True)
    documents = read_documents(Path(data), tokenizer)[:num_samples]
    del tokenizer  # a hundred megabytes, with a vocabulary of this size
    batches = _batches([document.tokens for document in documents], window, batch_size)
    tokens = sum(batch.size for batch in batches)
    identity = {
        "schema": SCHEMA,
        "model": {"name": folder.resolve().name, "sha256": model_hash(folder)},
        "data": {"name": Path(data).name, "sha256": sha256(Path(data))},
        "tokens_sha256": hashlib.sha256(b"".join(b.tobytes() for b in batches)).hexdigest(),
        "documents": len(documents),
        "tokens": tokens,
        "window": window,
        "batch_size": batch_size,
        "hessian": hessian,
        "versions": versions(),
    }
    part = out.with_name(out.name + ".part")
    begin(part, identity)
    places = measured_places(structure)
    hessians = {
        hessian_place_of(module.path)
        for module in structure.modules
        if wanted is not None and wanted.search(module.path)
    }
    embedding = _embedding(folder)
    files = LayerRun(loaded, batches, places, part, hessians, embedding).run(progress)
    join(files, out, identity)
    shutil.rmtree(part)
    return CalibrateReport(
        out=out,
        bytes=out.stat().st_size,
        documents=len(documents),
        tokens=tokens,
        inputs=sum(map(len, places.values())),
        idle_experts=_idle_experts(out),
        seconds=time.monotonic() - begun,
    )


def _embedding(folder: Path) -> TensorInfo | None:
    """Where a model's embedding lies; None where it is packed."""
    tensors = {stem_of(name): info for name, info in open_checkpoint(folder).tensors.items()}
    return None if "embed_tokens.scales" in tensors else tensors.get("embed_tokens.weight")


def _pattern(hessian: str | None) -> re.Pattern[str] | None:
    try:
        return None if hessian is None else re.compile(hessian)
    except re.error as error:
        raise MixbitError(f"{hessian!r} is not a regular expression: {error}.") from None


def _batches(
    documents: Sequence[Sequence[int]], window: int, batch_size: int
) -> list[npt.NDArray[np.int32]]:
    """Windows of equal length side by side, [B, T], so that none needs padding. Longest first."""
    windows = [
        tokens[begin : begin + window]
        for tokens in documents
        for begin in range(0, len(tokens), window)
    ]
    if not windows:
        raise MixbitError("The calibration data hold no tokens.")
    batches: list[list[Sequence[int]]] = []
    for tokens in sorted(windows, key=len, reverse=True):
        last = batches[-1] if batches else []
        if 0 < len(last) < batch_size and len(last[0]) == len(tokens):
            last.append(tokens)
        else:
            batches.append([tokens])
    return [np.array(batch, np.int32) for batch in batches]


def _idle_experts(out: Path) -> int:
    counts: Any = mx.load(str(out))
    return sum(
        int((value == 0).sum().item())
        for name, value in counts.items()
        if name.endswith(".count") and value.ndim == 1
    )
