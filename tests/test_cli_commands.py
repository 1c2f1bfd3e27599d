"""Each command on a real, tiny model."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm import cache_prompt
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache

from mixbit import integration
from mixbit.bench import throughput
from mixbit.cli import main
from models import build, save_checkpoint


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """The JSON that a command that succeeds prints with ``--json -``."""
    status = main([*arguments, "--json", "-"])
    shown = capsys.readouterr()
    assert status == 0, shown.err
    return json.loads(shown.out)


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence of a command that fails."""
    status = main(arguments)
    shown = capsys.readouterr()
    assert status == 1
    assert shown.out == ""
    line, rest = shown.err.split("\n", maxsplit=1)
    assert rest == ""
    assert line.startswith("mixbit: ")
    return line


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that takes the tiny model's tokens, bf16."""
    model = build("qwen3_5", vocab_size=2048, dtype=mx.bfloat16)
    return save_checkpoint(model, tmp_path_factory.mktemp("models") / "random")


@pytest.fixture(scope="module")
def quantised_folder(model_folder: Path) -> Path:
    """The same, uniformly at 4 bits, made by the command."""
    target = model_folder.parent / "uniform-4"
    arguments = ["quantize", "--model", str(model_folder), "--mlx-path", str(target)]
    assert main([*arguments, "--recipe", "uniform", "--q-bits", "4"]) == 0
    return target


