"""Who rounds activations to 8 bits: models that are loaded so, in steps, and nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mixbit
from kernel_cases import double
from mixbit import integration, nn, ops
from mixbit.bench import throughput
from mixbit.calibration import run as calibration
from mixbit.cli.app import main
from mixbit.kld import reference
from mixbit.quantization import quantize
from models import MODEL_TYPES, save_raw

FEW = 20  # tokens of a step that heeds the option


@pytest.fixture(scope="module", params=MODEL_TYPES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with 4-bit weights."""
    base = tmp_path_factory.mktemp(request.param)
    source = save_raw(request.param, base / "source", dtype=mx.bfloat16, vocab_size=2048)
    quantize(source, base / "packed", plan="uniform-4")
    return base / "packed"


def bits_of(model: Any) -> set[int]:
    """What a model's packed layers round activations to."""
    layers = (nn.QuantizedLinear, nn.QuantizedEmbedding, nn.QuantizedSwitchLinear)
    found = {m.activation_bits for _, m in model.named_modules() if isinstance(m, layers)}
    assert found
    return found


def watched(monkeypatch: pytest.MonkeyPatch, *modules: Any) -> list[set[int]]:
    """Grows by the bits of each model that the modules load."""
    found, load = [], integration.load

    def watching(*arguments: Any, **options: Any) -> Any:
        loaded = load(*arguments, **options)
        found.append(bits_of(loaded[0]))
        return loaded

    for module in modules:
        monkeypatch.setattr(module, "load", watching)
    return found


def test_a_loaded_model_rounds_steps_and_not_prompts(folder: Path) -> None:
    eight, sixteen = (mixbit.load(folder, activation_bits=bits)[0] for bits in (8, 16))
    assert bits_of(eight) == {8}
    assert bits_of(sixteen) == {16}
    assert bits_of(mixbit.load(folder)[0]) == {16}
    prompt = mx.array([[(7 * i) % 200 + 1 for i in range(FEW + 4)]])
    assert mx.array_equal(eight(prompt), sixteen(prompt))
    a, b = double(eight(prompt[:, :1])), double(sixteen(prompt[:, :1]))
    assert 0 < np.abs(a - b).max() < 0.1 * np.abs(b).max()


def test_what_measures_takes_no_model_that_rounds(folder: Path) -> None:
    rounding, exact = (mixbit.load(folder, activation_bits=bits) for bits in (8, 16))
    documents = [[1, 5, 9, 200, 3]]
    for one, other in ((rounding[0], exact[0]), (exact[0], rounding[0])):
        with pytest.raises(mixbit.MixbitError, match="load it without activation_bits=8"):
            mixbit.kld.measure(one, other, documents)
    # Its head alone is multiplied in fp32, whatever the layer says.
    hidden, targets = mx.random.normal((5, 64), key=mx.random.key(0)), mx.array([1, 2, 3, 4, 5])
    heads = [integration.head_weight(model) for model, _ in (rounding, exact)]
    assert [head.activation_bits for head in heads] == [8, 16]
    tiles = [
        ops.kl_divergence(hidden, head, hidden + 1, None, targets, vocabulary=200) for head in heads
    ]
    assert np.array_equal(*tiles)


def test_who_measures_and_calibrates_loads_with_16_bits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = watched(monkeypatch, reference, calibration)
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "one two three"}\n', encoding="utf-8")
    assert (
        main(["kld", "measure", str(folder), "--reference", str(folder), "--data", str(data)]) == 0
    )
    out = str(tmp_path / "calibration.safetensors")
    assert main(["calibrate", "--model", str(folder), "--data", str(data), "--out", out]) == 0
    assert found == [{16}] * 3


def test_the_commands_that_generate_take_the_option(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = watched(monkeypatch, throughput, integration)
    bench = ["bench", "--model", str(folder), "-p", "3", "-g", "2", "-n", "1"]
    assert main([*bench, "--activation-bits", "8"]) == 0
    assert "mixbit, 8-bit activations" in capsys.readouterr().out
    assert main(bench) == 0
    assert "8-bit" not in capsys.readouterr().out
    generate = ["generate", "--model", str(folder), "-p", "x", "-m", "2", "--draft-model"]
    assert main([*generate, str(folder), "--activation-bits", "8"]) == 0
    assert found == [{8}, {16}, {8}, {8}]
    for command in ("bench", "generate", "kld measure"):
        with pytest.raises(SystemExit):
            main([*command.split(), "--model", str(folder), "--activation-bits", "4"])


@pytest.mark.parametrize("bits", [0, 4, 15, 32])
def test_other_bits_are_refused(bits: int, tmp_path: Path) -> None:
    with pytest.raises(mixbit.MixbitError, match=f"activation_bits must be 8 or 16, not {bits}"):
        mixbit.load(tmp_path, activation_bits=bits)
