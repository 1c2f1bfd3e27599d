"""Calibration against what stock mlx-lm's layers are called with."""

import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest
from mlx_lm.models.switch_layers import SwitchLinear

from kld_runs import run_killed_often
from mixbit.calibration import Calibration, hessian_place_of, layer_and_role, place_of
from mixbit.calibration.record import Sums
from mixbit.calibration.run import calibrate
from mixbit.checkpoint import describe, read_config, read_header
from mixbit.cli import main
from mixbit.errors import MixbitError
from models import MODEL_TYPES, build, save_checkpoint, save_raw

LENGTHS = (14, 9, 14, 5, 14, 1)


def write_tokens(path: Path, lengths: tuple[int, ...] = LENGTHS) -> Path:
    rng = np.random.default_rng(3)
    lines = [json.dumps({"tokens": rng.integers(0, 256, n).tolist()}) for n in lengths]
    path.write_text("\n".join(lines))
    return path


class Seen:
    """Inputs of every module of a stock model, [n, in_dims], and the experts that read them."""

    def __init__(self, model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: dict[str, list[np.ndarray]] = {}
        self.experts: dict[str, list[np.ndarray]] = {}
        names = {id(module): path for path, module in model.named_modules()}
        linear, switch = nn.Linear.__call__, SwitchLinear.__call__

        def call_linear(module: nn.Linear, x: mx.array) -> mx.array:
            self.keep(names[id(module)], x)
            return linear(module, x)

        def call_switch(
            module: SwitchLinear, x: mx.array, indices: mx.array, **options: bool
        ) -> mx.array:
            wide = mx.broadcast_to(x, (*indices.shape, *x.shape[-2:]))
            self.keep(names[id(module)], wide)
            self.experts.setdefault(names[id(module)], []).append(np.array(indices).ravel())
            return switch(module, x, indices, **options)

        monkeypatch.setattr(nn.Linear, "__call__", call_linear)
        monkeypatch.setattr(SwitchLinear, "__call__", call_switch)

    def keep(self, path: str, x: mx.array) -> None:
        self.rows.setdefault(path, []).append(np.array(x).reshape(-1, x.shape[-1]))

    def of(self, path: str, experts: int | None) -> list[np.ndarray]:
        """The inputs in fp64, of each expert where there are some."""
        rows = np.concatenate(self.rows[path]).astype(np.float64)
        if experts is None:
            return [rows]
        chosen = np.concatenate(self.experts[path])
        return [rows[chosen == expert] for expert in range(experts)]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_statistics_are_of_what_each_layer_reads(
    tmp_path: Path, model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save_raw(model_type, tmp_path / "source")
    data = write_tokens(tmp_path / "data.jsonl")
    report = calibrate(
        source, data, tmp_path / "c.safetensors", window=10, batch_size=2, hessian="proj"
    )
    calibration = Calibration.load(tmp_path / "c.safetensors", read_config(source))
    assert report.tokens == sum(LENGTHS)

    model = build(model_type)
    seen = Seen(model, monkeypatch)
    for line in data.read_text().splitlines():
        tokens = json.loads(line)["tokens"]
        for begin in range(0, len(tokens), 10):
            mx.eval(model(mx.array([tokens[begin : begin + 10]])))

    idle, structure = 0, describe(source)
    for module in structure.modules:
        if module.kind == "embedding":
            assert calibration.of(module.path) is None
            continue
        experts = module.experts if module.kind == "switch" else None
        got = calibration.of(module.path)
        assert got is not None, module.path
        inputs = seen.of(module.path, experts)
        squares = np.array(got.mean_square).reshape(len(inputs), -1)
        absolutes = np.array(got.mean_abs).reshape(len(inputs), -1)
        assert np.array(got.count).ravel().tolist() == [len(rows) for rows in inputs]
        for rows, square, absolute in zip(inputs, squares, absolutes, strict=True):
            if not len(rows):
                assert not square.any()
                assert not absolute.any()
                idle += module.path == place_of(module.path)
                continue
            np.testing.assert_allclose(square, (rows**2).mean(axis=0), rtol=2e-4, atol=1e-9)
            np.testing.assert_allclose(absolute, np.abs(rows).mean(axis=0), rtol=2e-4, atol=1e-9)
        place = hessian_place_of(module.path)
        readers = [m.path for m in structure.modules if hessian_place_of(m.path) == place]
        assert (got.hessian is not None) == any("proj" in path for path in readers), module.path
        if got.hessian is None:
            continue
        if experts is not None and place != module.path:  # that of all tokens
            inputs = seen.of(place, None)
        hessians = np.array(got.hessian).reshape(len(inputs), *got.hessian.shape[-2:])
        for rows, hessian in zip(inputs, hessians, strict=True):
            want = rows.T @ rows / max(len(rows), 1)
            np.testing.assert_allclose(hessian, want, rtol=0, atol=2e-4 * want.max())
    assert report.idle_experts == idle


@pytest.mark.parametrize("experts", [None, 3])
def test_hessians_wider_than_a_block_are_whole(experts: int | None) -> None:
    rng = np.random.default_rng(4)
    sums, batches = Sums(530, experts, hessian=True), []
    for count in (7, 30):
        x, indices = rng.normal(size=(count, 530)), rng.integers(0, 2, (count, 1))
        batches.append((x, indices[:, 0]))
        if experts is None:
            sums.add(mx.array(x.astype(np.float32)))
        else:
            sums.add_routed(mx.array(x[:, None, None].astype(np.float32)), mx.array(indices))
        mx.eval(sums.pending())
        sums.collect()
    rows, chosen = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    want = [rows] if experts is None else [rows[chosen == expert] for expert in range(experts)]
    got = sums.statistics().hessian
    assert got is not None
    for x, hessian in zip(want, np.array(got).reshape(-1, 530, 530), strict=True):
        np.testing.assert_allclose(hessian, x.T @ x / max(len(x), 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("hessian", "kept"),
    [
        ("up_proj", {"mlp.gate"}),
        ("switch_mlp.down", {"mlp.switch_mlp.down_proj"}),
        ("mlp.gate$|shared_expert.down", {"mlp.gate", "mlp.shared_expert.down_proj"}),
        ("self_attn.v_proj", {"self_attn.q_proj"}),
    ],
)
def test_hessians_are_kept_for_the_modules_that_are_named(
    tmp_path: Path, hessian: str, kept: set[str]
) -> None:
    source, out = save_raw("qwen3_5_moe", tmp_path / "source"), tmp_path / "c.safetensors"
    calibrate(source, write_tokens(tmp_path / "data.jsonl", (6,)), out, hessian=hessian)
    names = [name for name in read_header(out) if name.endswith(".hessian")]
    assert {layer_and_role(name.removesuffix(".hessian"))[1] for name in names} == kept


def test_a_tied_head_is_measured_for_the_embedding(tmp_path: Path) -> None:
    source = save_raw("qwen3_5", tmp_path / "source", tie_word_embeddings=True)
    data = write_tokens(tmp_path / "data.jsonl", (6,))
    calibrate(source, data, tmp_path / "c.safetensors")
    calibration = Calibration.load(tmp_path / "c.safetensors", read_config(source))
    (embedding,) = (m.path for m in describe(source).modules if m.kind == "embedding")
    statistics = calibration.of(embedding)
    assert statistics is not None
    model = build("qwen3_5", tie_word_embeddings=True)
    tokens = mx.array([json.loads(data.read_text())["tokens"]])
    hidden = np.array(model.language_model.model(tokens), np.float64)[0]
    np.testing.assert_allclose(np.array(statistics.mean_square), (hidden**2).mean(0), rtol=2e-4)


def test_the_chat_template_and_tools_count(tmp_path: Path, tiny_folder: Path) -> None:
    source = save_checkpoint(build("qwen3_5", vocab_size=2048), tmp_path / "source")
    record = {
        "messages": [{"role": "user", "content": "Set a timer"}],
        "tools": [{"type": "function", "function": {"name": "start_timer", "parameters": {}}}],
    }
    (tmp_path / "with.jsonl").write_text(json.dumps(record))
    report = calibrate(source, tmp_path / "with.jsonl", tmp_path / "c.safetensors")
    _, tokenizer = mlx_lm.load(str(tiny_folder), lazy=True)
    shown = tokenizer.apply_chat_template(record["messages"], tools=record["tools"], tokenize=False)
    assert report.tokens == len(tokenizer.encode(shown, add_special_tokens=False))
    metadata = mx.load(str(tmp_path / "c.safetensors"), return_metadata=True)[1]
    provenance = json.loads(metadata["mixbit"])
    assert provenance["schema"] == "mixbit.calibration/1"
    assert (provenance["documents"], provenance["tokens"]) == (1, report.tokens)
    assert {"model", "data", "versions", "window"} <= provenance.keys()


KILLED = """
import sys
from pathlib import Path
from mixbit.calibration.run import calibrate
source, data, out, calls = sys.argv[1:]
if Path(out).exists():
    sys.exit()  # killed between the last step and the end
if int(calls):
    die_after(int(calls))
print("begun", flush=True)
calibrate(source, data, out, hessian="")
"""


@pytest.mark.parametrize("model_type", ["qwen3_5_moe", "qwen3_next"])
def test_a_run_killed_again_and_again_comes_to_the_same_bytes(
    tmp_path: Path, model_type: str, long_grid: bool
) -> None:
    source = save_raw(model_type, tmp_path / "source", dtype=mx.bfloat16)
    data = write_tokens(tmp_path / "data.jsonl")
    calibrate(source, data, tmp_path / "whole.safetensors", hessian="")
    out = tmp_path / "killed.safetensors"
    kills = 12 if long_grid else 3
    run_killed_often(KILLED, source, data, out, kills=kills, steps=12, seconds=0.6)
    # Between the last rename and the end a kill leaves what was begun.
    left = {"killed.safetensors.part"} if out.exists() else set[str]()
    if not out.exists():
        calibrate(source, data, out, hessian="")
    assert out.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    names = {file.name for file in tmp_path.iterdir() if not file.name.startswith(".")}
    assert names - left == {"data.jsonl", "killed.safetensors", "source", "whole.safetensors"}
    with pytest.raises(MixbitError, match="exists already"):
        calibrate(source, data, out)


def test_a_finished_layer_is_not_run_again(tmp_path: Path) -> None:
    source = save_raw("qwen3_5", tmp_path / "source")
    data, out = write_tokens(tmp_path / "data.jsonl"), tmp_path / "c.safetensors"

    def stop(done: int, _total: int, _name: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(source, data, out, progress=stop)
    kept = {
        file.name: file.stat().st_mtime_ns
        for file in (tmp_path / "c.safetensors.part").glob("layer-*")
    }
    assert len(kept) == 3

    def look(done: int, total: int, _name: str) -> None:
        if done == total:
            now = {
                name: (tmp_path / "c.safetensors.part" / name).stat().st_mtime_ns for name in kept
            }
            assert now == kept

    calibrate(source, data, out, progress=look)


def test_what_was_begun_is_not_gone_on_with_for_other_data(tmp_path: Path) -> None:
    source = save_raw("qwen3_5", tmp_path / "source")
    data, out = write_tokens(tmp_path / "data.jsonl", (4,)), tmp_path / "c.safetensors"

    def stop(done: int, _total: int, _name: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(source, data, out, progress=stop)
    with pytest.raises(MixbitError, match=r"c\.safetensors\.part was begun .*the same window"):
        calibrate(source, data, out, window=16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window must be at least 1"),
        ({"hessian": "("}, "not a regular expression"),
        ({"num_samples": 0}, "hold no tokens"),
    ],
)
def test_wrong_options_are_refused(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    source, data = save_raw("qwen3_5", tmp_path / "s"), write_tokens(tmp_path / "data.jsonl", (3,))
    with pytest.raises(MixbitError, match=message):
        calibrate(source, data, tmp_path / "c.safetensors", **options)  # type: ignore[arg-type]


def test_tokens_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    source = save_raw("qwen3_5", tmp_path / "source")
    (tmp_path / "data.jsonl").write_text('{"tokens": [3, 256]}')
    with pytest.raises(MixbitError, match="another tokenizer"):
        calibrate(source, tmp_path / "data.jsonl", tmp_path / "c.safetensors")


def test_the_calibration_of_another_model_is_refused(tmp_path: Path) -> None:
    source = save_raw("qwen3_5", tmp_path / "source")
    data, out = write_tokens(tmp_path / "data.jsonl", (3,)), tmp_path / "c.safetensors"
    calibrate(source, data, out)
    for overrides, message in (
        ({"intermediate_size": 256}, "not \\(256,\\)"),
        ({"num_hidden_layers": 3, "layer_types": ["linear_attention"] * 3}, "has no module"),
    ):
        other = save_raw("qwen3_5", tmp_path / message[:3], **overrides)
        with pytest.raises(MixbitError, match=message):
            Calibration.load(out, read_config(other))
    with pytest.raises(MixbitError, match="no calibration"):
        Calibration.load(source / "model.safetensors", read_config(source))
    with pytest.raises(MixbitError, match="There is no calibration file"):
        Calibration.load(tmp_path / "none", read_config(source))


def test_the_command_takes_the_shipped_data_where_none_are_named(
    tmp_path: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "c.safetensors"
    arguments = ["--model", str(tiny_folder), "--out", str(out), "--num-samples", "2"]
    assert main(["calibrate", *arguments, "--window", "64", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "mixbit.calibrate/1"
    assert (report["documents"], report["out"], report["bytes"]) == (
        2,
        str(out),
        out.stat().st_size,
    )
    assert main(["calibrate", *arguments]) == 1
    assert "exists already" in capsys.readouterr().err
