"""llama.cpp's K-quants of a model beside plans found at no more than their size, by our own KLD.

    python convert_hf_to_gguf.py MODEL --no-mtp --outtype bf16 --outfile bf16.gguf   # llama.cpp's
    python bench/kquants.py MODEL --gguf bf16.gguf --llama libllama.so --work DIR

llama.cpp's ``llama_model_quantize`` makes each type, as a mix or with every matrix alike (pure).
Its importance matrix holds the mean squares of every product's input over the calibration
conversations, from our calibration, that of the output head included. The matrices of its file,
decoded by ``gguf`` and rounded to bf16, then take the place of the model's own; the bf16 file has
first to give exactly those. Sizes are those of the matrices, embedding and head included.

Ours: sensitivities by tensor in groups of 32, 64 and 128 with gptq+search, and a search for each
size, both over the calibration conversations. A run that ended early goes on from ``--work``.

The structure that goes to ``llama_model_quantize`` is that of llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from mlx.utils import tree_unflatten

from mixbit.calibration import Calibration
from mixbit.calibration.run import calibrate
from mixbit.checkpoint import ModelStructure, describe, read_config
from mixbit.data import tiny_data
from mixbit.integration import load
from mixbit.kld import make_reference, measure
from mixbit.plan import Plan
from mixbit.plan.names import PathTable
from mixbit.quantization import quantize
from mixbit.quantization.methods import Choice
from mixbit.search import Sensitivity, search, sensitivity
from mixbit.search.choices import Choices
from mixbit.search.swap import Packing
from mixbit.search.table import FILE

METHOD = "gptq+search"
TYPES = {  # a number of llama.cpp's, and whether every matrix gets it
    "Q3_K, pure": (11, True),
    "Q3_K_S": (11, False),
    "Q3_K_M": (12, False),
    "Q3_K_L": (13, False),
    "Q4_K, pure": (14, True),
    "Q4_K_S": (14, False),
    "Q4_K_M": (15, False),
    "Q5_K_M": (17, False),
}
Array = np.ndarray[Any, np.dtype[np.float32]]
SILENCE = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)


class Importance(ctypes.Structure):
    """``llama_model_imatrix_data``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.POINTER(ctypes.c_float)),
        ("size", ctypes.c_size_t),
    )


class Parameters(ctypes.Structure):
    """``llama_model_quantize_params``."""

    _fields_ = (
        ("nthread", ctypes.c_int32),
        ("ftype", ctypes.c_int),
        ("output_tensor_type", ctypes.c_int),
        ("token_embedding_type", ctypes.c_int),
        ("allow_requantize", ctypes.c_bool),
        ("quantize_output_tensor", ctypes.c_bool),
        ("only_copy", ctypes.c_bool),
        ("pure", ctypes.c_bool),
        ("keep_split", ctypes.c_bool),
        ("dry_run", ctypes.c_bool),
        ("imatrix", ctypes.POINTER(Importance)),
        ("kv_overrides", ctypes.c_void_p),
        ("tt_overrides", ctypes.c_void_p),
        ("prune_layers", ctypes.c_void_p),
        ("max_buf_size", ctypes.c_size_t),
    )


def llama_quantize(
    library: Path, source: Path, made: Path, kind: tuple[int, bool], importance: Mapping[str, Array]
) -> None:
    """Have llama.cpp quantise a GGUF file."""
    llama = ctypes.CDLL(str(library))
    llama.llama_model_quantize_default_params.restype = Parameters
    llama.llama_log_set(SILENCE, None)
    llama.llama_backend_init()
    parameters = llama.llama_model_quantize_default_params()
    parameters.nthread = 1
    parameters.ftype, parameters.pure = kind
    # An entry without a name ends them.
    entries = (Importance * (len(importance) + 1))()
    for entry, (name, values) in zip(entries, importance.items(), strict=False):
        entry.name, entry.size = name.encode(), values.size
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    parameters.imatrix = entries
    failed = llama.llama_model_quantize(
        str(source).encode(), str(made).encode(), ctypes.byref(parameters)
    )
    assert not failed, made


class Heads:
    """Value heads: a key head's side by side in the model, tiled over key heads in GGUF."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Read their numbers."""
        text = config.get("text_config", config)
        self.key_heads = text["linear_num_key_heads"]
        self.share = text["linear_num_value_heads"] // self.key_heads
        self.keys = 2 * self.key_heads * text["linear_key_head_dim"]

    def grouped(self, rows: Array) -> Array:
        """The model's order of GGUF's, ``[Hv * D, ...]``."""
        return self._swapped(rows, self.share, self.key_heads)

    def tiled(self, rows: Array) -> Array:
        """GGUF's order of the model's."""
        return self._swapped(rows, self.key_heads, self.share)

    @staticmethod
    def _swapped(rows: Array, outer: int, inner: int) -> Array:
        parts = rows.reshape(outer, inner, -1, *rows.shape[1:])
        return np.ascontiguousarray(parts.swapaxes(0, 1)).reshape(rows.shape)


