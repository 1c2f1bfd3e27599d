"""Opening checkpoint folders: what is read, and what is refused."""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import pytest

from mixbit.checkpoint import (
    DTYPE_NAMES,
    gather_rows,
    open_checkpoint,
    read_config,
    read_header,
    read_rows,
    side_part,
    write_json,
)
from mixbit.errors import MixbitError
from models import save_raw

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two weight files and no index."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_5"}')
    mx.save_safetensors(str(tmp_path / "model-1.safetensors"), {"a": mx.zeros((2, 3))})
    mx.save_safetensors(
        str(tmp_path / "model-2.safetensors"), {"b": mx.zeros((4,), dtype=mx.bfloat16)}
    )
    return tmp_path


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_reads_names_types_shapes_and_sizes(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config == {"model_type": "qwen3_5"}
    assert [file.name for file in checkpoint.files] == [
        "model-1.safetensors",
        "model-2.safetensors",
    ]
    a, b = checkpoint.tensors["a"], checkpoint.tensors["b"]
    assert (a.file.name, a.dtype, a.shape, a.nbytes) == ("model-1.safetensors", "F32", (2, 3), 24)
    assert (b.file.name, b.dtype, b.shape, b.nbytes) == ("model-2.safetensors", "BF16", (4,), 8)


def test_sizes_of_the_tiny_model_fill_its_file(tiny_folder: Path) -> None:
    file = tiny_folder / "model.safetensors"
    header = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    total = sum(info.nbytes for info in open_checkpoint(tiny_folder).tensors.values())
    assert header + total == file.stat().st_size


@pytest.mark.parametrize("dtype", DTYPE_NAMES, ids=str)
@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 5, 1)], ids=str)
def test_rows_are_those_of_the_file(
    tmp_path: Path, shape: tuple[int, ...], dtype: mx.Dtype
) -> None:
    file = tmp_path / "model.safetensors"
    value = mx.random.randint(0, 100, shape).astype(dtype)
    before = mx.zeros(13, dtype=mx.uint8)  # so that the others lie at odd places
    mx.save_safetensors(str(file), {"a": before, "b": value, "c": value})
    for name in ("b", "c"):
        info = read_header(file)[name]
        rows = read_rows(info, 2, 6)
        assert rows.dtype == dtype
        assert mx.array_equal(rows, value[2:6])
        gathered = gather_rows(info, [range(5, 7), range(1), range(3, 4)])
        assert mx.array_equal(gathered, value[mx.array([5, 6, 0, 3])])
    file.unlink()  # and none is left mapped to it
    assert mx.array_equal(rows, value[2:6])


def test_rows_of_a_file_that_changed_meanwhile_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    mx.save_safetensors(str(file), {"a": mx.zeros((64, 1024))})
    info = read_header(file)["a"]
    for size in (file.stat().st_size - 1, 4096, 0):
        with file.open("r+b") as content:
            content.truncate(size)
        with pytest.raises(MixbitError, match=r"model\.safetensors has become shorter; fetch"):
            read_rows(info, 0, 1)
    file.unlink()
    with pytest.raises(MixbitError, match=r"model\.safetensors cannot be read: No such file"):
        read_rows(info, 0, 1)


def test_takes_top_level_model_files_only(folder: Path) -> None:
    (folder / "optiq").mkdir()
    for sidecar in ("mtp.safetensors", "optiq/model.safetensors", "adapters.safetensors"):
        shutil.copyfile(folder / "model-1.safetensors", folder / sidecar)
    assert len(open_checkpoint(folder).files) == 2


def test_takes_only_the_files_of_the_index(folder: Path) -> None:
    write_index(folder, {"b": "model-2.safetensors"})
    assert list(open_checkpoint(folder).tensors) == ["b"]


def test_follows_links_out_of_the_folder_as_the_hub_cache_has_them(folder: Path) -> None:
    blobs = folder / "blobs"
    blobs.mkdir()
    blob = (folder / "model-1.safetensors").rename(blobs / "0123")
    (folder / "model-1.safetensors").symlink_to(blob)
    assert set(open_checkpoint(folder).tensors) == {"a", "b"}


