"""How large and how small a number may be that people set, in the same words wherever that is checked."""

DAY_S = 24 * 3600.0  # what a benchmark may be told to take at most


def outside(value: float, least: float, most: float) -> str | None:
    """What is allowed, where `value` is not; None: it is."""
    if not value >= least:
        return f"{least:,} or more is allowed"
    return None if value <= most else f"{most:,} or less is allowed"
