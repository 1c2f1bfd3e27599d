"""A second reading of a source with its address spaces kept: what Apple's compiler would refuse.

The same tokens are parsed as C++ for OpenCL, whose four spaces take the places of device,
constant, threadgroup and thread memory. C++ with plain ``address_space`` attributes cannot do it:
it has no locals, methods or copies of structs in a space. Nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .compiler import check_syntax
from .overloads import declarations
from .signature import ADDRESS_SPACES
from .tokens import Source
from .translate import Constants, translate

_TOLD = re.compile(r"error:|note: candidate|note: in inst")


def check_address_spaces(preprocessed: str, constants: Constants) -> list[str]:
    """Errors of a preprocessed source, as the compiler words them; empty if there are none."""
    done = translate(preprocessed, constants, check=True)
    calls = []
    for i, (name, expression) in enumerate(done.instances.items()):
        arguments = ", ".join(p.argument() for p in done.signature(name).parameters)
        calls.append(
            f"static void runner_entry_{i}(const runner::ThreadPosition* c,"
            f" __generic void* const* b, __generic void* const* t) {{ {expression}({arguments}); }}"
        )
    text = f'#include "metal_runner.h"\n{done.text}\n' + "\n".join(calls)
    told = [line for line in check_syntax(text) if _TOLD.search(line)]
    return [*told, *_without_space(Source(preprocessed)), *done.misplaced]


def _without_space(source: Source) -> Iterator[str]:
    """Pointers and references among parameters that name no address space."""
    for declaration in declarations(source):
        if not declaration.is_function or not declaration.is_definition:
            continue
        bracket = _parameter_list(source, declaration.first, declaration.head_end)
        if bracket is None:
            continue
        for first, end in source.split_commas(bracket + 1, source.partner[bracket]):
            words = source.words(first, end)
            if _is_indirect(words) and not set(words) & set(ADDRESS_SPACES):
                yield f"{source.place(first)}: error: no address space in '{' '.join(words)}'"


def _parameter_list(source: Source, first: int, end: int) -> int | None:
    """The last bracket at the depth of the declaration, which holds its parameters."""
    found, i = None, first
    while i < end:
        token = source.tokens[i]
        if token.is_sign("(") and i and source.tokens[i - 1].kind == "name":
            found = i
        i = source.partner[i] + 1 if token.kind == "sign" and token.text in "([{" else i + 1
    return found


def _is_indirect(words: list[str]) -> bool:
    depth = 0
    for word in words:
        if word == "=":
            return False
        depth += (word in ("<", "(", "[")) - (word in (">", ")", "]"))
        if depth == 0 and word in ("*", "&", "&&"):
            return True
    return False
