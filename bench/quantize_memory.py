"""Peak memory of ``mixbit calibrate`` and ``mixbit quantize`` on a checkpoint of 2 GB.

Run as ``python bench/quantize_memory.py work`` on Linux; ``work`` takes 8 GB of disk. Beside the
peak of resident memory stand the most that was seen of its two parts every 20 ms: ``anonymous``
memory is the process's own, ``file`` are pages of libraries and of mapped files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

METHODS = ("rtn", "search", "awq+search", "gptq+search", "awq+gptq+search")


def main() -> None:
    """Make the checkpoint, calibrate it, quantise it by every method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="where the checkpoint is, or is made")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--plan", default="uniform-4")
    args = parser.parse_args()
    model = args.work / "1b"
    calibration = args.work / "calibration.safetensors"
    if not model.exists():
        script = Path(__file__).with_name("make_model.py")
        made = [sys.executable, str(script), "1b", str(model), "--shard-bytes", str(400 << 20)]
        subprocess.run(made, check=True)
    size = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    print(f"{size / 1e9:.2f} GB of weights\n")
    print("| command | peak, GB | anonymous | file | seconds of CPU |")
    print("| --- | ---: | ---: | ---: | ---: |")
    report("import mixbit", "-c", "import mixbit.quantization.run")
    if not calibration.exists():
        data = args.work / "data.jsonl"
        rng = random.Random(0)
        lines = [json.dumps({"tokens": rng.choices(range(240_000), k=512)}) for _ in range(8)]
        data.write_text("\n".join(lines), encoding="utf-8")
        options = ("--hessian", "--data", str(data))
        report("calibrate", "-m", "mixbit", "calibrate", *options, model=model, out=calibration)
    for method in args.methods:
        with tempfile.TemporaryDirectory(dir=args.work) as folder:
            options = ("--plan", args.plan, "--method", method, "--calibration", str(calibration))
            out = Path(folder) / "out"
            report(
                f"quantize --method {method}", "-m", "mixbit", "quantize", *options,
                model=model, mlx_path=out,
            )  # fmt: skip


def report(name: str, *command: str, **paths: Path) -> None:
    """Run Python and print a row of the table."""
    options = [f"--{key.replace('_', '-')}={path}" for key, path in paths.items()]
    child = subprocess.Popen([sys.executable, *command, *options], stdout=subprocess.DEVNULL)
    most = {"RssAnon": 0, "RssFile": 0}
    while not (ended := os.wait4(child.pid, os.WNOHANG))[0]:
        status = Path(f"/proc/{child.pid}/status").read_text("utf-8")
        for line in status.splitlines():
            key, _, value = line.partition(":")
            if key in most:
                most[key] = max(most[key], int(value.split()[0]))
        time.sleep(0.02)
    _, code, usage = ended
    if code:
        raise SystemExit(f"{name} failed")
    peaks = (usage.ru_maxrss, *most.values())
    cells = " | ".join(f"{1024 * peak / 1e9:.2f}" for peak in peaks)
    print(f"| {name} | {cells} | {usage.ru_utime + usage.ru_stime:.0f} |", flush=True)


if __name__ == "__main__":
    main()
