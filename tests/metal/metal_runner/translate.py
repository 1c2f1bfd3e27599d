"""Metal Shading Language to what clang reads: C++ to run, or C++ for OpenCL to check spaces.

Only tokens are exchanged; lines stay where they are, so that messages name the .metal line.

=========================  =============================================================
in the source              becomes
=========================  =============================================================
kernel instantiations      entries of ``instances``, compiled by the generated entry points
function constants         ``static const`` values
threadgroup variables      references into the threadgroup's memory
address spaces             nothing (``constant``: ``const``), or OpenCL's when checking
attributes                 nothing
overloads that coincide    the first of them
=========================  =============================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .errors import SourceError
from .overloads import clashing_methods, coinciding
from .signature import ADDRESS_SPACES, Signature, read_parameters
from .tokens import Source

Constant = bool | int | float
Constants = Mapping[str, Constant]

_OPENCL_SPACES = {
    "device": "__attribute__((opencl_global_device))",
    "constant": "const __attribute__((opencl_global_host))",
    "threadgroup": "__local",
    "thread": "__private",
}
_AFTER_METHOD = {"{", ";", ":", "->", "=", "noexcept"}
_BEFORE_METHOD = {"constexpr", "explicit", "inline", "METAL_FUNC", ">", ";", "}", "{", ":"}
_VARIABLE_WORDS = {"const", "static", "threadgroup", "volatile"}


@dataclass
class Translation:
    """A translated source.

    ``kernels``: by function name; ``instances``: host name to the expression that calls it;
    ``constants``: names of the function constants; ``misplaced``: errors
    about threadgroup variables outside of kernels.
    """

    text: str = ""
    kernels: dict[str, Signature] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    constants: list[str] = field(default_factory=list)
    misplaced: list[str] = field(default_factory=list)

    def signature(self, host_name: str) -> Signature:
        """What the kernel of this host name takes."""
        return self.kernels[_function_of(self.instances[host_name])]


def translate(text: str, constants: Constants, *, check: bool) -> Translation:
    """Translate a preprocessed source, with values for its function constants.

    ``check`` keeps address spaces, in OpenCL's words. Raises SourceError.
    """
    source = Source(text)
    result = Translation()
    bodies = _kernels(source, result)
    _function_constants(source, result, constants, check)
    for first, last in source.attributes:
        source.replace(first, last + 1)
    _threadgroup_variables(source, result, bodies, check)
    after_methods, in_thread = _method_qualifiers(source)
    if check:
        repeated = clashing_methods(source, after_methods, in_thread)
    else:
        repeated = coinciding(source, after_methods)
    for declaration in repeated:
        source.replace(declaration.first, declaration.end)
    _address_spaces(source, after_methods, in_thread, check)
    result.text = source.result()
    for host_name, expression in result.instances.items():
        if _function_of(expression) not in result.kernels:
            raise SourceError(f"{host_name} instantiates {expression}, which is no kernel")
    unknown = ", ".join(c for c in constants if c not in result.constants)
    if unknown:
        raise SourceError(f"the source has no function constants {unknown}")
    return result


def _function_of(expression: str) -> str:
    return expression.split("<")[0].split("::")[-1].strip()


def _kernels(source: Source, result: Translation) -> list[tuple[int, int]]:
    """Take note of kernels, and take explicit instantiations out. Returns the kernels' bodies."""
    tokens = source.tokens
    bodies = []
    for i, token in enumerate(tokens):
        if token.text != "kernel" or token.kind != "name":
            continue
        after = i + 1
        while tokens[after].in_attribute:
            after += 1
        if tokens[after].text not in ("void", "decltype"):
            continue  # a variable of that name
        first = i
        if token.in_attribute:
            first = next(a for a, b in source.attributes if a <= i <= b)
        first = source.statement_start(first)
        if tokens[first].text == "template" and tokens[first + 1].text != "<":
            _instantiation(source, first, after, result)
            continue
        if not token.in_attribute:
            source.replace(i, i + 1)
        name = tokens[after + 1].text
        parameters = read_parameters(source, after + 2)
        result.kernels[name] = Signature(name, parameters)
        if tokens[first].text != "template":
            result.instances[name] = name
        body = source.statement_end(after, "{", ";")
        bodies.append((body, source.partner.get(body, body)))
    return bodies


def _instantiation(source: Source, first: int, after: int, result: Translation) -> None:
    """``template [[host_name("n")]] [[kernel]] decltype(f<..>) f<..>;`` or ``void f<..>(..);``."""
    tokens = source.tokens
    end = source.statement_end(after, ";")
    host_name = ""
    for opening, closing in source.attributes:
        if first <= opening < end and tokens[opening + 2].text == "host_name":
            strings = (t.text[1:-1] for t in tokens[opening:closing] if t.kind == "text")
            host_name = "".join(strings)
    name = source.partner[after + 1] + 1 if tokens[after].text == "decltype" else after + 1
    arguments = next((i for i in range(name, end) if tokens[i].is_sign("(")), end)
    expression = source.string(name, end if tokens[after].text == "decltype" else arguments)
    if not host_name:
        raise SourceError(f"{source.place(first)}: an instantiation without host_name")
    if "<" not in expression:
        raise SourceError(f"{source.place(first)}: {expression} is instantiated without arguments")
    result.instances[host_name] = expression
    source.replace(first, end + 1)


