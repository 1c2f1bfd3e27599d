"""Build the macOS arm64 wheel, on Linux or on a Mac, and verify it.

    python tools/macos/build_wheel.py FOLDER

Prints the path of the wheel. Needs the dependency groups ``build`` and ``macos``, on Linux
ld64.lld-19 too. What is fetched and compiled stays in ``build/macos`` for the next time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mlx_wheels import MINIMUM, ROOT, fetch
from toolchain import make_toolchain
from verify import problems

__all__ = ["build"]

_WORK = ROOT / "build" / "macos"
_TAG = f"cp311-abi3-macosx_{MINIMUM}_0_arm64"


def build(folder: Path, sites: list[Path]) -> Path:
    """Build the wheel into ``folder`` and return its path.

    Args:
        folder: made if it is not there.
        sites: MLX's wheels, as :func:`mlx_wheels.fetch` gives them.
    """
    options = [f"-Cbuild-dir={_WORK}/objects", f"-Cwheel.tags={_TAG}"]
    options += ["-Ccmake.define.MIXBIT_WERROR=ON"]  # no other compiler sees the Metal host code
    if sys.platform != "darwin":
        make_toolchain(_WORK / "toolchain", sites[0])
        options += [
            f"-Ccmake.define.CMAKE_TOOLCHAIN_FILE={Path(__file__).with_name('toolchain.cmake')}",
            f"-Ccmake.define.MACOS_TOOLCHAIN={_WORK}/toolchain",
            f"-Ccmake.define.MLX_ROOT={sites[0]}/mlx",
        ]
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check"]
    pip += ["--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT), *options]
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # cmake, ninja
    environment = {"PATH": tools, "MACOSX_DEPLOYMENT_TARGET": f"{MINIMUM}.0"}
    subprocess.run(pip, check=True, env={**os.environ, **environment})
    (wheel,) = folder.glob(f"*-{_TAG}.whl")
    return wheel


def main(folder: Path) -> None:
    """Command line entry: a wheel with faults does not get into ``folder``."""
    sites = fetch(_WORK)
    with tempfile.TemporaryDirectory(dir=_WORK) as scratch:
        wheel = build(Path(scratch), sites)
        if faults := problems(wheel, sites):
            raise SystemExit("\n".join(faults))
        folder.mkdir(parents=True, exist_ok=True)
        print(shutil.copy(wheel, folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
