"""The demo on a part of its data: what it prints is what one measures apart."""

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx_lm
import pytest
from mlx.utils import tree_flatten

import mixbit
from mixbit import demo
from mixbit.cli import main
from mixbit.data import tiny_data
from mixbit.demo import DemoResult
from mixbit.demo.background import in_background
from mixbit.errors import MixbitError

NAMES = ["bf16", "uniform-3", "uniform-4", "unsloth-2026-03@3", "unsloth-2026-03@4"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the one run of this file leaves its checkpoints."""
    return tmp_path_factory.mktemp("demo") / "kept"


@pytest.fixture(scope="module")
def steps() -> list[tuple[int, int, str]]:
    """The progress of that run."""
    return []


@pytest.fixture(scope="module")
def result(kept: Path, steps: list[tuple[int, int, str]]) -> DemoResult:
    return demo.run(
        kept, documents=2, cases=3, timed_runs=1, progress=lambda *step: steps.append(step)
    )


def test_rows_are_the_five_plans(result: DemoResult) -> None:
    assert [row.name for row in result.rows] == NAMES
    for row in result.rows:
        assert row.tool_calls_total == 3
        assert 0 <= row.tool_calls_right <= 3
        assert row.tokens_per_second > 0
        assert row.stock_tokens_per_second > 0


def tensor_bytes(file: Path) -> int:
    """What follows the header of a safetensors file, whose length its first 8 bytes say."""
    content = file.read_bytes()
    return len(content) - 8 - int.from_bytes(content[:8], "little")


def test_sizes_are_those_of_the_files(result: DemoResult, kept: Path) -> None:
    for row in result.rows[1:]:
        assert row.bytes == sum(map(tensor_bytes, (kept / row.name).glob("*.safetensors")))
    sizes = {row.name: row.bytes for row in result.rows}
    assert sizes["uniform-3"] < sizes["uniform-4"] < sizes["unsloth-2026-03@4"] < sizes["bf16"]
    assert result.rows[0].bpw == pytest.approx(16, abs=0.01)
    assert result.rows[2].bpw == pytest.approx(4.5, abs=0.05)


def test_divergence_is_what_measuring_alone_gives(
    result: DemoResult, kept: Path, tiny_folder: Path
) -> None:
    data = tiny_data("kld_eval")
    alone = mixbit.kld.measure(
        kept / "uniform-3", tiny_folder, data, num_samples=2, window=None, score="all"
    ).summary()
    row = asdict(result.rows[1])
    # The demo runs other chunks, and so other numbers of rows, through bf16 arithmetic.
    for key in ("mean", "p999", "se"):
        assert row[f"kld_{key}"] == pytest.approx(alone[key], rel=1e-2)
    assert row["top1"] == pytest.approx(alone["top1"], abs=0.01)
    assert result.kld_tokens == alone["tokens"]


def test_divergence_falls_with_the_bits(result: DemoResult) -> None:
    mean = {row.name: row.kld_mean for row in result.rows}
    assert abs(mean["bf16"]) < 1e-9
    assert mean["uniform-4"] < mean["uniform-3"]
    assert mean["unsloth-2026-03@3"] < mean["uniform-3"]
    assert mean["unsloth-2026-03@4"] < mean["uniform-4"]


def test_kept_checkpoints_load_in_stock_mlx_lm(result: DemoResult, kept: Path) -> None:
    assert sorted(path.name for path in kept.iterdir()) == sorted(NAMES[1:])
    assert [path.name for path in kept.parent.iterdir()] == ["kept"]
    model, tokenizer = mlx_lm.load(str(kept / result.answer.model))
    assert any(name.endswith(".scales") for name, _ in tree_flatten(model.parameters()))
    assert tokenizer.has_chat_template


def test_answer_was_generated(result: DemoResult) -> None:
    assert result.answer.model in NAMES
    assert result.answer.right == (
        f"<function={result.answer.expected['name']}>" in result.answer.text
        and all(
            f"\n{v}\n" in result.answer.text for v in result.answer.expected["arguments"].values()
        )
    )


def test_progress_counts_to_the_end(result: DemoResult, steps: list[tuple[int, int, str]]) -> None:
    assert result.rows
    totals = {total for _, total, _ in steps}
    assert [done for done, _, _ in steps] == list(range(*totals))


def test_existing_or_unreachable_target_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(MixbitError, match="exists already"):
        demo.run(tmp_path)
    with pytest.raises(MixbitError, match="does not exist"):
        demo.run(tmp_path / "none" / "kept")
    assert list(tmp_path.iterdir()) == []


def test_command_prints_the_table_and_its_json(
    result: DemoResult, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "run", lambda *_, **__: result)
    assert main(["demo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:6]] == NAMES
    assert max(map(len, lines[:11])) <= 80
    for row, line in zip(result.rows, lines[1:6], strict=True):
        assert f"{row.tool_calls_right}/3" in line.split()
        assert f"{row.kld_mean:.5f}" in line.split()
    assert main(["demo", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": "mixbit.demo/1",
        **plain(asdict(result)),
    }


def plain(value: Any) -> Any:
    """Tuples as JSON has them."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [(signal.SIGINT, 130, "mixbit: interrupted\n"), (signal.SIGTERM, 143, "")],
)
def test_interrupted_demo_leaves_nothing(
    sent: signal.Signals, status: int, said: str, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "mixbit", "demo", "--mlx-path", str(tmp_path / "kept")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        # The last checkpoint is written: quantising is over and measuring about to begin.
        while not list(tmp_path.glob(f".mixbit-demo-*/checkpoints/{NAMES[-1]}")):
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(0.5)
        process.send_signal(sent)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (status, "", said)
    assert list(tmp_path.iterdir()) == []


def test_background_work_gives_its_result_or_error() -> None:
    with in_background(lambda _: 5) as wait:
        assert wait() == 5
    with in_background(lambda _: 1 // 0) as wait, pytest.raises(ZeroDivisionError):
        wait()


def test_background_work_ends_with_its_block() -> None:
    ended: list[bool] = []

    def work(progress: Any) -> None:
        try:
            while True:
                progress(0, 1)
                time.sleep(0.001)
        except CancelledError:
            ended.append(True)
            raise

    with pytest.raises(KeyboardInterrupt), in_background(work):
        raise KeyboardInterrupt
    assert ended == [True]