def test_plan_make_and_show_agree(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    made = run_json(
        capsys,
        *("plan", "make", "--model", str(model_folder / "config.json")),
        *("--recipe", "unsloth-2026-03", "--q-bits", "3", "--out", str(plan)),
    )
    shown = run_json(capsys, "plan", "show", str(plan), "--model", str(model_folder))
    assert shown == made
    assert made["name"] == "unsloth-2026-03@3"
    bits = {row["path"]: row["bits"] for row in made["modules"]}
    assert bits["language_model.model.layers.0.linear_attn.out_proj"] is None
    assert bits["language_model.model.layers.0.mlp.gate_proj"] == 3


def test_plan_table_has_a_row_a_class_and_the_total(
    model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("plan", "show", "uniform-4", "--model", str(model_folder))
    report = run_json(capsys, *arguments)
    assert main(arguments) == 0
    lines = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert len(lines) == len(report["classes"]) + 2
    assert max(map(len, lines)) <= 80
    assert lines[-1].split() == [
        "total",
        str(len(report["modules"])),
        f"{report['params']:,}",
        f"{report['bytes']:,}",
        f"{report['bpw']:.3f}",
    ]


def test_plan_of_a_quantised_checkpoint(
    quantised_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run_json(capsys, "plan", "show", str(quantised_folder))
    assert {row["bits"] for row in report["modules"]} == {4}


def test_quantize_by_a_plan_file(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, target = tmp_path / "plan.json", tmp_path / "out"
    model = ("--model", str(model_folder))
    run_json(
        capsys,
        *("plan", "make", *model, "--recipe", "unsloth", "--q-bits", "4", "--out", str(plan)),
    )
    report = run_json(capsys, "quantize", *model, "--mlx-path", str(target), "--plan", str(plan))
    shown = run_json(capsys, "plan", "show", str(target))
    assert report["bpw"] == pytest.approx(shown["bpw"], rel=1e-3)
    assert report["out_dir"] == str(target)


def test_quantize_refuses_and_leaves_nothing(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out"
    base = ("quantize", "--mlx-path", str(target))
    good = ("--model", str(model_folder))
    assert "nope" in failure(capsys, *base, *good, "--recipe", "nope", "--q-bits", "4")
    assert "7" in failure(capsys, *base, *good, "--recipe", "uniform", "--q-bits", "7")
    missing = tmp_path / "none"
    said = failure(capsys, *base, "--model", str(missing), "--recipe", "uniform", "--q-bits", "4")
    assert str(missing) in said
    assert list(tmp_path.iterdir()) == []
    target.mkdir()
    said = failure(capsys, *base, *good, "--recipe", "uniform", "--q-bits", "4")
    assert str(target) in said
    assert list(target.iterdir()) == []


def test_generate_streams_what_the_json_holds(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (
        *("generate", "--model", str(tiny_folder), "--prompt", "What is the largest planet?"),
        *("--chat-template-config", '{"enable_thinking": false}', "--max-tokens", "24"),
    )
    result = run_json(capsys, *arguments)
    assert result["prompt"].endswith("<think>\n\n</think>\n\n")
    assert result["text"] == "Jupiter is the largest planet."
    assert result["finish_reason"] == "stop"
    assert main([*arguments, "--verbose", "False"]) == 0
    assert capsys.readouterr().out == "Jupiter is the largest planet.\n"
    assert main(arguments) == 0
    text, figures = capsys.readouterr().out.split("==========\n")[1:]
    assert text == "Jupiter is the largest planet.\n"
    assert figures.startswith(f"Prompt: {result['prompt_tokens']} tokens, ")


def test_generate_shows_tools_to_the_model(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = tmp_path / "tools.json"
    tool = {"type": "function", "function": {"name": "ring_bell", "parameters": {}}}
    tools.write_text(json.dumps([tool]), encoding="utf-8")
    result = run_json(
        capsys,
        *("generate", "--model", str(tiny_folder), "--prompt", "Ring!", "--max-tokens", "2"),
        *("--tools", str(tools), "--system-prompt", "Be brief."),
    )
    assert "ring_bell" in result["prompt"]
    assert "Be brief." in result["prompt"]
    assert result["generation_tokens"] == 2
    assert result["finish_reason"] == "length"


def test_generate_from_the_raw_prompt(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("generate", "--model", str(tiny_folder), "--prompt", "one", "--max-tokens", "1")
    assert run_json(capsys, *arguments, "--ignore-chat-template")["prompt"] == "one"


def test_generate_with_a_draft_model_says_the_same(
    tiny_folder: Path, quantised_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (
        *("generate", "--model", str(tiny_folder), "--prompt", "What is the largest planet?"),
        *("--chat-template-config", '{"enable_thinking": false}', "--draft-model"),
    )
    right = run_json(capsys, *arguments, str(tiny_folder))
    wrong = run_json(capsys, *arguments, str(quantised_folder), "--num-draft-tokens", "5")
    for result in (right, wrong):
        assert result["text"] == "Jupiter is the largest planet."
        assert result["finish_reason"] == "stop"
    assert right["tokens_from_draft"] > right["generation_tokens"] / 2
    assert wrong["tokens_from_draft"] == 0


def test_generate_refuses_a_draft_model_with_other_tokens(
    tiny_folder: Path,
    quantised_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    load = integration.load

    def loaded(folder: str, **options: Any) -> Any:
        model, tokenizer = load(folder, **options)
        other = SimpleNamespace(vocab_size=7)
        return model, other if folder == str(quantised_folder) else tokenizer

    monkeypatch.setattr(integration, "load", loaded)
    arguments = ("generate", "--model", str(tiny_folder), "--prompt", "x", "--draft-model")
    said = failure(capsys, *arguments, str(quantised_folder))
    assert f"The tokenizer of {quantised_folder} has 7 tokens, that of {tiny_folder} 2" in said


def test_generate_goes_on_from_a_prompt_cache(
    tiny_folder: Path,
    quantised_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = str(tmp_path / "prompt.safetensors")
    template = ("--chat-template-config", '{"enable_thinking": false}')
    made = ["cache_prompt", "--model", str(tiny_folder), "--prompt-cache-file", file]
    monkeypatch.setattr("sys.argv", [*made, "--prompt", "What is the "])
    cache_prompt.main()
    capsys.readouterr()
    arguments = ("generate", "--model", str(tiny_folder), "--prompt", "largest planet?", *template)
    result = run_json(capsys, *arguments, "--prompt-cache-file", file)
    assert result["prompt"].startswith("largest planet?<|im_end|>")
    assert result["text"] == "Jupiter is the largest planet."
    arguments = ("generate", "--model", str(quantised_folder), "--prompt", "x")
    said = failure(capsys, *arguments, "--prompt-cache-file", file)
    assert f"was made with --model {tiny_folder}, not {quantised_folder}" in said
    layers, metadata = load_prompt_cache(file, return_metadata=True)
    save_prompt_cache(file, layers[2:], metadata | {"model": str(quantised_folder)})
    said = failure(capsys, *arguments, "--prompt-cache-file", file)
    assert "it was made with another" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tools", "none.json"), "none.json"),
        (("--chat-template-config", "{"), "--chat-template-config is not valid JSON"),
        (("--chat-template-config", "[]"), "--chat-template-config must hold a JSON object"),
        (("--max-tokens", "0"), "--max-tokens"),
        (("--num-draft-tokens", "0"), "--num-draft-tokens must be at least 1"),
        (("--prompt-cache-file", "x", "--tools", "y"), "--tools cannot be given with"),
        (("--prompt-cache-file", "numbers.json"), "numbers.json cannot be read as a prompt cache"),
        (("--tools", "numbers.json"), "chat template refuses"),
        (("--ignore-chat-template", "--prompt", ""), "prompt is empty"),
    ],
)
def test_generate_with_options_that_cannot_be(
    options: tuple[str, ...],
    said: str,
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("numbers.json").write_text("[1, 2]", encoding="utf-8")
    message = failure(capsys, "generate", "--model", str(tiny_folder), "-p", "x", *options)
    assert said in message


def test_kld_measure(
    model_folder: Path,
    quantised_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "one two three"}\n{"text": "four five"}\n', encoding="utf-8")
    arguments = ("kld", "measure", str(quantised_folder), "--data", str(data), "--reference")
    capsys.readouterr()
    result = run_json(capsys, *arguments, str(model_folder))
    assert result["schema"] == "mixbit.kld/1"
    assert result["documents"] == 2
    assert 0 < result["mean"] < result["max"]
    assert main([*arguments, str(model_folder)]) == 0
    shown = capsys.readouterr().out
    assert f"{result['mean']:.6g}" in shown
    assert max(map(len, shown.splitlines())) <= 80
    missing = failure(capsys, *arguments, str(tmp_path / "none"))
    assert str(tmp_path / "none") in missing


def test_kld_refuses_another_tokenizer(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save_checkpoint(build("qwen3_5", vocab_size=2048), tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = tokenizer["model"]["vocab"]
    first, second = list(vocab)[300:302]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "one"}\n', encoding="utf-8")
    arguments = ("kld", "measure", str(model_folder), "--reference", str(other))
    assert "tokenizers" in failure(capsys, *arguments, "--data", str(data))


def test_bench_times_both_engines(
    quantised_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    arguments = ("bench", "--model", str(quantised_folder), "-p", "5", "-g", "3", "-n", "2")
    result = run_json(capsys, *arguments)
    assert result["trials"] == 2
    for engine in ("mixbit", "stock"):
        assert len(result[engine]["samples"]) == 2
        assert all(speed > 0 for sample in result[engine]["samples"] for speed in sample.values())
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "stock mlx-lm" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "generation_tokens" in failure(capsys, *arguments[:3], "-g", "1")


def test_bench_gives_stock_float32_and_not_mixbit(
    quantised_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dtypes = {}
    timed = throughput.alternate

    def seen(models: dict[str, nn.Module], *args: Any, **options: Any) -> Any:
        dtypes.update({name: model(mx.array([[1]])).dtype for name, model in models.items()})
        return timed(models, *args, **options)

    monkeypatch.setattr(throughput, "alternate", seen)
    capsys.readouterr()
    arguments = ("bench", "--model", str(quantised_folder), "-p", "4", "-g", "2", "-n", "1")
    assert run_json(capsys, *arguments, "--stock-float32")["stock_dtype"] == "float32"
    assert dtypes["stock"] == mx.float32
    assert dtypes["mixbit"] != mx.float32
    assert main((*arguments, "--stock-float32")) == 0
    assert "stock mlx-lm, float32" in capsys.readouterr().out
    assert run_json(capsys, *arguments)["stock_dtype"] is None
    assert dtypes["stock"] == dtypes["mixbit"]
