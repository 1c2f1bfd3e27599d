"""Names of tensors: how the prefix is spelled, and which parts are not of the text model."""

# What may stand before ``layers.N``, longest first.
PREFIXES = ("language_model.model.", "model.language_model.", "language_model.", "model.")

_SIDE_PARTS = {"visual": "vision", "vision_tower": "vision", "mtp": "mtp"}


def side_part(name: str) -> str | None:
    """Which side part a tensor or module belongs to: ``"vision"``, ``"mtp"``, or None for neither.

    The rule looks at whole dotted components, so every spelling of the prefix is met
    (``model.visual.…``, ``vision_tower.…``, ``language_model.mtp.…``).
    """
    return next((_SIDE_PARTS[part] for part in name.split(".") if part in _SIDE_PARTS), None)


def stem_of(path: str) -> str:
    """A path without the prefix before ``layers.N``, ``embed_tokens`` or ``lm_head``."""
    prefix = next((prefix for prefix in PREFIXES if path.startswith(prefix)), "")
    return path.removeprefix(prefix)
