"""The kernels without Python: here, on arm64 under an emulator, and AVX-512 as plain C++.

One program, ``tests/native``, compares every kernel with fp64 and prints what failed. Its integer
products must be the same bits wherever it runs.
"""

import fcntl
import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
# An emulator of one program can start no threads in a forked child of several.
GROUPS = [
    "elements",
    "matmul",
    "delta_net",
    "attention",
    "kl_divergence",
    "quantize_search",
    "threads",
]
DIGESTED = ["matmul", "kl_divergence", "quantize_search"]
EMULATES = sys.platform == "linux" and platform.machine() == "x86_64"

X86 = ["portable", "avx2", "avx512", "avx512vnni"]
ARM64 = ["portable", "neon", "neon_dotprod", "neon_i8mm"]
CASES = [("host", isa) for isa in (X86 if platform.machine() == "x86_64" else ARM64)]
if EMULATES:
    CASES += [("arm64", isa) for isa in ARM64]


def simde_headers() -> Path:
    """Folder of SIMDe's headers, which the package ``cmeel-simde`` brings."""
    files = importlib.metadata.files("cmeel-simde") or []
    (header,) = (Path(file.locate()) for file in files if file.match("simde/x86/avx512.h"))
    return header.parents[2]


def built(name: str, *options: str) -> Path:
    """Folder of the programs, compiled with CMake's ``options``; processes share what is there."""
    folder = ROOT / "build" / "native" / name
    folder.mkdir(parents=True, exist_ok=True)
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # cmake, ninja
    configure = ["cmake", "-S", str(ROOT / "tests/native"), "-B", str(folder), "-G", "Ninja"]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in ([*configure, *options], ["cmake", "--build", str(folder)]):
            run = subprocess.run(
                command, env={**os.environ, "PATH": tools}, capture_output=True, text=True
            )
            assert run.returncode == 0, run.stdout + run.stderr
    return folder


@pytest.fixture(scope="session")
def programs() -> dict[str, list[str]]:
    """How each platform's program is started."""
    if platform.machine() != "x86_64":
        return {"host": [str(built("host") / "kernel_tests")]}
    host = built("host", f"-DMIXBIT_SIMDE={simde_headers()}")
    arm64 = built(
        "arm64",
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++",
        "-DCMAKE_EXE_LINKER_FLAGS=-static",  # the emulator then needs no library of the target
    )
    return {
        "host": [str(host / "kernel_tests")],
        "arm64": ["qemu-aarch64", str(arm64 / "kernel_tests")],
    }


def run(command: list[str], isa: str, threads: int = 3) -> subprocess.CompletedProcess[str]:
    environment = {"MIXBIT_ISA": isa, "MIXBIT_NUM_THREADS": str(threads)}
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True
    )


def results(command: list[str], isa: str, threads: int = 3) -> dict[str, Any]:
    ran = run(command, isa, threads)
    assert ran.stdout, ran.stderr
    return json.loads(ran.stdout)


def usable(command: list[str]) -> str:
    """The sentence that names the instruction sets that may be asked for."""
    return run([*command, "elements"], "none").stderr.replace(",", "").replace(".", "")


@pytest.mark.parametrize(("where", "isa"), CASES)
def test_kernels_agree_with_fp64_and_integers_are_the_same_bits_everywhere(
    where: str, isa: str, programs: dict[str, list[str]]
) -> None:
    groups = [] if where == "host" else GROUPS
    # The other kernels of these are neon's.
    groups = DIGESTED if isa in ("neon_dotprod", "neon_i8mm") else groups
    if where == "host" and f" {isa}" not in usable(programs["host"]):
        pytest.skip(f"This processor has no {isa}; the emulator of another machine has.")
    got = results([*programs[where], *groups], isa)
    assert got["isa"] == isa
    assert got["failures"] == []
    reference = results([*programs["host"], *DIGESTED], "portable", threads=1)
    assert got["integers"] == reference["integers"]


if EMULATES:

    @pytest.mark.parametrize(
        ("processor", "isas"),
        [
            ("cortex-a53", ["neon", "portable"]),
            ("neoverse-n1", ["neon_dotprod", "neon", "portable"]),
            ("max", ["neon_i8mm", "neon_dotprod", "neon", "portable"]),
        ],
    )
    def test_an_arm_processor_gets_the_best_it_has_and_no_other(
        processor: str, isas: list[str], programs: dict[str, list[str]]
    ) -> None:
        emulator, program = programs["arm64"]
        command = [emulator, "-cpu", processor, program, "elements"]
        assert results(command, "")["isa"] == isas[0]
        for missing in {"avx2", *ARM64} - {*isas}:
            refused = run(command, missing)
            assert refused.returncode == 2
            assert f"it can be one of: {', '.join(isas)}." in refused.stderr