def _function_constants(
    source: Source, result: Translation, values: Constants, check: bool
) -> None:
    tokens = source.tokens
    given: set[str] = set()
    for opening, closing in source.attributes:
        if tokens[opening + 2].text != "function_constant":
            continue
        first = source.statement_start(opening)
        name = tokens[opening - 1].text
        words = source.words(first, opening - 1)
        kind = " ".join(w for w in words if w not in ("constant", "const", "static"))
        result.constants.append(name)
        value = values.get(name)
        if value is not None:
            given.add(name)
        literal = "" if value is None else str(value).lower() if isinstance(value, bool) else value
        space = "__global " if check else ""
        source.replace(first, closing + 1, f"static const {space}{kind} {name} = {kind}({literal})")
    for i, token in enumerate(tokens):
        if token.text == "is_function_constant_defined" and tokens[i + 1].is_sign("("):
            source.replace(i, i + 4, str(tokens[i + 2].text in given).lower())


def _threadgroup_variables(
    source: Source, result: Translation, bodies: list[tuple[int, int]], check: bool
) -> None:
    """``threadgroup T x[N];`` in a function; pointers to threadgroup memory are left alone."""
    number = 0
    for i, token in enumerate(source.tokens):
        opener = source.opener[i]
        if token.text != "threadgroup" or token.in_attribute or opener < 0:
            continue
        first = source.statement_start(i)
        in_block = source.tokens[opener].text == "{"
        if not in_block or not _VARIABLE_WORDS.issuperset(source.words(first, i + 1)):
            continue
        end = source.statement_end(i, ";")
        parts = list(source.split_commas(i + 1, end))
        name = _declared_name(source, *parts[0])
        if name is None:
            continue
        kind = source.string(i + 1, name)
        new = []
        for part, (start, stop) in enumerate(parts):
            at = name if part == 0 else start
            word, extents = source.tokens[at].text, source.string(at + 1, stop)
            number += 1
            if check:
                new.append(
                    f"typedef __local {kind} runner_{word} {extents};"
                    f" runner_{word}& {word} = runner::local_variable<runner_{word}>();"
                )
            else:
                new.append(
                    f"typedef {kind} runner_{word} {extents}; runner_{word}& {word} ="
                    f' runner::threadgroup_variable<runner_{word}>({number}, "{word}");'
                )
            if not any(a < i < b for a, b in bodies):
                result.misplaced.append(
                    f"{source.place(at)}: error: threadgroup variable {word} outside of a kernel"
                )
        source.replace(first, end + 1, " ".join(new))


def _declared_name(source: Source, first: int, end: int) -> int | None:
    """The token that names the variable, or None if the declaration is of something else."""
    angle, name = 0, None
    for i in range(first, end):
        token = source.tokens[i]
        if token.text in "<>":
            angle += 1 if token.text == "<" else -1
        elif angle:
            continue
        elif token.text == "[":
            break
        elif token.text in ("*", "&", "(", "=", "{"):
            return None
        elif token.kind == "name":
            name = i
    return None if name == first else name


def _method_qualifiers(source: Source) -> tuple[set[int], set[int]]:
    """Address spaces behind a parameter list, and those of them that say thread of a method."""
    tokens = source.tokens
    after_methods: set[int] = set()
    in_thread: set[int] = set()
    for i, token in enumerate(tokens):
        if token.text not in ADDRESS_SPACES or token.in_attribute or not i:
            continue
        before = i - 2 if tokens[i - 1].text == "const" else i - 1
        if not tokens[before].is_sign(")") or tokens[i + 1].text not in _AFTER_METHOD:
            continue
        after_methods.add(i)
        name = source.partner[before] - 1
        is_constructor = tokens[name].kind == "name" and tokens[name - 1].text in _BEFORE_METHOD
        if token.text == "thread" and not is_constructor:
            in_thread.add(i)
    return after_methods, in_thread


def _address_spaces(
    source: Source, after_methods: set[int], in_thread: set[int], check: bool
) -> None:
    for i, token in enumerate(source.tokens):
        if token.text not in ADDRESS_SPACES or token.in_attribute:
            continue
        if not check:
            new = "const" if token.text == "constant" and i not in after_methods else ""
        elif i in after_methods:
            new = "__private" if i in in_thread else ""
        elif token.text == "constant" and _declares_variable(source, i):
            new = "const __global"
        else:
            new = _OPENCL_SPACES[token.text]
        source.replace(i, i + 1, new)


def _declares_variable(source: Source, i: int) -> bool:
    """Whether ``constant`` at ``i`` declares a variable and not what a pointer points to."""
    angle = 0
    for token in source.tokens[i + 1 :]:
        if token.text in "<>":
            angle += 1 if token.text == "<" else -1
            if angle < 0:
                return False
        elif angle:
            continue
        elif token.text in ("*", "&", "("):
            return False
        elif token.text in ("=", ";", "[", "{"):
            return True
    return False