def importance_of(
    calibration: Calibration, structure: ModelStructure, heads: Heads
) -> dict[str, Array]:
    """Mean squares of inputs by GGUF's names and in its order; none for the embedding."""
    table, found = PathTable(structure), {}
    for shape in structure.modules:
        statistics = calibration.of(shape.path)
        if statistics is None:
            continue
        (name,) = table.gguf_names(shape.path)
        values = np.array(statistics.mean_square, np.float32)
        found[name] = heads.tiled(values) if shape.path.endswith("out_proj") else values
    return found


def read_gguf(path: Path, structure: ModelStructure, heads: Heads) -> tuple[dict[str, Array], int]:
    """Decoded matrices by module, value heads in the model's order, and their bytes in the file."""
    table, values, nbytes = PathTable(structure), {}, 0
    tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    for shape in structure.modules:
        (name,) = table.gguf_names(shape.path)
        tensor = tensors[name]
        nbytes += int(tensor.n_bytes)
        value = dequantize(tensor.data, tensor.tensor_type)
        match shape.path.rpartition(".")[2]:
            case "in_proj_qkv":
                value = np.concatenate([value[: heads.keys], heads.grouped(value[heads.keys :])])
            case "in_proj_z" | "in_proj_a" | "in_proj_b":
                value = heads.grouped(value)
            case "out_proj":
                value = heads.grouped(value.T).T
        values[shape.path] = value
    return values, nbytes


def main() -> None:
    """Print a row for each type and one for what is found at its size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--llama", type=Path, required=True, help="libllama.so")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--calibrate", type=Path, default=tiny_data("calibration"))
    parser.add_argument("--judge", type=Path, default=tiny_data("kld_eval"))
    parser.add_argument("--num-samples", type=int, help="documents to measure whole plans over")
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    work: Path = args.work
    work.mkdir(exist_ok=True)
    structure = describe(args.model)
    model, tokenizer = load(args.model)
    if not (work / "reference").exists():
        make_reference(args.model, args.judge, work / "reference")
    config = read_config(args.model)
    heads = Heads(config)
    modules = dict(model.named_modules())
    decoded, _ = read_gguf(args.gguf, structure, heads)
    for shape in structure.modules:
        own = np.array(modules[shape.path].weight.astype(mx.float32))
        assert np.array_equal(decoded[shape.path], own), shape.path
    file = work / "calibration.safetensors"
    if not file.exists():
        calibrate(args.model, args.calibrate, file, hessian="")
    calibration = Calibration.load(file, config)
    importance = importance_of(calibration, structure, heads)
    theirs = {}
    for name, kind in TYPES.items():
        made = work / f"{name}.gguf"
        if not made.exists():
            llama_quantize(args.llama, args.gguf, made, kind, importance)
        values, nbytes = read_gguf(made, structure, heads)
        model.update(
            tree_unflatten(
                [(f"{k}.weight", mx.array(v).astype(mx.bfloat16)) for k, v in values.items()]
            )
        )
        loss = float(measure(model, work / "reference", tokenizer=tokenizer).kld.mean())
        theirs[name] = (nbytes, loss)
    packing = Packing(Choice.of(METHOD), calibration)
    over = {"window": None, "score": "all", "packing": packing}
    if (work / "sensitivity" / FILE).exists():
        table = Sensitivity.load(work / "sensitivity")
    else:
        table = sensitivity(
            args.model, args.calibrate, work / "sensitivity", group_sizes=(32, 64, 128), **over
        )
    rest = Choices(table, "tensor", {}).fixed
    budgets = [rest + nbytes for nbytes, _ in theirs.values()]
    found = search(
        args.model, table, args.calibrate, work / "search", nbytes=budgets,
        num_samples=args.num_samples, **over,
    )  # fmt: skip
    plans = {one.limit: found.file_of(one.limit) for one in found.found}
    weights = sum(shape.params for shape in structure.modules)
    print("| matrices | bytes | bits per weight | mean KLD | ratio |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for (name, (nbytes, loss)), limit in zip(theirs.items(), budgets, strict=True):
        out, plan = work / f"ours-{limit}", work / "search" / plans[limit]
        if not out.exists():
            quantize(args.model, out, plan=plan, method=METHOD, calibration=file)
        ours = float(measure(out, work / "reference").kld.mean())
        size = Plan.load(plan).report()["bytes"] - rest
        print(f"| llama.cpp {name} | {nbytes:,} | {8 * nbytes / weights:.3f} | {loss:.5f} | |")
        print(
            f"| found at that size, {METHOD} | {size:,} | {8 * size / weights:.3f} | {ours:.5f} | "
            f"{ours / loss:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
