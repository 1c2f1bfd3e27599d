"""AutoRound's ``extra_config``: a base, and values for single modules by name or by pattern."""

import re
from collections.abc import Mapping
from typing import Any

from mixbit.errors import MixbitError
from mixbit.plan.model import Plan
from mixbit.plan.patterns import compiled
from mixbit.plan.readers.gptq import dynamic_rules
from mixbit.plan.readers.hf import (
    Hit,
    Rules,
    base_spec,
    block_of,
    finished,
    gather,
    has_method,
    in_layers,
    number,
)
from mixbit.plan.readers.request import Request
from mixbit.plan.spec import QuantSpec

_REGEX_SIGNS = re.compile(r"[\\*+?^$()\[\]|{}]")


def accepts(request: Request) -> bool:
    """Whether the config says that AutoRound made it."""
    return has_method(request, "auto-round", "auto_round", "intel/auto-round")


def read(request: Request) -> Plan:
    """Read the base, ``extra_config``, and GPTQ's ``dynamic`` where there is one."""
    structure = request.model(request.document)
    block = block_of(request)
    base = base_spec(block, request.path)
    extra = block.get("extra_config") or {}
    if not isinstance(extra, dict):
        raise MixbitError(f"{request.path}: extra_config must be an object.")
    patterns = dynamic_rules(block, base, request.path)
    entries = request.entries(structure)
    for key, change in extra.items():
        hit = Hit(_changed(change, base, key, request.path))
        if _REGEX_SIGNS.search(key):
            patterns.append((compiled(key, request.path), hit))
        else:
            entries.add(key, hit.spec)
    named, rules = entries.named(base), Rules(patterns)
    gather(entries, lambda name: None if _known(entries.table.find(name), named) else rules(name))
    return finished(
        request,
        structure,
        entries,
        base,
        in_layers,
        format_name="auto-round",
        notes=rules.notes(),
    )


def _known(meaning: Any, named: Mapping[str, object]) -> bool:
    return meaning is not None and any(path in named for path in meaning.paths)


def _changed(change: object, base: QuantSpec, key: str, origin: object) -> QuantSpec | None:
    if not isinstance(change, dict):
        raise MixbitError(f"{origin}: extra_config gives {key} no object.")
    bits = number(change, "bits", origin, base.bits)
    if bits >= 16:
        return None
    return QuantSpec(bits, number(change, "group_size", origin, base.group_size))
