"""Runs of mixbit.kld in processes of their own: killed at some point, or several at once."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PREPARE = """
import os, signal, sys
from pathlib import Path
import mlx.core as mx
mx.set_default_device(mx.cpu)
from mixbit import kld
from mixbit.kld import files, stream
from mixbit.kld.ranks import ranks
stream.UNIT_TOKENS = 40

def die_after(calls):
    # A step that touches the disk is where a kill could hurt: let one be the last.
    left = [calls]
    def deadly(step):
        def run(*arguments, **options):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*arguments, **options)
        return run
    os.fsync = deadly(os.fsync)
    Path.replace = deadly(Path.replace)
    Path.unlink = deadly(Path.unlink)
    mx.save_safetensors = deadly(mx.save_safetensors)
"""


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script after ``PREPARE``, with text output."""
    return subprocess.run(
        [sys.executable, "-c", PREPARE + script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
    )


def run_killed(script: str, *arguments: object, after: float) -> int:
    """Run a script after ``PREPARE`` and kill it, seconds after it prints a line; its exit code."""
    with subprocess.Popen(
        [sys.executable, "-c", PREPARE + script, *map(str, arguments)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(after)
        process.kill()
    return process.returncode


def run_killed_often(
    script: str, *arguments: object, kills: int, steps: int, seconds: float
) -> None:
    """Run a script ``kills`` times or till it ends well, each time taking up what was left.

    By turns it is killed at one of the next ``steps`` steps that touch the disk, as its last
    argument tells it to be, and within ``seconds`` after it prints a line; where is drawn.
    """
    rng = random.Random(8)
    for turn in range(kills):
        if turn % 2 == 0:
            done = run(script, *arguments, rng.randint(1, steps))
            code, told = done.returncode, done.stderr
        else:
            code, told = run_killed(script, *arguments, 0, after=rng.uniform(0, seconds)), ""
        if code == 0:
            return
        assert code == -signal.SIGKILL, told


def run_ranks(
    count: int, script: str, folder: Path, *arguments: object
) -> list[subprocess.CompletedProcess[str]]:
    """Run a script in ``count`` processes of one ring on this machine."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    hosts = [[f"127.0.0.1:{each.getsockname()[1]}"] for each in sockets]
    for each in sockets:
        each.close()
    hostfile = folder / f"hosts-{count}.json"
    hostfile.write_text(json.dumps(hosts), encoding="utf-8")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PREPARE + script, *map(str, arguments)],
            env=os.environ | {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hostfile)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    results = []
    for process in processes:
        out, err = process.communicate(timeout=300)
        results.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return results
