"""Paired comparison, tables, llama.cpp's numbers, the memory bound and the report."""

import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mixbit import kld
from mixbit.cli import main
from mixbit.errors import MixbitError
from mixbit.kld.compare import Candidate, compare
from mixbit.kld.documents import Document
from mixbit.kld.llama_cpp import compare_rows, llama_cpp_summary, store
from mixbit.kld.memory import fitted
from mixbit.kld.report import markdown, report_figures, write_report
from mixbit.kld.rows import score_rows
from mixbit.kld.scorer import Scorer
from mixbit.kld.sizes import Sizes
from mixbit.kld.stream import Protocol, Stream
from mixbit.kld.tables import by_context, by_document, by_kind, worst_tokens
from models import build, save_checkpoint
from test_kld_measure import perturbed


def result(kld_values: list[list[float]], kinds: list[str] | None = None) -> kld.KLDResult:
    """A result with the given divergences, a list a document; the top tokens always agree."""
    documents = [
        Document(list(range(len(values) + 1)), kinds[i] if kinds else "text")
        for i, values in enumerate(kld_values)
    ]
    flat = np.array([value for values in kld_values for value in values])
    top = np.tile(np.arange(5, dtype=np.int32), (len(flat), 1))
    return kld.KLDResult(
        flat, flat, np.ones(len(flat)), np.ones(len(flat)), top, top,
        Stream.of(documents, Protocol(window=None, score="all")), 9,
    )  # fmt: skip


def test_paired_interval_is_narrower_than_the_errors_of_both() -> None:
    # Documents differ a hundredfold in how hard they are, the candidates by a tenth.
    rng = np.random.default_rng(0)
    hardness = np.exp(rng.normal(0, 2, 40))
    one = [(h * rng.uniform(0.9, 1.1, 20)).tolist() for h in hardness]
    other = [[1.1 * value for value in values] for values in one]
    found = compare([Candidate("one", 10, result(one)), Candidate("other", 20, result(other))])
    (pair,) = found["pairs"]
    means = [row["mean"] for row in found["rows"]]
    assert pair["difference"] == pytest.approx(means[0] - means[1])
    assert pair["low"] < pair["difference"] < pair["high"] < 0
    assert pair["significant"]
    assert pair["high"] - pair["low"] < found["rows"][0]["se"]


def test_interval_has_the_width_of_the_standard_error() -> None:
    rng = np.random.default_rng(1)
    one = rng.normal(1, 1, (200, 3))
    zero = np.zeros((200, 3))
    found = compare(
        [Candidate("one", 1, result(one.tolist())), Candidate("zero", 1, result(zero.tolist()))]
    )
    (pair,) = found["pairs"]
    width = pair["high"] - pair["low"]
    assert width == pytest.approx(2 * 1.96 * found["rows"][0]["se"], rel=0.1)


def test_pareto_front() -> None:
    points = {"small": (1, 0.5), "good": (2, 0.1), "beaten": (3, 0.2), "twin": (2, 0.1)}
    found = compare(
        [Candidate(name, size, result([[mean], [mean]])) for name, (size, mean) in points.items()]
    )
    assert [row["pareto"] for row in found["rows"]] == [True, True, False, True]


def test_tokens_without_a_finite_kld_leave_the_comparison() -> None:
    one, other = [[1.0, 2.0], [3.0]], [[1.0, math.inf], [math.nan]]
    found = compare([Candidate("one", 1, result(one)), Candidate("other", 1, result(other))])
    assert found["common_tokens"] == 1
    assert found["pairs"][0]["difference"] == 0


def test_comparisons_that_cannot_be() -> None:
    one = Candidate("one", 1, result([[1.0, 2.0]]))
    with pytest.raises(MixbitError, match="two candidates"):
        compare([one])
    with pytest.raises(MixbitError, match="different tokens"):
        compare([one, Candidate("other", 1, result([[1.0]]))])
    bad = Candidate("bad", 1, result([[math.nan, math.nan]]))
    with pytest.raises(MixbitError, match="No token"):
        compare([one, bad])


def test_tables() -> None:
    found = result([[1.0, 2.0, 3.0], [math.inf, 5.0], [7.0]], ["chat", "code", "chat"])
    kinds = {row["name"]: (row["tokens"], row["mean"], row["nonfinite"]) for row in by_kind(found)}
    assert kinds == {"chat": (4, 13 / 4, 0), "code": (2, 5.0, 1)}
    assert [(row["name"], row["tokens"]) for row in by_context(found)] == [("1", 3), ("2 to 3", 3)]
    assert [row["mean"] for row in by_document(found)] == [2.0, 5.0, 7.0]


