"""What each method of quantising loses, at equal size, on text that calibration has not seen.

Run as ``python bench/quantize_methods.py``: a Markdown table of mean KLD against the bf16 model.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from mixbit.calibration.run import calibrate
from mixbit.data import tiny_data, tiny_model
from mixbit.kld import make_reference, measure
from mixbit.quantization import quantize

METHODS = ("rtn", "search", "awq", "awq+search", "gptq+search", "awq+gptq+search")
PLANS = ("uniform-3", "uniform-4", "unsloth-2026-06@3", "unsloth-2026-06@4")


def main() -> None:
    """Calibrate once, then quantise and measure each plan by each method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=tiny_model())
    parser.add_argument("--calibration-data", type=Path, default=tiny_data("calibration"))
    parser.add_argument("--num-samples", type=int, help="documents of it")
    parser.add_argument("--data", type=Path, default=tiny_data("kld_eval"))
    parser.add_argument("--plans", nargs="+", default=PLANS)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calibration = folder / "calibration.safetensors"
        data, limit = args.calibration_data, args.num_samples
        calibrate(args.model, data, calibration, num_samples=limit, hessian="")
        reference = folder / "reference"
        make_reference(args.model, args.data, reference)
        print(f"| plan | bpw | {' | '.join(args.methods)} | best / rtn |")
        print("|---" * (len(args.methods) + 3) + "|")
        for index, plan in enumerate(args.plans):
            losses, bpw = [], 0.0
            for method in args.methods:
                out = folder / f"{index}-{method}"
                bpw = quantize(
                    args.model,
                    out,
                    plan=plan,
                    method=method,
                    calibration=None if method == "rtn" else calibration,
                ).bpw
                losses.append(float(measure(out, reference).kld.mean()))
            cells = " | ".join(f"{loss:.5f}" for loss in losses)
            print(f"| {plan} | {bpw:.3f} | {cells} | {min(losses) / losses[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
