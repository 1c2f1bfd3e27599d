"""llama.cpp's K-quants of a model beside plans found at no more than their size, by our own KLD.

    python convert_hf_to_gguf.py MODEL --no-mtp --outtype bf16 --outfile bf16.gguf   # llama.cpp's
    python bench/kquants.py MODEL --gguf bf16.gguf --llama build/bin --work DIR

llama-imatrix reads the calibration conversations as the chat template writes them, the output
head included; llama-quantize makes each type with that, as a mix or with every matrix alike
(pure). The matrices of its file, decoded by ``gguf`` and rounded to bf16, then take the place of
the model's own; the bf16 file has first to give exactly those. Sizes are those of the matrices.

Ours: sensitivities by tensor in groups of 32, 64 and 128 with gptq+search, and a search for each
size, both over the calibration conversations. A run that ended early goes on from ``--work``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
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
from mixbit.kld.documents import read_documents
from mixbit.plan import Plan
from mixbit.plan.names import PathTable
from mixbit.quantization import quantize
from mixbit.quantization.methods import Choice
from mixbit.search import search, sensitivity
from mixbit.search.choices import Choices
from mixbit.search.swap import Packing

METHOD = "gptq+search"
TYPES = (("Q3_K_S", "--pure"), ("Q3_K_M",), ("Q4_K_S", "--pure"), ("Q4_K_M",), ("Q5_K_M",))
Array = np.ndarray[Any, np.dtype[np.float32]]


def llama(program: Path, *arguments: object) -> None:
    """Run one of llama.cpp's programs on one thread, beside whose libraries it lies."""
    environment = os.environ | {"LD_LIBRARY_PATH": str(program.parent), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [str(program), *map(str, arguments)], check=True, capture_output=True, env=environment
    )


def make_imatrix(args: argparse.Namespace, tokenizer: Any) -> None:
    """llama.cpp's importance matrix over the calibration text, as ``imatrix.gguf``."""
    documents = read_documents(args.calibrate, tokenizer)
    text = args.work / "calibration.txt"
    text.write_text("".join(tokenizer.decode(one.tokens) for one in documents), encoding="utf-8")
    llama(
        args.llama / "llama-imatrix", "-m", args.gguf, "-f", text, "-o",
        args.work / "imatrix.gguf", "-t", 1, "-ngl", 0, "--parse-special", "--process-output",
        "--no-ppl",
    )  # fmt: skip


def read_gguf(
    path: Path, structure: ModelStructure, config: dict[str, Any]
) -> tuple[dict[str, Array], int]:
    """Decoded matrices by module, value heads in the model's order, and their bytes in the file."""
    text = config.get("text_config", config)
    key_heads, value_heads = text["linear_num_key_heads"], text["linear_num_value_heads"]
    keys = 2 * key_heads * text["linear_key_head_dim"]

    def grouped(rows: Array) -> Array:
        """From tiled value heads, ``[Hv * D, ...]``, to those of a key head side by side."""
        tiled = rows.reshape(value_heads // key_heads, key_heads, -1, *rows.shape[1:])
        return tiled.swapaxes(0, 1).reshape(rows.shape)

    table, values, nbytes = PathTable(structure), {}, 0
    tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    for shape in structure.modules:
        (name,) = table.gguf_names(shape.path)
        tensor = tensors[name]
        nbytes += int(tensor.n_bytes)
        value = dequantize(tensor.data, tensor.tensor_type)
        match shape.path.rpartition(".")[2]:
            case "in_proj_qkv":
                value = np.concatenate([value[:keys], grouped(value[keys:])])
            case "in_proj_z" | "in_proj_a" | "in_proj_b":
                value = grouped(value)
            case "out_proj":
                value = grouped(value.T).T
        values[shape.path] = value
    return values, nbytes


def main() -> None:
    """Print a row for each type and one for what is found at its size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--llama", type=Path, required=True, help="folder of llama.cpp's programs")
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
    modules = dict(model.named_modules())
    decoded, _ = read_gguf(args.gguf, structure, config)
    for shape in structure.modules:
        own = np.array(modules[shape.path].weight.astype(mx.float32))
        assert np.array_equal(decoded[shape.path], own), shape.path
    if not (work / "imatrix.gguf").exists():
        make_imatrix(args, tokenizer)
    theirs = {}
    for type_name, *options in TYPES:
        made = work / f"{type_name}{''.join(options)}.gguf"
        if not made.exists():
            llama(
                args.llama / "llama-quantize", "--imatrix", work / "imatrix.gguf", *options,
                args.gguf, made, type_name,
            )  # fmt: skip
        values, nbytes = read_gguf(made, structure, config)
        model.update(
            tree_unflatten(
                [(f"{k}.weight", mx.array(v).astype(mx.bfloat16)) for k, v in values.items()]
            )
        )
        loss = float(measure(model, work / "reference", tokenizer=tokenizer).kld.mean())
        theirs[type_name + (", pure" if options else "")] = (nbytes, loss)

    file = work / "calibration.safetensors"
    if not file.exists():
        calibrate(args.model, args.calibrate, file, hessian="")
    packing = Packing(Choice.of(METHOD), Calibration.load(file, config))
    over = {"window": None, "score": "all", "packing": packing}
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
