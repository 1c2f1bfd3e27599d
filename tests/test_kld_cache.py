"""The reference cache: exact, small, checked, and the same bytes however often it was killed."""

import json
import random
import shutil
import signal
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from kld_runs import run, run_killed
from mixbit import kld
from mixbit.errors import MixbitError
from mixbit.kld import cache, stream
from models import build, save_checkpoint
from test_kld_measure import perturbed

LENGTHS = [70, 3, 41, 64, 1, 90, 33]


def documents() -> list[list[int]]:
    rng = np.random.default_rng(4)
    return [rng.integers(2048, size=length).tolist() for length in LENGTHS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reference model and a candidate with another head, bf16, and the data."""
    root = tmp_path_factory.mktemp("kld")
    model = build("qwen3_5", vocab_size=2048, dtype=mx.bfloat16)
    save_checkpoint(model, root / "reference")
    save_checkpoint(perturbed(model), root / "candidate")
    lines = [json.dumps({"tokens": tokens}) for tokens in documents()]
    (root / "data.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return root


MAKE = """
import time
folder = Path(sys.argv[1])
if int(sys.argv[3]):
    die_after(int(sys.argv[3]))
began = time.monotonic()
print("at work", flush=True)
kld.make_reference(folder / "reference", folder / "data.jsonl", Path(sys.argv[2]), window=32,
                   batch_size=3)
print(time.monotonic() - began)
"""


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.fixture(scope="module")
def finished(folder: Path) -> tuple[Path, float]:
    """A cache made in one go, and the seconds that it took."""
    done = run(MAKE, folder, folder / "whole", 0)
    assert done.returncode == 0, done.stderr
    return folder / "whole", float(done.stdout.split()[-1])


@pytest.fixture(scope="module")
def made(finished: tuple[Path, float]) -> Path:
    """A cache made in one go."""
    return finished[0]


def test_killed_runs_resume_to_the_same_bytes(
    folder: Path, finished: tuple[Path, float], long_grid: bool
) -> None:
    # By turns at a step that touches the disk and at any moment; every kill leaves what the next
    # run takes up.
    rng, path = random.Random(2), folder / "killed"
    made, seconds = finished
    kills = 0
    while kills < (10 if long_grid else 3):
        if kills % 2 == 0:
            code = run(MAKE, folder, path, rng.randint(1, 9)).returncode
        else:
            code = run_killed(MAKE, folder, path, 0, after=rng.uniform(0, seconds))
        if (path / "manifest.json").exists():  # finished before its time: begin anew
            shutil.rmtree(path)
            continue
        assert code == -signal.SIGKILL
        kills += 1
        with pytest.raises(MixbitError, match="unfinished"):
            cache.ReferenceCache(path) if cache.is_cache(path) else _unfinished()
    done = run(MAKE, folder, path, 0)
    assert done.returncode == 0, done.stderr
    assert content(path) == content(made)


def _unfinished() -> None:
    raise MixbitError("unfinished: not even begun")


def test_cache_and_model_give_the_same_bits(
    folder: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "UNIT_TOKENS", 40)
    cached = kld.measure(folder / "candidate", made, batch_size=3)
    live = kld.measure(
        folder / "candidate", folder / "reference", documents(), window=32, batch_size=3
    )
    assert len(cached.stream.units) > 2
    for name in ("kld", "reverse", "nll_reference", "top_reference", "top_candidate"):
        np.testing.assert_array_equal(getattr(cached, name), getattr(live, name))
    itself = kld.measure(folder / "reference", made, batch_size=3)
    assert np.abs(itself.kld).max() <= 1e-12
    # Other batches: the reference is the kept one, the candidate only rounds elsewhere.
    other = kld.measure(folder / "candidate", made, batch_size=1)
    assert other.summary()["mean"] == pytest.approx(cached.summary()["mean"], rel=0.05)


def test_cache_takes_two_bytes_a_hidden_value(tmp_path: Path) -> None:
    model = build("qwen3_5", vocab_size=2048, dtype=mx.bfloat16, hidden_size=1024,
                  num_hidden_layers=2, full_attention_interval=2)  # fmt: skip
    save_checkpoint(model, tmp_path / "model")
    rng = np.random.default_rng(0)
    data = [rng.integers(2048, size=512).tolist() for _ in range(4)]
    kld.make_reference(tmp_path / "model", data, tmp_path / "cache", window=512)
    sizes = {file.name: file.stat().st_size for file in (tmp_path / "cache").iterdir()}
    sizes.pop("head.safetensors")
    assert sum(sizes.values()) < 1.01 * 2 * 1024 * 4 * 255


def test_packed_heads_are_kept_as_they_are(tmp_path: Path) -> None:
    model = build("qwen3_5", vocab_size=2048, dtype=mx.bfloat16)
    nn.quantize(model, group_size=32, bits=4)
    reference = kld.reference.LiveReference(model, None, stream.Stream.of([], stream.Protocol()))
    weight = reference.head.weight
    assert weight is not None
    assert weight.bits == 4
    writer = cache.CacheWriter(
        tmp_path / "cache", reference.stream, weight, reference.scorer.probe,
        {"vocab_size": 2048, "tokenizer_sha256": None},
    )  # fmt: skip
    writer.begin()
    writer.finish()
    kept = cache.ReferenceCache(tmp_path / "cache").head.weight
    assert kept is not None
    assert (kept.bits, kept.group_size, kept.mode) == (4, 32, "affine")
    for name in ("w", "scales", "biases"):
        assert mx.array_equal(getattr(kept, name), getattr(weight, name)).item()


@pytest.mark.parametrize("name", ["hidden-00001.safetensors", "head.safetensors"])
def test_damage_is_noticed(folder: Path, made: Path, tmp_path: Path, name: str) -> None:
    for file in made.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    damaged = bytearray((tmp_path / name).read_bytes())
    damaged[-5] ^= 1
    (tmp_path / name).write_bytes(damaged)
    with pytest.raises(MixbitError, match=f"{name} is damaged"):
        kld.measure(folder / "candidate", tmp_path)


def test_full_disk_is_noticed_first(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(MixbitError, match=r"only 0\.0 MB are free"):
        kld.make_reference(
            folder / "reference", documents(), tmp_path / "cache",
            announce=lambda nbytes, _: told.append(nbytes),
        )  # fmt: skip
    assert told[0] > 2048 * 64 * 2  # the head alone
    assert not (tmp_path / "cache").exists()


def test_another_job_is_refused(folder: Path, made: Path, tmp_path: Path) -> None:
    with pytest.raises(MixbitError, match="finished reference"):
        kld.make_reference(folder / "reference", documents(), made)
    with pytest.raises(MixbitError, match="holds the data it was made with"):
        kld.measure(folder / "candidate", made, documents())
    for other in ({"window": 64}, {"window": None}, {"score": "all"}):
        with pytest.raises(MixbitError, match="window 32 and score 'half'"):
            kld.measure(folder / "candidate", made, **other)
    done = run(MAKE, folder, tmp_path / "cache", 4)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with pytest.raises(MixbitError, match="not the same stream"):
        kld.make_reference(
            folder / "reference", folder / "data.jsonl", tmp_path / "cache", batch_size=3
        )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thing").touch()
    with pytest.raises(MixbitError, match="other things"):
        kld.make_reference(folder / "reference", documents(), tmp_path / "other")
