"""The calibration documents that the package ships."""

import ast
import gzip
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer

from mixbit.data import calibration_data, tiny_data, tiny_model
from mixbit.kld.documents import read_documents

MAKE = Path(__file__).parents[1] / "tools" / "calibration" / "make.py"
SPAN = 8
"""Words in a row that nothing may share with what quality is measured on."""


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    """The lines of the file."""
    return _records(calibration_data())


def _records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_it_loads_and_holds_what_its_page_says(records: list[dict[str, Any]]) -> None:
    documents = read_documents(calibration_data(), load_tokenizer(tiny_model()))
    assert len(documents) == len(records)
    told = (calibration_data().parent / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w ]+)` \| (\d+) \|", told, flags=re.MULTILINE)
    assert {kind: int(count) for kind, count in rows} == Counter(d.kind for d in documents)
    assert f"{len(documents)} documents" in told and "Licence: Apache-2.0" in told
    assert max(len(document.tokens) for document in documents) > 4000
    assert len(gzip.compress(calibration_data().read_bytes())) < 500_000


def test_it_is_made_again_byte_for_byte(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, MAKE, "--out", tmp_path], check=True, capture_output=True, timeout=60
    )
    assert (tmp_path / "documents.jsonl").read_bytes() == calibration_data().read_bytes()


def test_nothing_of_it_is_in_the_data_that_quality_is_measured_on(
    records: list[dict[str, Any]],
) -> None:
    spans = set(_spans(records))
    assert len(spans) > 20_000
    for name in ("kld_eval", "tool_eval"):
        assert not spans & set(_spans(_records(tiny_data(name))))


def _spans(records: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for record in records:
        for message in record["messages"]:
            words = re.findall(r"\w+", message["content"].lower())
            yield from (tuple(words[at : at + SPAN]) for at in range(len(words) - SPAN + 1))


def test_calls_fit_their_schemas(records: list[dict[str, Any]]) -> None:
    types = {"string": str, "integer": int, "number": int | float, "boolean": bool, "array": list}
    count = 0
    for record in records:
        tools = {tool["function"]["name"]: tool["function"] for tool in record.get("tools", ())}
        for message in record["messages"]:
            for call in message.get("tool_calls", ()):
                schema = tools[call["function"]["name"]]["parameters"]
                arguments = call["function"]["arguments"]
                assert set(schema["required"]) <= set(arguments)
                for name, value in arguments.items():
                    own = schema["properties"][name]
                    assert isinstance(value, types[own["type"]])
                    assert value in own.get("enum", [value])
                count += 1
    assert count > 100


def test_python_and_json_in_answers_are_well_formed(records: list[dict[str, Any]]) -> None:
    languages = Counter[str]()
    for record in records:
        text = record["messages"][-1]["content"]
        for language, code in re.findall(r"```(\w+)\n(.*?)\n```", text, flags=re.DOTALL):
            languages[language] += 1
            if language == "python":
                ast.parse(code)
            elif language == "json":
                json.loads(code)
    assert len(languages) > 16 and languages["python"] > 5 and languages["json"] > 2


def test_one_thing_is_no_plural(records: list[dict[str, Any]]) -> None:
    prose = [message["content"] for record in records for message in record["messages"]]
    assert not [
        found for text in prose for found in re.findall(r"(?<![\d.,:-] )\b1 [a-z]+s\b", text)
    ]