@pytest.mark.parametrize(
    "name", ["../model-1.safetensors", "/etc/passwd", "x/model.safetensors", "..\\a", "", "..", "."]
)
def test_refuses_index_names_that_leave_the_folder(folder: Path, name: str) -> None:
    write_index(folder, {"a": name})
    with pytest.raises(MixbitError, match="not a weight file of its own folder"):
        open_checkpoint(folder)


@pytest.mark.parametrize("weight_map", [None, [], {}, "model-1.safetensors"])
def test_refuses_an_index_without_a_map(folder: Path, weight_map: object) -> None:
    write_index(folder, weight_map)
    with pytest.raises(MixbitError, match=f"{INDEX} has no weight_map"):
        open_checkpoint(folder)


def test_names_a_missing_shard(folder: Path) -> None:
    write_index(folder, {"a": "model-1.safetensors", "c": "model-3.safetensors"})
    with pytest.raises(MixbitError, match=r"lacks model-3\.safetensors"):
        open_checkpoint(folder)


def test_names_a_tensor_that_is_not_where_the_index_says(folder: Path) -> None:
    write_index(folder, {"a": "model-1.safetensors", "b": "model-1.safetensors"})
    with pytest.raises(MixbitError, match=r"places tensor b in model-1\.safetensors"):
        open_checkpoint(folder)


def test_names_a_tensor_that_is_in_two_files(folder: Path) -> None:
    shutil.copyfile(folder / "model-1.safetensors", folder / "model-3.safetensors")
    with pytest.raises(
        MixbitError, match=r"a is in both model-1\.safetensors and model-3\.safetensors"
    ):
        open_checkpoint(folder)


@pytest.mark.parametrize("kept", [0, 5, 8, 40, -1])
def test_names_a_truncated_file(folder: Path, kept: int) -> None:
    file = folder / "model-2.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(MixbitError, match=r"model-2\.safetensors is truncated"):
        open_checkpoint(folder)


@pytest.mark.parametrize("content", [b"not a header", (1 << 60).to_bytes(8, "little") + b"{}"])
def test_names_a_file_that_is_no_safetensors(folder: Path, content: bytes) -> None:
    (folder / "model-1.safetensors").write_bytes(content)
    with pytest.raises(MixbitError, match=r"model-1\.safetensors is truncated or not"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "must hold a JSON object, not list"),
    ],
)
def test_names_an_unusable_config(folder: Path, content: str | None, message: str) -> None:
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_text(content)
    with pytest.raises(MixbitError, match=rf"config\.json .*{message}"):
        open_checkpoint(folder)


def test_refuses_a_folder_without_weights(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(MixbitError, match=r"holds no model\*\.safetensors"):
        open_checkpoint(folder)


def test_refuses_what_is_no_folder(folder: Path) -> None:
    for path in (folder / "nothing", folder / "config.json"):
        with pytest.raises(MixbitError, match="is not a folder"):
            open_checkpoint(path)


def test_reads_a_config_by_file_or_folder(tmp_path: Path) -> None:
    folder = save_raw("qwen3_5", tmp_path / "model")
    assert read_config(folder) == read_config(folder / "config.json")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.visual.blocks.0.attn.qkv.weight", "vision"),
        ("visual.patch_embed.weight", "vision"),
        ("vision_tower.blocks.0.mlp.weight", "vision"),
        ("language_model.vision_tower.blocks.0.mlp.weight", "vision"),
        ("mtp.fc.weight", "mtp"),
        ("language_model.mtp.layers.0.mlp.gate.weight", "mtp"),
        ("model.language_model.layers.0.mlp.gate.weight", None),
        ("model.layers.0.smtp.weight", None),
        ("lm_head.weight", None),
    ],
)
def test_tells_side_parts_by_name(name: str, part: str | None) -> None:
    assert side_part(name) == part


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_into_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(MixbitError, match=r"plan\.json cannot be written"):
        write_json(tmp_path / "missing" / "plan.json", {})
