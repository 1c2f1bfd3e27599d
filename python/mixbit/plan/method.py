"""Names of methods: how a weight's scales and codes are chosen once its bits are.

What they do is in :mod:`mixbit.quantization.methods`.
"""

METHODS = ("rtn", "search", "awq", "gptq")
"""Those that can be named; all but rtn also joined by ``+``."""


def method_fault(name: object) -> str | None:
    """Why there is no such method, or None where there is."""
    parts = name.split("+") if isinstance(name, str) else [name]
    unknown = [part for part in parts if part not in METHODS]
    if unknown:
        return f"there is no method {unknown[0]!r}; join some of {', '.join(METHODS)} by '+'"
    if len(set(parts)) < len(parts) or ("rtn" in parts and len(parts) > 1):
        return f"the methods {name} do not go together; rtn stands alone"
    return None
