"""The command line as a whole: usage, exit codes, output channels."""

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mixbit.kld
from mixbit.cli import main
from mixbit.cli.output import Output, finite, named_progress_bar, plain_table, progress_bar
from mixbit.errors import MixbitError

COMMANDS = ("demo", "plan", "calibrate", "quantize", "generate", "kld", "bench")


def mixbit_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mixbit", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def usage_status(*arguments: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


def test_module_runs_and_help_names_every_command() -> None:
    done = mixbit_command("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert re.search(rf"\n    {command}\s", done.stdout)
    assert done.stderr == ""


def test_help_and_usage_errors_import_nothing_slow() -> None:
    program = (
        "import sys\n"
        "from mixbit.cli import main\n"
        "try:\n    main(['quantize'])\nexcept SystemExit as leaving:\n    status = leaving.code\n"
        "slow = {'mlx', 'mlx_lm', 'numpy', 'transformers', 'rich'} & set(sys.modules)\n"
        "assert not slow, slow\n"
        "sys.exit(status)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 2, done.stderr.decode()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert usage_status(command, "--help") == 0
    assert capsys.readouterr().out.startswith(f"usage: mixbit {command}")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("plan",),
        ("kld", "measure", "candidate"),
        ("quantize", "--model", "m", "--mlx-path", "o"),
        ("quantize", "--model", "m", "--mlx-path", "o", "--plan", "p", "--recipe", "uniform"),
        ("bench", "--model", "m", "--num-trials", "many"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert usage_status(*arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "error:" in shown.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--recipe", "uniform"), "--recipe needs --q-bits"),
        (("--plan", "plan.json", "--q-bits", "4"), "--q-bits goes with --recipe"),
    ],
)
def test_plan_options_that_do_not_go_together(
    options: tuple[str, ...], said: str, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = usage_status("quantize", "--model", str(tiny_folder), "--mlx-path", "out", *options)
    assert status == 2
    assert said in capsys.readouterr().err


@pytest.fixture
def broken_measure(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseException]]:
    """A measurement that prints, then raises what the list holds."""
    raised: list[BaseException] = []

    def measure(*_: Any, **__: Any) -> None:
        print("a library talks")
        raise raised[0]

    monkeypatch.setattr(mixbit.kld, "measure", measure)
    yield raised


MEASURE = ("kld", "measure", "a", "--reference", "b", "--data", "c")


def test_failure_is_one_sentence_and_exit_1(
    broken_measure: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    broken_measure.append(MixbitError("The file x is missing; fetch it."))
    assert main([*MEASURE, "--json", "-"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""  # what the library printed went to stderr
    assert shown.err == "a library talks\nmixbit: The file x is missing; fetch it.\n"


def test_warnings_are_one_line_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*_: Any, **__: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("the config says 4 bits, the tensors 6", UserWarning, stacklevel=1)
        raise MixbitError("Enough.")

    monkeypatch.setattr(mixbit.kld, "measure", measure)
    assert main(MEASURE) == 1
    assert capsys.readouterr().err == (
        "mixbit: warning: the config says 4 bits, the tensors 6\nmixbit: Enough.\n"
    )


def test_interrupt_is_one_line_and_exit_130(
    broken_measure: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    broken_measure.append(KeyboardInterrupt())
    assert main(MEASURE) == 130
    assert capsys.readouterr().err == "mixbit: interrupted\n"


def test_defects_are_not_hidden(broken_measure: list[BaseException]) -> None:
    broken_measure.append(ZeroDivisionError("a bug of ours"))
    with pytest.raises(ZeroDivisionError):
        main(MEASURE)


def test_reader_that_leaves_early_causes_no_traceback(tiny_folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "mixbit", "plan", "show", "uniform-4", "--model", str(tiny_folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read().decode()
        assert process.wait() == 1
    assert errors == ""


def test_json_target_is_checked_before_the_work(
    broken_measure: list[BaseException], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_measure.append(AssertionError("the work has begun"))
    assert main([*MEASURE, "--json", str(tmp_path)]) == 1
    assert main([*MEASURE, "--json", str(tmp_path / "none" / "x.json")]) == 1
    assert "--json" in capsys.readouterr().err


def test_json_file_comes_beside_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.json"
    target.write_text("old", encoding="utf-8")
    output = Output(str(target))
    output.show("for people")
    output.write({"value": 1.5, "bad": [float("nan"), {"x": float("-inf")}]})
    assert capsys.readouterr().out == "for people\n"
    assert json.loads(target.read_text(encoding="utf-8")) == {
        "value": 1.5,
        "bad": [None, {"x": None}],
    }
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_json_on_stdout_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output("-")
    with output.captured():
        print("noise")
    output.show("for people")
    output.write({"value": 1})
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"value": 1}
    assert shown.err == "noise\n"


def test_finite_keeps_everything_else() -> None:
    value = {"a": (1, 2.5, True, None, "x"), "b": float("inf")}
    assert finite(value) == {"a": [1, 2.5, True, None, "x"], "b": None}


def test_table_in_a_pipe_is_plain_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    wide = "x" * 90
    Output(None).show(plain_table(("name", "value"), [(wide, "1"), ("b", "[red]22[/red]")]))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith(wide)
    assert all("\x1b" not in line and line == line.rstrip() for line in lines)


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("tokens") as advance, named_progress_bar() as step:
        advance(1, 2)
        step(1, 2, "layer 0")
    assert capsys.readouterr() == ("", "")
