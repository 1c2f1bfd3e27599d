"""Instruction mix: how often each basic block ran, times what stands in it.

What the shim does within one GPU operation (namespace runner) is not counted; the call is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from .ir import Block, Module

Mix = dict[str, int]

_SIMPLE = {
    "fneg": "fneg", "fadd": "fadd", "fsub": "fadd", "fmul": "fmul", "fdiv": "fdiv", "frem": "fdiv",
    "fcmp": "fcmp", "add": "iadd", "sub": "iadd", "mul": "imul", "sdiv": "idiv", "udiv": "idiv",
    "srem": "idiv", "urem": "idiv", "shl": "shift", "lshr": "shift", "ashr": "shift",
    "and": "logic", "or": "logic", "xor": "logic", "icmp": "icmp", "select": "select",
    "fpext": "fcvt", "fptrunc": "fcvt", "sitofp": "itof", "uitofp": "itof", "fptosi": "ftoi",
    "fptoui": "ftoi", "br": "branch", "switch": "branch",
}  # fmt: skip
_FLOAT_CLASSES = {"fneg", "fadd", "fmul", "fdiv", "fcmp", "fma"}
_INTEGER_CLASSES = {"iadd", "imul", "idiv", "icmp", "shift", "logic"}
_INTRINSICS = [
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"llvm\.(fmuladd|fma)\.", "fma"),
        (r"llvm\.fsh[lr]", "shift"),
        (r"llvm\.[su](min|max)", "icmp"),
        (r"llvm\.(minnum|maxnum|minimum|maximum)", "fcmp"),
        (r"llvm\.(fabs|copysign|floor|ceil|trunc|rint|round|roundeven|nearbyint)\.", "fround"),
        (r"llvm\.(sqrt|exp2?|exp10|log2?|log10|sin|cos|tan|powi?)\.[fv]", "special"),
        (r"llvm\.(ctpop|ctlz|cttz|bswap|bitreverse)", "bits"),
        (r"llvm\.abs", "iadd"),
    )
]
# Functions of the shim that stand for one operation, by a part of their mangled names.
_OPERATIONS = [
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"runner_mma", "simd.mma"),
        (r"runner_shuffle", "simd.shuffle"),
        (r"runner_reduce", "simd.reduce"),
        (r"runner_scan", "simd.scan"),
        (r"runner_ballot", "simd.ballot"),
        (r"runner_barrier", "barrier"),
        (r"6runner(15bfloat_to_float|15float_to_bfloat)", "fcvt"),
        (r"6runner(5rsqrt|5sinpi|5cospi|5tanpi)", "special"),
        (r"6runner(4sign|8saturate)", "fcmp.float"),
        (r"6runner5fract", "fround"),
        (r"6runner6divide", "fdiv.float"),
        (r"^(exp|log|sin|cos|tan|pow|a?sinh?|a?cosh?|atan|tanh|fmod)\w*f$", "special"),
    )
]
_OF_SHIM = re.compile(r"_Z+N?K?6runner")
_FREE = re.compile(r"^(llvm\.|__tsan_|runner_threadgroup_variable|runner_lane)")
_OPCODE = re.compile(r'\s+(?:%[\w.$"-]+ = )?(?:tail |musttail |notail )?(\w+)')
_TYPE = re.compile(r"(?:<(\d+) x )?\b(i1|i8|i16|i32|i64|i128|half|bfloat|float|double|ptr)\b")
_CALLED = re.compile(r'@("[^"]+"|[\w.$]+)\(')
_CONTRACTED = re.compile(r'\s+(%[\w.$"-]+) = f(mul|add|sub) .*?\bcontract\b')
_REGISTER = re.compile(r'%[\w.$"-]+')


def instrument(text: str) -> tuple[str, list[Mix]]:
    """IR that counts its blocks in ``runner_counts``, and what each of those blocks holds."""
    module = Module(text)
    functions = list(module.functions())
    own = {f.name for f in functions}
    blocks: list[Block] = []
    mixes: list[Mix] = []
    for function in functions:
        if _OF_SHIM.match(function.name):
            continue
        fused = _fused(module.lines, function.first, function.end)
        for block in module.blocks(function):
            blocks.append(block)
            mixes.append(_mix(module.lines, block, fused, own))
    count = max(len(blocks), 1)

    def code(i: int) -> list[str]:
        place = f"getelementptr inbounds ([{count} x i64], ptr @runner_counts, i64 0, i64 {i})"
        return [
            f"  %runner.count.{i} = load i64, ptr {place}, align 8",
            f"  %runner.next.{i} = add i64 %runner.count.{i}, 1",
            f"  store i64 %runner.next.{i}, ptr {place}, align 8",
        ]

    table = f"@runner_counts = dso_local global [{count} x i64] zeroinitializer, align 8"
    return module.with_code(blocks, code, table), mixes


def total(counts: Iterable[int], mixes: Sequence[Mix]) -> Mix:
    """Executed instructions by class."""
    result: Counter[str] = Counter()
    for count, mix in zip(counts, mixes, strict=False):
        for kind, n in mix.items():
            result[kind] += n * count
    return {kind: n for kind, n in sorted(result.items()) if n}


def _mix(lines: Sequence[str], block: Block, fused: dict[int, bool], own: set[str]) -> Mix:
    result: Counter[str] = Counter()
    for i in range(block.first, block.end):
        kind, n = _classify(lines[i], own)
        if i in fused:
            kind = kind.replace("fadd", "fma") if fused[i] else ""
        if kind:
            result[kind] += n
    return dict(result)


def _fused(lines: Sequence[str], first: int, end: int) -> dict[int, bool]:
    """Products that only one sum of their block takes (False), and those sums (True): FMAs."""
    products: dict[str, int] = {}
    sums: set[int] = set()
    uses: Counter[str] = Counter()
    used_at: dict[str, int] = {}
    for i in range(first, end):
        match = _CONTRACTED.match(lines[i])
        if match and match.group(2) == "mul":
            products[match.group(1)] = i
        elif match:
            sums.add(i)
        for register in _REGISTER.findall(lines[i].split(" = ", 1)[-1]):
            uses[register] += 1
            used_at[register] = i
    result: dict[int, bool] = {}
    for register, i in products.items():
        at = used_at.get(register, -1)
        if uses[register] == 1 and at in sums and at not in result and _same_block(lines, i, at):
            result[i], result[at] = False, True
    return result


def _same_block(lines: Sequence[str], first: int, end: int) -> bool:
    return all(line.startswith(" ") for line in lines[first:end] if line)


def _classify(line: str, own: set[str]) -> tuple[str, int]:
    """Class of one instruction, and for how many elements; "" if a GPU spends nothing on it."""
    match = _OPCODE.match(line)
    if not match:
        return "", 0
    opcode = match.group(1)
    if opcode == "call":
        return _classify_call(line, own)
    kind = _SIMPLE.get(opcode, "")
    if not kind or (opcode == "br" and "i1 " not in line):
        return "", 0
    width, element = _operand_type(line[match.end() :])
    return _with_type(kind, element), width


def _operand_type(text: str) -> tuple[int, str]:
    match = _TYPE.search(text)
    return (int(match.group(1) or 1), match.group(2)) if match else (1, "")


def _with_type(kind: str, element: str) -> str:
    if kind in _FLOAT_CLASSES:
        return f"{kind}.{element}"
    return f"{kind}.64" if kind in _INTEGER_CLASSES and element == "i64" else kind


def _classify_call(line: str, own: set[str]) -> tuple[str, int]:
    match = _CALLED.search(line)
    if not match:
        return "call", 1
    name = match.group(1).strip('"')
    for pattern, kind in _INTRINSICS:
        if pattern.search(name):
            width, element = _operand_type(line[: match.start()])
            return (f"fma.{element}" if kind == "fma" else kind), width
    for pattern, kind in _OPERATIONS:
        if pattern.search(name):
            return kind, 1
    if _FREE.match(name) or name in own:
        return "", 0
    return "call", 1
