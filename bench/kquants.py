"""llama.cpp's K-quants of a model beside ours, tensor by tensor of one type, by our own KLD.

    python bench/kquants.py path/to/libggml-base.so

The library is that of any build of llama.cpp. It quantises every matrix that a plan would, with the
mean squares of our calibration as its importance matrix (the output head's too, of which llama.cpp
itself takes none), and ``gguf`` decodes them. Ours are quantised by gptq+search at 3 and 4 bits.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from mlx.utils import tree_unflatten

from mixbit.calibration import Calibration
from mixbit.calibration.run import calibrate
from mixbit.checkpoint import describe, read_config
from mixbit.data import tiny_data, tiny_model
from mixbit.integration import load
from mixbit.kld import make_reference, measure
from mixbit.plan import Plan, QuantSpec
from mixbit.quantization import quantize

BITS_PER_WEIGHT = {"Q3_K": 3.4375, "Q4_K": 4.5}
OURS = (QuantSpec(3, 128), QuantSpec(3, 64), QuantSpec(4, 128), QuantSpec(4, 64))


def k_quant(
    library: ctypes.CDLL, weight: np.ndarray, importance: np.ndarray | None, name: str
) -> np.ndarray:
    """The values that a K-quant of the weight [N, K] stands for."""
    kind = GGMLQuantizationType[name]
    rows, width = weight.shape
    packed = np.zeros((rows, int(width * BITS_PER_WEIGHT[name]) // 8), np.uint8)
    pointer = ctypes.POINTER(ctypes.c_float)
    source = np.ascontiguousarray(weight, np.float32)
    weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    written = library.ggml_quantize_chunk(
        ctypes.c_int(kind.value),
        source.ctypes.data_as(pointer),
        packed.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int64(0),
        ctypes.c_int64(rows),
        ctypes.c_int64(width),
        None if weights is None else weights.ctypes.data_as(pointer),
    )
    assert written == packed.size, (written, packed.size)
    return dequantize(packed, kind)


def main() -> None:
    """Print a row for each format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    library = ctypes.CDLL(parser.parse_args().library)
    source, structure = tiny_model(), describe(tiny_model())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, reference = folder / "calibration.safetensors", folder / "reference"
        calibrate(source, tiny_data("calibration"), file, hessian="")
        make_reference(source, tiny_data("kld_eval"), reference)
        calibration = Calibration.load(file, read_config(source))
        print("| format | bits per weight | mean KLD |\n| --- | ---: | ---: |")
        for kind, bits in BITS_PER_WEIGHT.items():
            model: Any
            model, tokenizer = load(source)
            dense = dict(model.named_modules())
            changed = []
            for module in structure.modules:
                seen = calibration.of(module.path)
                weight = np.array(dense[module.path].weight.astype(mx.float32))
                importance = None if seen is None else np.array(seen.mean_square)
                values = k_quant(library, weight, importance, kind)
                changed.append((f"{module.path}.weight", mx.array(values).astype(mx.bfloat16)))
            model.update(tree_unflatten(changed))
            loss = float(measure(model, reference, tokenizer=tokenizer).kld.mean())
            print(f"| {kind} with importance matrix | {bits:.4f} | {loss:.5f} |", flush=True)
        for spec in OURS:
            plan = Plan({module.path: spec for module in structure.modules})
            out = folder / str(spec).replace("/", "-")
            quantize(source, out, plan=plan, method="gptq+search", calibration=file)
            loss = float(measure(out, reference).kld.mean())
            print(f"| {spec}, gptq+search | {spec.bits_per_weight:.4f} | {loss:.5f} |", flush=True)


if __name__ == "__main__":
    main()
