"""Unusable input and full disks: one sentence, and nothing left behind. Ctrl-C: it goes on."""

import json
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from mixbit.errors import MixbitError
from mixbit.plan import Plan, QuantSpec
from mixbit.quantization import quantize
from models import save_raw

UP = "model.language_model.layers.2.mlp.up_proj.weight"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A sound model, for a test to spoil."""
    return save_raw("qwen3_5", tmp_path / "source")


@contextmanager
def refused(tmp_path: Path, message: str) -> Iterator[None]:
    """Expect one MixbitError of one sentence, and the same files with the same content as before.

    Only ``message`` (a regular expression) is looked for; the rest holds for every failure.
    """
    before = contents(tmp_path)
    with pytest.raises(MixbitError, match=message) as caught:
        yield
    assert contents(tmp_path) == before
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder, and what the files hold."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def change_tensors(folder: Path, **changes: mx.array | None) -> None:
    """Replace tensors of a folder's only weight file; None takes one away."""
    file = folder / "model.safetensors"
    tensors = {name: value for name, value in mx.load(str(file)).items() if name not in changes}
    tensors |= {name: value for name, value in changes.items() if value is not None}
    mx.eval(tensors)
    mx.save_safetensors(str(file), tensors)


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_missing_source(tmp_path: Path) -> None:
    with refused(tmp_path, "nowhere is not a folder"):
        quantize(tmp_path / "nowhere", tmp_path / "out", plan="uniform-4")


def test_missing_config(tmp_path: Path, source: Path) -> None:
    (source / "config.json").unlink()
    with refused(tmp_path, r"config\.json does not exist"):
        quantize(source, tmp_path / "out", plan="uniform-4")


def test_truncated_weights(tmp_path: Path, source: Path) -> None:
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with refused(tmp_path, r"model\.safetensors is truncated"):
        quantize(source, tmp_path / "out", plan="uniform-4")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", [UP, "model.language_model.layers.0.linear_attn.A_log"])
def test_non_finite_weights(tmp_path: Path, source: Path, value: float, name: str) -> None:
    weight = mx.load(str(source / "model.safetensors"))[name]
    weight[..., -1] = value
    change_tensors(source, **{name: weight, "mtp.fc.weight": mx.full((2,), value)})
    with refused(tmp_path, rf"Tensor {name} in .*source/model\.safetensors holds a NaN"):
        quantize(source, tmp_path / "out", plan="uniform-4")


def test_weights_that_a_narrow_dtype_cannot_hold(tmp_path: Path, source: Path) -> None:
    change_tensors(source, **{UP: mx.full((128, 64), 1e5)})
    with refused(tmp_path, r"mlp\.up_proj\.weight holds values too large .* choose bfloat16"):
        quantize(source, tmp_path / "out", plan="uniform-4", dtype="float16")


@pytest.mark.parametrize("plan", ["unsloth-2027@3", "uniform", "missing/plan.json"])
def test_unknown_recipe_or_file(tmp_path: Path, source: Path, plan: str) -> None:
    with refused(tmp_path, f"{plan}' is neither a file, a folder nor a recipe"):
        quantize(source, tmp_path / "out", plan=plan)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (QuantSpec(7, 64), "takes 2, 3, 4, 5, 6 or 8 bits, not 7"),
        (QuantSpec(4, 16), "takes groups of 32, 64 or 128, not 16"),
        (QuantSpec(4, 128), "rows of 64 weights do not split into groups of 128"),
        (QuantSpec(4, 64, "mxfp4"), "takes groups of 32, not 64"),
        (QuantSpec(4, 64, "int"), "mode 'int' is not one of"),
    ],
)
def test_illegal_plan(tmp_path: Path, source: Path, spec: QuantSpec, message: str) -> None:
    path = "language_model.model.layers.2.mlp.up_proj"
    with refused(tmp_path, f"applied to {path}: .*{message}"):
        quantize(source, tmp_path / "out", plan=Plan({path: spec}))


def test_plan_for_another_model(tmp_path: Path, source: Path) -> None:
    with refused(tmp_path, "no module of this qwen3_5 model"):
        plan = Plan({"model.layers.0.mlp.up_proj": QuantSpec(4, 64)})
        quantize(source, tmp_path / "out", plan=plan)


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_output_exists(tmp_path: Path, source: Path, kind: str) -> None:
    out = tmp_path / "out"
    if kind == "folder":
        out.mkdir()
    elif kind == "file":
        out.write_text("mine")
    else:
        out.symlink_to(tmp_path / "nothing")
    with refused(tmp_path, "out exists already; remove it"):
        quantize(source, out, plan="uniform-4")


