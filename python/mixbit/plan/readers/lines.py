"""Lists of ``PATTERN=VALUE``: llama.cpp's ``--tensor-type-file`` and mlx-lm's overrides.

A llama.cpp pattern is searched in GGUF tensor names and its value is a tensor type; an mlx-lm
pattern is searched in module paths and its value is bits, a mode or a floating-point type. In both
the first match decides. Which of the two a list is, its values say.
"""

import re
from collections.abc import Iterable
from typing import Any

from mixbit.checkpoint import ModelStructure
from mixbit.errors import MixbitError
from mixbit.plan import ggml
from mixbit.plan.entries import Entries
from mixbit.plan.model import Plan
from mixbit.plan.names import fixed_gguf_names
from mixbit.plan.patterns import compiled
from mixbit.plan.readers.request import Request
from mixbit.plan.spec import QuantSpec, default_spec

_FLOAT_DTYPES = ("float16", "bfloat16", "float32")
_GGUF_WORDS = re.compile(r"blk|token_embd|output|ffn_|attn_|ssm_")
_BITS = re.compile(r"(\d{1,3})(?:/(\d{1,4}))?", re.ASCII)

Rule = tuple[str, QuantSpec | None]
"""A pattern and what it gives."""


def accepts(request: Request) -> bool:
    """Whether every line, or every word, is ``PATTERN=VALUE``."""
    lines = _lines(request.text)
    return request.json is None and bool(lines) and all(_splits(line) for line in lines)


def read(request: Request) -> Plan:
    """Read a list of either kind, for a model that must be given.

    Modules that no pattern matches are left as they are.
    """
    structure = request.model()
    lines = _lines(request.text)
    if is_tensor_types(lines):
        return tensor_type_plan(" ".join(lines).split(), structure, request)
    modules, matched = apply_overrides(lines, structure, {}, str(request.path))
    unmatched = len(structure.modules) - matched
    provenance: dict[str, Any] = {"format": "overrides"}
    if unmatched:
        provenance["notes"] = [_unmatched(unmatched)]
    whole = {shape.path: modules.get(shape.path) for shape in structure.modules}
    return Plan(whole, str(request.path), provenance, structure)


def is_tensor_types(lines: Iterable[str]) -> bool:
    """Whether a list is llama.cpp's; some values mean the same in both, then the patterns tell."""
    pairs = [pair for line in lines for word in line.split() if (pair := _splits(word))]
    only_ggml = any(ggml.is_type(value) and not _is_override(value) for _, value in pairs)
    only_mlx = any(_is_override(value) and not ggml.is_type(value) for _, value in pairs)
    if only_ggml != only_mlx:
        return only_ggml
    return any(_GGUF_WORDS.search(pattern) for pattern, _ in pairs)


def tensor_type_plan(words: Iterable[str], structure: ModelStructure, request: Request) -> Plan:
    """The plan of ``PATTERN=TYPE`` words as ``llama-quantize`` takes them.

    Raises:
        MixbitError: a word is malformed, or its pattern matches no tensor of the model.
    """
    rules: list[Rule] = []
    types: set[str] = set()
    for word in words:
        # llama.cpp splits at the first sign and turns the pattern, not the type, to lower case.
        pattern, sign, type_name = word.partition("=")
        if not sign:
            raise MixbitError(f"{request.path}: {word!r} is not PATTERN=TYPE.")
        rules.append((pattern.lower(), ggml.spec_of(type_name, request.path)))
        types.add(type_name)
    search = _Searcher(rules, str(request.path))
    entries = request.entries(structure)
    unmatched = 0
    for path in entries.table.paths:
        names = entries.table.gguf_names(path)
        hits = {name: search(name) for name in names}
        unmatched += not any(hits.values())
        for name, hit in hits.items():
            entries.add(name, hit[1] if hit else None)
    for name in fixed_gguf_names(entries.table):
        search(name)
    search.refuse_unused(exempt="nextn")
    notes = [*ggml.inexact(types), *([_unmatched(unmatched)] if unmatched else [])]
    provenance = {"format": "tensor-types"} | ({"notes": notes} if notes else {})
    return Plan(_fitting(entries, structure), str(request.path), provenance, structure)


def apply_overrides(
    overrides: Iterable[str],
    structure: ModelStructure,
    base: dict[str, QuantSpec | None],
    origin: str,
) -> tuple[dict[str, QuantSpec | None], int]:
    """Lay ``PATTERN=VALUE`` overrides over a plan's modules.

    ``VALUE`` is bits (groups of 64), ``BITS/GROUP``, a mode (``mxfp4``, …) or a floating-point
    type, which stands for not quantised. A pattern is searched in the module path; the first one
    that is found decides.

    Returns:
        The modules, and how many of them a pattern matched.

    Raises:
        MixbitError: an override is malformed, or matches no module of the model.
    """
    rules = [_override(text, origin) for text in overrides]
    search = _Searcher(rules, origin)
    modules = dict(base)
    matched = 0
    for shape in structure.modules:
        hit = search(shape.path)
        if hit is not None:
            modules[shape.path] = hit[1]
            matched += 1
    search.refuse_unused()
    return modules, matched


class _Searcher:
    """Finds the first rule whose pattern occurs in a name, and remembers which ever did."""

    def __init__(self, rules: Iterable[Rule], origin: str) -> None:
        self._rules = [(compiled(pattern, origin), spec) for pattern, spec in rules]
        self._used: set[int] = set()
        self._origin = origin

    def __call__(self, name: str) -> tuple[str, QuantSpec | None] | None:
        first: tuple[str, QuantSpec | None] | None = None
        for index, (pattern, spec) in enumerate(self._rules):
            if pattern.search(name):
                self._used.add(index)
                first = first or (pattern.pattern, spec)
        return first

    def refuse_unused(self, exempt: str | None = None) -> None:
        for index, (pattern, _) in enumerate(self._rules):
            if index not in self._used and (exempt is None or exempt not in pattern.pattern):
                raise MixbitError(
                    f"{self._origin}: the pattern {pattern.pattern!r} matches nothing in this "
                    "model."
                )


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _splits(word: str) -> tuple[str, str] | None:
    pattern, sign, value = word.rpartition("=")
    known = ggml.is_type(value) or _is_override(value)
    return (pattern, value) if sign and pattern and known else None


def _is_override(value: str) -> bool:
    return bool(_BITS.fullmatch(value) or value in _FLOAT_DTYPES or default_spec(value))


def _override(text: str, origin: str) -> Rule:
    pattern, sign, value = text.rpartition("=")
    bits = _BITS.fullmatch(value)
    if not sign or not pattern or not _is_override(value):
        raise MixbitError(
            f"{origin}: {text!r} is not PATTERN=VALUE with bits, bits/group, a mode or one of "
            f"{', '.join(_FLOAT_DTYPES)} as its value."
        )
    if value in _FLOAT_DTYPES:
        return pattern, None
    if bits is None:
        return pattern, default_spec(value)
    return pattern, QuantSpec(int(bits[1]), int(bits[2] or 64))


def _fitting(entries: Entries, structure: ModelStructure) -> dict[str, QuantSpec | None]:
    """The modules, those that no group divides left as they are; llama.cpp falls back as well."""
    modules = entries.settled()
    widths = {shape.path: shape.in_dims for shape in structure.modules}
    return {
        path: None if spec is None or widths[path] % spec.group_size else spec
        for path, spec in modules.items()
    }


def _unmatched(count: int) -> str:
    return f"{count} modules that no pattern matches are left as they are"
