"""Methods that a plan names: kept, shown, compared, and refused where they are none."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mixbit.checkpoint import describe
from mixbit.cli import main
from mixbit.errors import MixbitError
from mixbit.plan import FORMATS, Plan, QuantSpec, diff, method_fault, override, with_methods, write
from mixbit.quantization.methods import Choice
from models import config, save_raw

DENSE = describe(config("qwen3_5"))
LAYER = "language_model.model.layers.3"
Q, OUT, UP = f"{LAYER}.self_attn.q_proj", f"{LAYER}.self_attn.o_proj", f"{LAYER}.mlp.up_proj"
RULES = ("gptq+search", r"self_attn\.[qkv]_proj=awq", r"layers\.3\.=search")


def mixed() -> Plan:
    return with_methods(Plan.load("unsloth-2026-03@3", model=DENSE), RULES)


def test_the_first_pattern_counts_and_one_without_is_for_the_rest() -> None:
    plan = mixed()
    assert [plan.method_of(path) for path in (Q, UP, UP.replace(".3.", ".0."))] == [
        "awq", "search", "gptq+search",
    ]  # fmt: skip
    assert OUT not in plan.methods  # it stays dense
    assert plan.method == "gptq+search"
    again = with_methods(plan, ["q_proj=rtn"])
    assert again.methods == {**plan.methods, Q: "rtn"}
    assert again.method == "gptq+search"


def test_overrides_keep_methods_but_those_of_what_they_leave_dense() -> None:
    plan = override(mixed(), ["q_proj=bfloat16", "up_proj=6"])
    assert plan.methods == {path: m for path, m in mixed().methods.items() if path != Q}
    assert plan.modules[UP] == QuantSpec(6, 64)
    assert plan.method == "gptq+search"


@pytest.mark.parametrize("format_name", FORMATS)
def test_only_our_own_format_has_a_word_for_methods(tmp_path: Path, format_name: str) -> None:
    plan = override(mixed(), [r".=4/32"])
    notes = write(plan, tmp_path / "file", format_name)
    again = Plan.load(tmp_path / "file", model=DENSE)
    assert again.modules == plan.modules
    if format_name == "plan":
        assert (notes, again) == ([], plan)
        assert Plan.load(tmp_path / "file") == plan
    else:
        assert notes == [f"methods are left out: format {format_name} has no word for them"]
        assert (again.method, again.methods) == (None, {})
        assert b"awq" not in (tmp_path / "file").read_bytes()


def test_a_plan_without_methods_is_written_as_ever(tmp_path: Path) -> None:
    plan = Plan.load("uniform-4", model=DENSE)
    plan.save(tmp_path / "plan.json")
    document = json.loads((tmp_path / "plan.json").read_text())
    assert "method" not in document
    assert all(entry.keys() == {"bits", "group_size", "mode"}
               for entry in document["modules"].values())  # fmt: skip


def test_the_block_of_mlx_lm_has_no_methods() -> None:
    assert mixed().to_mlx_config() == Plan.load("unsloth-2026-03@3", model=DENSE).to_mlx_config()


def test_rows_of_the_report_have_methods_and_classes_are_split_by_them() -> None:
    report = mixed().report()
    rows = {row["path"]: row["method"] for row in report["modules"]}
    assert (rows[Q], rows[OUT], rows[UP]) == ("awq", None, "search")
    classes = [(row["method"], row["modules"]) for row in report["classes"]
               if row["class"] == "mlp.up_proj"]  # fmt: skip
    assert classes == [("gptq+search", 3), ("search", 1)]


def test_differences_are_those_of_modules_and_the_rest_is_told_once() -> None:
    recipe = Plan.load("unsloth-2026-03@3", model=DENSE)
    one, other = with_methods(recipe, ["rtn"]), with_methods(recipe, ["awq", "q_proj=awq"])
    result = diff(one, other)
    assert result["method"] == {"first": "rtn", "second": "awq"}
    assert [(row["path"], row["first"]["method"], row["second"]["method"], row["bytes"])
            for row in result["modules"]] == [(Q, "rtn", "awq", 0)]  # fmt: skip
    # What is named for all and for one alike makes no difference to that one.
    assert diff(with_methods(recipe, ["awq"]), other)["modules"] == []


@pytest.mark.parametrize("name", ["rtn", "awq+gptq+search", "gptq"])
def test_what_a_plan_may_name_can_be_done(name: str) -> None:
    assert method_fault(name) is None
    assert Choice.of(name).name == name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "best"}, r"Plan \S+ cannot be used: there is no method 'best'; join some of"),
        ({"method": "rtn+awq"}, "the methods rtn[+]awq do not go together; rtn stands alone"),
        ({"method": 5}, "there is no method 5"),
        ({"methods": {Q: "awq+"}}, rf"cannot be applied to {Q}: there is no method ''"),
        ({"methods": {Q: ["awq"]}}, rf"cannot be applied to {Q}: there is no method \['awq'\]"),
        ({"methods": {Q: "x", UP: "y"}}, r"q_proj \(and 1 more\): there is no method 'x'"),
        ({"methods": {OUT: "awq"}}, f"names a method for {OUT}, which it does not quantise"),
        ({"methods": {"layers.x": "awq"}}, "names a method for layers.x, which it does not"),
    ],
)
def test_unknown_methods_are_refused(tmp_path: Path, changes: Any, message: str) -> None:
    plan = replace(mixed(), **changes)
    with pytest.raises(MixbitError, match=message):
        plan.report()
    with pytest.raises(MixbitError, match=message):
        plan.save(tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("best", "method: 'best' is not METHOD or PATTERN=METHOD: there is no method 'best'"),
        ("q_proj=", "there is no method ''"),
        ("q_prj=awq", r"the pattern 'q_prj' matches nothing that plan unsloth-2026-03@3 quantises"),
        ("o_proj=awq", "the pattern 'o_proj' matches nothing"),
        ("q_(proj=awq", "is not a regular expression"),
    ],
)
def test_methods_that_cannot_be_named_are_told(text: str, message: str) -> None:
    with pytest.raises(MixbitError, match=message):
        with_methods(Plan.load("unsloth-2026-03@3", model=DENSE), [text])


# --- the commands -----------------------------------------------------------------------------


def test_make_show_diff_convert_and_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: object, status: int = 0) -> str:
        assert main(["plan", *map(str, arguments)]) == status
        out, err = capsys.readouterr()
        return err if status else out

    (tmp_path / "config.json").write_text(json.dumps(config("qwen3_5")))
    base = ("make", "--model", tmp_path / "config.json", "--recipe", "unsloth", "--q-bits", 3)
    plan, other = tmp_path / "plan.json", tmp_path / "other.json"
    methods = [option for rule in RULES for option in ("--method", rule)]
    assert "mlp.up_proj" in run(*base, *methods, "--out", plan)
    assert Plan.load(plan) == mixed()
    lines = [line.split() for line in run("show", plan).splitlines()]
    assert lines[0][-2:] == ["bpw", "method"]
    assert [line[-1] for line in lines if line[:1] == ["mlp.up_proj"]] == ["gptq+search", "search"]
    assert "method: search\n" in run(*base, "--method", "search", "--out", other)
    assert "\nmethod: search\n" in run("show", other)
    shown = run("diff", plan, other)
    assert "methods: gptq+search and search\n" in shown
    assert "affine 5/64 awq" in shown
    assert "note: methods are left out: format mlx has no" in run(
        "convert", plan, "--to", "mlx", "--out", tmp_path / "block.json"
    )
    document = json.loads(plan.read_text())
    document["modules"][Q]["method"] = "awk"
    plan.write_text(json.dumps(document))
    model = save_raw("qwen3_5", tmp_path / "model", dtype=mx.bfloat16)
    told = run("check", model, "--plan", plan, status=1)
    assert f"cannot be applied to {Q}: there is no method 'awk'" in told
    assert told.count("\n") == 1