@pytest.mark.parametrize("spelling", ["source", "source/../source", "link"])
def test_output_is_the_source(tmp_path: Path, source: Path, spelling: str) -> None:
    (tmp_path / "link").symlink_to(source)
    with refused(tmp_path, f"{spelling} is the source itself"):
        quantize(source, tmp_path / spelling, plan="uniform-4")


def test_output_below_a_file(tmp_path: Path, source: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with refused(tmp_path, "file/out cannot be written: Not a directory"):
        quantize(source, tmp_path / "file" / "out", plan="uniform-4")


def test_packed_source(tmp_path: Path, source: Path) -> None:
    quantize(source, tmp_path / "packed", plan="uniform-4")
    with refused(tmp_path, "packed is quantised already"):
        quantize(tmp_path / "packed", tmp_path / "out", plan="uniform-4")


@pytest.mark.parametrize("nested", [False, True])
def test_source_that_says_it_is_quantised(tmp_path: Path, source: Path, nested: bool) -> None:
    block = {"quantization_config": {"quant_method": "fp8"}}
    text = json.loads((source / "config.json").read_text())["text_config"]
    change_config(source, **({"text_config": text | block} if nested else block))
    with refused(tmp_path, "source is quantised already"):
        quantize(source, tmp_path / "out", plan="uniform-4")


def test_integer_weights(tmp_path: Path, source: Path) -> None:
    change_tensors(source, **{UP: mx.ones((128, 64), dtype=mx.uint8)})
    with refused(tmp_path, rf"Tensor {UP} in .* is U8; give the model in bf16"):
        quantize(source, tmp_path / "out", plan="uniform-4")


def test_unknown_tensor(tmp_path: Path, source: Path) -> None:
    change_tensors(source, **{"model.language_model.layers.0.adapter.weight": mx.ones(3)})
    with refused(tmp_path, r"holds tensor .*layers\.0\.adapter\.weight, which is no part"):
        quantize(source, tmp_path / "out", plan="uniform-4")


def test_missing_tensors(tmp_path: Path, source: Path) -> None:
    change_tensors(source, **{UP: None, "lm_head.weight": None})
    with refused(tmp_path, r"lacks tensor .*2\.mlp\.up_proj\.weight \(and 1 more\)"):
        quantize(source, tmp_path / "out", plan="uniform-4")


def test_missing_expert(tmp_path: Path) -> None:
    source = save_raw("qwen3_next", tmp_path / "source")
    change_tensors(source, **{"model.layers.1.mlp.experts.3.up_proj.weight": None})
    with refused(tmp_path, r"qwen3_next model \(KeyError: .*experts\.3\.up_proj"):
        quantize(source, tmp_path / "out", plan="uniform-4")


def test_tensor_of_another_shape(tmp_path: Path, source: Path) -> None:
    change_tensors(source, **{UP: mx.ones((128, 32))})
    with refused(tmp_path, r"has shape \(128, 32\), but the config asks for \(128, 64\)"):
        quantize(source, tmp_path / "out", plan="uniform-4")


def test_unknown_dtype_and_shard_size(tmp_path: Path, source: Path) -> None:
    with refused(tmp_path, "dtype 'int8' is not one of float16, bfloat16, float32"):
        quantize(source, tmp_path / "out", plan="uniform-4", dtype="int8")
    with refused(tmp_path, "max_shard_bytes is 0"):
        quantize(source, tmp_path / "out", plan="uniform-4", max_shard_bytes=0)


def test_disk_that_is_too_small(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with refused(tmp_path, r"takes 0\.0 GB, but only 0\.0 GB are free"):
        quantize(source, tmp_path / "new" / "out", plan="uniform-4")


def test_disk_that_fills_up(tmp_path: Path, source: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with refused(tmp_path, r"model\.safetensors cannot be written: File too large"):
            quantize(source, tmp_path / "out", plan="uniform-4")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_disk_that_loses_bytes(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        if os.fstat(descriptor).st_size > 50_000:
            os.truncate(descriptor, 5000)

    monkeypatch.setattr(os, "fsync", fsync)
    with refused(tmp_path, r"model\.safetensors is truncated"):
        quantize(source, tmp_path / "out", plan="uniform-4")


def interrupt(done: int, total: int, _: str) -> None:
    """Ctrl-C in the middle of the work."""
    if done == total // 2:
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_in_the_middle(tmp_path: Path, source: Path) -> None:
    out, shards = tmp_path / "new" / "out", {"max_shard_bytes": 20_000}
    quantize(source, tmp_path / "whole", plan="uniform-4", **shards)
    with pytest.raises(KeyboardInterrupt):
        quantize(source, out, plan="uniform-4", progress=interrupt, **shards)
    part = tmp_path / "new" / ".out.part" / "checkpoint"
    begun = {file.name: file.stat().st_mtime_ns for file in part.glob("model-*")}
    assert 2 <= len(begun) < len(list((tmp_path / "whole").glob("model-*")))
    assert not out.exists()
    (part / "unfinished").write_bytes(b"unfinished")
    steps: list[str] = []
    quantize(source, out, plan="uniform-4", progress=lambda *step: steps.append(step[2]), **shards)
    assert contents(out) == contents(tmp_path / "whole")
    kept = [name for name in begun if (out / name).stat().st_mtime_ns == begun[name]]
    assert len(kept) >= 2
    assert ".layers.0." not in steps[0] and not any("embed_tokens" in step for step in steps)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]


def test_ctrl_c_right_behind_a_layer(tmp_path: Path, source: Path) -> None:
    def stop(done: int, *_: object) -> None:
        if done == 1:  # the embedding, a layer of its own
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(source, tmp_path / "out", plan="uniform-4", progress=stop)
    quantize(source, tmp_path / "out", plan="uniform-4")
    quantize(source, tmp_path / "whole", plan="uniform-4")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("changed", ["method", "plan", "dtype", "source"])
def test_another_job_does_not_go_on_with_it(tmp_path: Path, source: Path, changed: str) -> None:
    out, job = tmp_path / "out", {"plan": "uniform-4", "dtype": "float32"}
    other = {"method": "search", "plan": "uniform-3", "dtype": "float16"}
    with pytest.raises(KeyboardInterrupt):
        quantize(source, out, progress=interrupt, **job)
    before = contents(tmp_path / ".out.part")
    if changed == "source":
        (source / "config.json").touch()
    with pytest.raises(
        MixbitError, match=rf"out was begun with another {changed}; finish that, or remove \S+part"
    ):
        quantize(source, out, **job | {key: other[key] for key in {changed} & other.keys()})
    assert contents(tmp_path / ".out.part") == before
    shutil.rmtree(tmp_path / ".out.part")
    quantize(source, out, **job)


def test_a_run_killed_after_its_very_end_leaves_nothing_to_go_on_with(
    tmp_path: Path, source: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        quantize(source, out, plan="uniform-4", progress=interrupt)
    shutil.rmtree(tmp_path / ".out.part" / "checkpoint")
    quantize(source, out, plan="uniform-3")
    quantize(source, tmp_path / "whole", plan="uniform-3")
    assert contents(out) == contents(tmp_path / "whole")


def test_two_runs_for_one_folder(tmp_path: Path, source: Path) -> None:
    def second(done: int, *_: object) -> None:
        if done == 1:
            with pytest.raises(MixbitError, match="Another process is writing"):
                quantize(source, tmp_path / "out", plan="uniform-4")

    quantize(source, tmp_path / "out", plan="uniform-4", progress=second)


def test_output_that_appears_meanwhile_is_left_alone(tmp_path: Path, source: Path) -> None:
    def intrude(done: int, *_: object) -> None:
        if done == 1:
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "mine").write_text("mine")

    with pytest.raises(MixbitError, match="out exists already"):
        quantize(source, tmp_path / "out", plan="uniform-4", progress=intrude)
    assert {path.name for path in tmp_path.iterdir()} == {"source", "out"}
    assert (tmp_path / "out" / "mine").read_text() == "mine"


def test_success_leaves_the_source_alone_and_no_scraps(tmp_path: Path, source: Path) -> None:
    before = contents(source)
    quantize(source, tmp_path / "new" / "out", plan="uniform-4")
    assert contents(source) == before
    assert {path.name for path in tmp_path.iterdir()} == {"source", "new"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]
    assert not any(path.name.startswith(".") for path in (tmp_path / "new" / "out").iterdir())