def test_worst_tokens_in_context() -> None:
    class Numbers:
        def decode(self, tokens: list[int]) -> str:
            return " ".join(map(str, tokens))

    found = result([[1.0, 9.0, 3.0], [math.nan, 5.0]])
    rows = worst_tokens(found, Numbers(), 3)
    assert [(row["document"], row["position"]) for row in rows] == [(1, 0), (0, 1), (1, 1)]
    assert rows[1]["context"] == "0 1"
    assert rows[1]["target"] == "2"
    assert rows[1]["reference"] == rows[1]["candidate"] == "0"
    assert rows[1]["p_reference"] == pytest.approx(math.exp(-1))


def loop(reference: list[float], candidate: list[float], target: int) -> dict[str, float]:
    """llama.cpp's arithmetic of one token, step by step in numpy's fp32 scalars."""
    f = np.float32
    x, y = [f(v) for v in reference], [f(v) for v in candidate]
    top = max(x)
    low = max(min(x), top - f(16))
    log_sum = f(math.log(sum(float(np.exp(v - top)) for v in x)))
    scale = (top - low) / f(65535)
    codes = [int(np.rint((f(1) / scale) * (v - low))) if v > low else 0 for v in x]
    base = [scale * f(c) + (low - top - log_sum) for c in codes]
    q_top = max(y)
    q_sum = q_top + f(math.log(sum(float(np.exp(v - q_top)) for v in y)))
    kld = 0.0
    for p, v in zip(base, y, strict=True):
        if p > -16:
            kld += float(np.exp(p) * (p - v + q_sum))
    return {"kld": kld, "reference": -float(base[target]), "candidate": float(q_sum - y[target])}


def test_llama_cpp_arithmetic() -> None:
    rng = np.random.default_rng(0)
    reference = rng.normal(0, 6, (5, 300)).astype(np.float32)
    candidate = reference + rng.normal(0, 0.5, (5, 300)).astype(np.float32)
    targets = rng.integers(300, size=5)
    found = compare_rows(reference, candidate, targets)
    for i in range(5):
        want = loop(reference[i].tolist(), candidate[i].tolist(), int(targets[i]))
        assert found.kld[i] == pytest.approx(want["kld"], abs=1e-6)
        assert found.nll_reference[i] == pytest.approx(want["reference"], abs=1e-5)
        assert found.nll_candidate[i] == pytest.approx(want["candidate"], abs=1e-5)
    exact = score_rows(reference, candidate, targets).kld
    np.testing.assert_allclose(found.kld, exact, atol=2e-3)
    assert np.abs(found.kld - exact).max() > 1e-7  # its storage shows


def test_llama_cpp_storage_clips_and_survives_equal_logits() -> None:
    stored = store(np.array([[0, -8, -40], [3, 3, 3]], dtype=np.float32))
    assert stored.codes.tolist() == [[65535, 32768, 0], [0, 0, 0]]
    assert stored.log_probabilities()[1] == pytest.approx(-math.log(3), abs=1e-6)


def test_llama_cpp_protocol_and_figures() -> None:
    model = build("qwen3_5")
    candidate = perturbed(model)
    data = [np.random.default_rng(1).integers(256, size=150).tolist()]
    found = kld.measure(candidate, model, data, window=64, llama_cpp=True)
    assert found.stream.at.tolist() == [*range(32, 63), *range(96, 127)]
    figures = llama_cpp_summary(found)
    assert figures["kld"] == pytest.approx(kld.measure(candidate, model, data, window=64)
                                           .kld[:62].mean(), abs=1e-4)  # fmt: skip
    spread = found.kld.std(ddof=1) / math.sqrt(62)
    assert figures["kld_error"] == pytest.approx(spread, rel=1e-6)
    assert figures["kld_min"] <= figures["kld_median"] <= figures["kld_max"]


def test_memory_bounds_the_batch() -> None:
    scorer = Scorer(build("qwen3_5"))
    data = [Document(list(range(200))) for _ in range(9)]
    stream = Stream.of(data, Protocol())
    with fitted(None, [scorer], stream, Sizes()) as sizes:
        assert sizes.batch == 8
    with fitted(100, [scorer], stream, Sizes()) as sizes:
        assert sizes.batch == 8
    with (
        pytest.raises(MixbitError, match="GB are too little") as refused,
        fitted(1e-6, [scorer], stream, Sizes()),
    ):
        pass
    least = float(str(refused.value).split("allow ")[1].split(" GB")[0])
    with fitted(least + 0.005, [scorer], stream, Sizes()) as sizes:
        assert 1 <= sizes.batch < 8
    data = [document.tokens for document in data]
    model = build("qwen3_5")
    bounded = kld.measure(model, model, data, memory=least + 0.02)
    assert abs(bounded.summary()["mean"]) < 1e-12


