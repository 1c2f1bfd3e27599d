"""One measurement by several processes of a ring."""

import json
import signal
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from kld_runs import run, run_ranks
from mixbit.kld.saved import load_saved
from models import build, save_checkpoint
from test_kld_measure import perturbed

MEASURE = """
import json
from mixbit.errors import MixbitError
folder, keep, victim = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if ranks().index == victim:
    die_after(1)
try:
    result = kld.measure(folder / "candidate", folder / "reference", folder / "data.jsonl",
                         window=32, keep=keep or None)
    print(json.dumps(result.summary()), flush=True)
except MixbitError as error:
    sys.exit(str(error))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models and data for some units."""
    root = tmp_path_factory.mktemp("ranks")
    model = build("qwen3_5", vocab_size=2048, dtype=mx.bfloat16)
    save_checkpoint(model, root / "reference")
    save_checkpoint(perturbed(model), root / "candidate")
    rng = np.random.default_rng(4)
    lines = [json.dumps({"tokens": rng.integers(2048, size=90).tolist()}) for _ in range(9)]
    (root / "data.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def alone(folder: Path) -> str:
    """What one process prints."""
    done = run(MEASURE, folder, "", -1)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mean"] > 0
    return done.stdout


@pytest.mark.parametrize("count", [2, 4])
def test_ranks_equal_one_process_to_the_last_digit(folder: Path, alone: str, count: int) -> None:
    for rank in run_ranks(count, MEASURE, folder, folder, "", -1):
        assert rank.returncode == 0, rank.stderr
        assert rank.stdout == alone


def test_lost_rank_is_told_and_what_is_finished_stays(folder: Path, alone: str) -> None:
    keep = folder / "scores"
    done = run_ranks(2, MEASURE, folder, folder, keep, 1)
    assert done[1].returncode == -signal.SIGKILL
    assert done[0].returncode == 1
    assert "Rank 0 of 2 lost another one" in done[0].stderr
    finished = sorted(path.name for path in keep.glob("scores-*"))
    assert finished == ["scores-00000.safetensors"]
    stamp = (keep / finished[0]).stat().st_mtime_ns
    again = run(MEASURE, folder, keep, -1)
    assert again.stdout == alone
    assert (keep / finished[0]).stat().st_mtime_ns == stamp
    (saved,) = load_saved(keep)
    assert json.dumps(saved.result.summary()) == alone.strip()
    assert saved.name == "candidate"


ONE_UNIT_EACH = """
stream.UNIT_TOKENS = 200
from mixbit.errors import MixbitError

def progress(done, all_tokens):
    print(done, flush=True)
    if ranks().index == 1:
        os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[1])
try:
    kld.measure(folder / "candidate", folder / "reference", folder / "data.jsonl",
                window=32, batch_size=1, progress=progress)
except MixbitError as error:
    sys.exit(str(error))
"""


def test_lost_rank_is_told_before_a_unit_ends(folder: Path) -> None:
    # Units of a dozen windows; the other rank is gone after its first.
    first, second = run_ranks(2, ONE_UNIT_EACH, folder, folder)
    assert second.returncode == -signal.SIGKILL
    assert first.returncode == 1
    assert "Rank 0 of 2 lost another one" in first.stderr
    assert len(first.stdout.split()) <= 2
