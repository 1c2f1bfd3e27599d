"""llama.cpp's importance matrices, written here element by element."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

from mixbit.calibration import Calibration
from mixbit.calibration.statistics import InputStatistics
from mixbit.errors import MixbitError
from models import config

ROOT = "language_model.model.layers"


def write_gguf(path: Path, sums: dict[str, np.ndarray], counts: dict[str, np.ndarray]) -> Path:
    writer = GGUFWriter(path, "")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["some.txt"])
    for name, value in sums.items():
        writer.add_tensor(f"{name}.in_sum2", value.astype(np.float32))
        writer.add_tensor(f"{name}.counts", counts[name].astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_binary(path: Path, entries: dict[str, tuple[int, np.ndarray]]) -> Path:
    content = struct.pack("<i", len(entries))
    for name, (calls, means) in entries.items():
        content += struct.pack("<i", len(name)) + name.encode()
        content += struct.pack("<ii", calls, means.size)
        content += (means * calls).astype("<f4").tobytes()
    path.write_bytes(content)
    return path


def found(calibration: Calibration, path: str) -> InputStatistics:
    statistics = calibration.of(path)
    assert statistics is not None, path
    return statistics


def squares(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 2, count).astype(np.float32)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("key_heads", "value_heads"), [(2, 4), (2, 6), (4, 4), (3, 12), (1, 4)])
def test_value_heads_of_out_proj_are_put_back(
    tmp_path: Path, binary: bool, key_heads: int, value_heads: int
) -> None:
    settings = config("qwen3_5", linear_num_key_heads=key_heads, linear_num_value_heads=value_heads)
    ratio, width = value_heads // key_heads, 32
    hf = squares(value_heads * width)
    gguf = np.empty_like(hf)
    for r in range(ratio):
        for k in range(key_heads):
            to, of = r * key_heads + k, k * ratio + r
            gguf[to * width : (to + 1) * width] = hf[of * width : (of + 1) * width]
    qkv = squares(64, 1)
    tensors = {"blk.1.ssm_out.weight": gguf, "blk.1.attn_qkv.weight": qkv}
    if binary:
        path = write_binary(tmp_path / "i.dat", {k: (7, v) for k, v in tensors.items()})
    else:
        sums = {name: 7 * value for name, value in tensors.items()}
        path = write_gguf(tmp_path / "i.gguf", sums, {name: np.array([7.0]) for name in sums})
    calibration = Calibration.load(path, settings)
    out_proj = found(calibration, f"{ROOT}.1.linear_attn.out_proj")
    np.testing.assert_allclose(np.array(out_proj.mean_square), hf, rtol=1e-6)
    assert out_proj.count.item() == 7
    for name in ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b"):  # one input for all
        statistics = found(calibration, f"{ROOT}.1.linear_attn.{name}")
        np.testing.assert_allclose(np.array(statistics.mean_square), qkv, rtol=1e-6)
    assert calibration.of(f"{ROOT}.0.linear_attn.out_proj") is None
    assert calibration.provenance["format"] == "imatrix"


def test_qwen3_next_files_keep_the_order_of_heads(tmp_path: Path) -> None:
    values = squares(128)
    path = write_binary(tmp_path / "i.dat", {"blk.0.ssm_out.weight": (1, values)})
    calibration = Calibration.load(path, config("qwen3_next"))
    out_proj = found(calibration, "model.layers.0.linear_attn.out_proj")
    assert np.array_equal(np.array(out_proj.mean_square), values)


def test_experts_are_divided_by_their_own_counts(tmp_path: Path) -> None:
    means, counts = squares(6 * 64).reshape(6, 64), np.array([5.0, 0, 1, 9, 2, 30])
    means[1] = 0
    name = "blk.2.ffn_up_exps.weight"
    path = write_gguf(tmp_path / "i.gguf", {name: means * counts[:, None]}, {name: counts[:, None]})
    statistics = found(
        Calibration.load(path, config("qwen3_5_moe")), f"{ROOT}.2.mlp.switch_mlp.gate_proj"
    )
    np.testing.assert_allclose(np.array(statistics.mean_square), means, rtol=1e-6)
    assert np.array(statistics.count).tolist() == counts.tolist()
    assert statistics.mean_abs is None
    assert statistics.hessian is None

    path = write_binary(tmp_path / "i.dat", {name: (3, means.ravel())})
    statistics = found(
        Calibration.load(path, config("qwen3_5_moe")), f"{ROOT}.2.mlp.switch_mlp.up_proj"
    )
    np.testing.assert_allclose(np.array(statistics.mean_square), means, rtol=1e-6)
    assert (np.array(statistics.count) > 0).tolist() == (counts > 0).tolist()


def test_tensors_outside_the_text_model_are_passed_over(tmp_path: Path) -> None:
    entries: dict[str, Any] = {
        "blk.0.attn_gate.weight": (2, squares(64)),
        "blk.4.nextn.eh_proj.weight": (2, squares(128)),
        "something.else.weight": (2, squares(10)),
    }
    calibration = Calibration.load(write_binary(tmp_path / "i.dat", entries), config("qwen3_5"))
    assert found(calibration, f"{ROOT}.0.linear_attn.in_proj_z").count.item() == 2


def test_unusable_files_are_refused(tmp_path: Path) -> None:
    settings = config("qwen3_5")
    good = write_binary(tmp_path / "a.dat", {"blk.0.ffn_down.weight": (2, squares(128))})
    cut = tmp_path / "cut.dat"
    for length in (2, 10, 40, good.stat().st_size - 1):
        cut.write_bytes(good.read_bytes()[:length])
        with pytest.raises(MixbitError, match="truncated"):
            Calibration.load(cut, settings)
    name = "blk.0.ffn_down.weight"
    whole = write_gguf(tmp_path / "b.gguf", {name: squares(128)}, {name: np.ones(1)})
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole.read_bytes()[:-100])
    with pytest.raises(MixbitError, match="truncated"):
        Calibration.load(cut, settings)
    for entries, message in (
        ({"blk.0.ffn_down.weight": (2, squares(64))}, "shape \\(64,\\), not \\(128,\\)"),
        ({"blk.0.ssm_out.weight": (2, squares(127))}, "127 channels are not 4 value heads"),
        ({"blk.77.ffn_down.weight": (2, squares(128))}, "none of its tensors"),
        ({"blk.0.ffn_down.weight": (2, -squares(128))}, "negative"),
        ({"blk.0.ffn_down.weight": (2, np.nan * squares(128))}, "not finite"),
    ):
        with pytest.raises(MixbitError, match=message):
            Calibration.load(write_binary(tmp_path / "c.dat", entries), settings)
    writer = GGUFWriter(tmp_path / "model.gguf", "qwen35")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(MixbitError, match="no importance matrix"):
        Calibration.load(tmp_path / "model.gguf", settings)