class Page(HTMLParser):
    """Outward links and the open tags of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.outward: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "iframe", "object", "img")
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not (value or "").startswith(
                ("#", "data:")
            ):
                self.outward.append(str(value))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reference, a quantised and a perturbed candidate, and data of two kinds."""
    root = tmp_path_factory.mktemp("models")
    model = build("qwen3_5", vocab_size=2048, dtype=mx.bfloat16)
    save_checkpoint(model, root / "reference")
    save_checkpoint(perturbed(model), root / "a$<b>")
    quantise = ["quantize", "--model", str(root / "reference"), "--mlx-path", str(root / "q4")]
    assert main([*quantise, "--recipe", "uniform", "--q-bits", "4"]) == 0
    lines = [{"text": "<b>one</b> two three four"}, {"text": "x = 1 + 2", "kind": "code"}]
    (root / "data.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return root


def test_commands_from_cache_to_report(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: object) -> Any:
        status = main([*map(str, arguments), "--json", "-"])
        shown = capsys.readouterr()
        assert status == 0, shown.err
        return json.loads(shown.out)

    cache, data = tmp_path / "cache", models / "data.jsonl"
    made = run("kld", "reference", models / "reference", "--data", data, "--out", cache)
    assert made["bytes"] == sum(f.stat().st_size for f in cache.iterdir() if f.suffix != ".json")
    one = run("kld", "measure", models / "q4", "--reference", cache, "--out", tmp_path / "q4")
    live = run(
        *("kld", "measure", models / "q4", "--reference", models / "reference", "--data", data)
    )
    assert one["mean"] == live["mean"] > 0
    both = run(
        *("kld", "compare", tmp_path / "q4", models / "a$<b>", "--reference", cache),
        *("--out", tmp_path / "both"),
    )
    assert [row["name"] for row in both["rows"]] == ["q4", "a$<b>"]
    assert both["rows"][0]["mean"] == one["mean"]
    assert both["rows"][0]["bytes"] < both["rows"][1]["bytes"]
    page = Page()
    text = (tmp_path / "both" / "report.html").read_text(encoding="utf-8")
    page.feed(text)
    assert page.outward == []
    assert "<b>one" in page.text  # data are shown, not obeyed
    assert "a$<b>" in page.text
    assert text.count("<svg") == 5  # four pictures and the plan of q4
    assert "#010203" not in text
    figures = json.loads((tmp_path / "both" / "report.json").read_text(encoding="utf-8"))
    assert figures["comparison"]["pairs"] == both["pairs"]
    assert {row["name"] for row in figures["candidates"][0]["by_kind"]} == {"text", "code"}
    assert "| q4 |" in (tmp_path / "both" / "report.md").read_text(encoding="utf-8")


def test_report_of_nothing_finite(tmp_path: Path) -> None:
    candidate = Candidate("broken|model", 5, result([[math.nan], [math.inf]]))
    write_report([candidate], tmp_path)
    assert "–" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert r"broken\|model" in markdown(report_figures([candidate]))


def test_commands_say_what_is_missing(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def failure(*arguments: object) -> str:
        assert main(list(map(str, arguments))) == 1
        return capsys.readouterr().err

    reference, candidate = models / "reference", models / "q4"
    assert "--data" in failure("kld", "measure", candidate, "--reference", reference)
    assert "--reference" in failure("kld", "compare", candidate, reference)
    data = models / "data.jsonl"
    cache = tmp_path / "cache"
    assert main(["kld", "reference", str(reference), "--data", str(data), "--out", str(cache)]) == 0
    capsys.readouterr()
    said = failure("kld", "measure", candidate, "--reference", cache, "--llama-cpp")
    assert "--llama-cpp" in said
    said = failure("kld", "measure", candidate, "--reference", cache, "--data", data)
    assert "holds the data" in said
    said = failure("kld", "measure", candidate, "--reference", cache, "--window", "64")
    assert "window 512 and score 'half'" in said


def test_head_that_changes_its_logits_is_refused() -> None:
    class Capped(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.language_model = model.language_model

        def __call__(self, tokens: mx.array) -> mx.array:
            return mx.tanh(self.language_model(tokens))

    with pytest.raises(MixbitError, match="changes its logits"):
        Scorer(Capped(build("qwen3_5")))
