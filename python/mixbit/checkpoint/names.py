"""Names of tensors that belong to a published model but not to its text model."""

_SIDE_PARTS = {"visual": "vision", "vision_tower": "vision", "mtp": "mtp"}


def side_part(name: str) -> str | None:
    """Which side part a tensor or module belongs to: ``"vision"``, ``"mtp"``, or None for neither.

    The rule looks at whole dotted components, so every spelling of the prefix is met
    (``model.visual.…``, ``vision_tower.…``, ``language_model.mtp.…``).
    """
    return next((_SIDE_PARTS[part] for part in name.split(".") if part in _SIDE_PARTS), None)
