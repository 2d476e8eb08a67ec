"""Byte counts and times as people write them."""

import math
import re

from pipeline.errors import ConfigError

BYTES = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}  # fmt: skip
DECIMAL = ("KB", "MB", "GB", "TB")
SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
AMOUNT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([^\d\s.].*)?", re.IGNORECASE)


def parse_bytes(text: str | int, where: str, *, bare: int = 1) -> int:
    """'2GiB' → 2147483648. KB, MB, … are powers of ten; KiB, MiB, … powers of two.

    Args:
        bare: the least that a number without a unit may be: who types 5 for a file's size means no 5 bytes.

    Raises:
        ConfigError: not a positive number with one of these units; `where` names the key.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text))
    if not match or match[2].upper() not in BYTES:
        raise ConfigError(f"{where}={text!r} is not a size; write a number with a unit, such as 512MiB, 2GiB or 5GB")
    nbytes = int(float(match[1]) * BYTES[match[2].upper()])
    if nbytes < 1:
        raise ConfigError(f"{where}={text!r} is not a positive size")
    if not match[2] and nbytes < bare:
        raise ConfigError(f"{where}={text} would be {nbytes:,} bytes; write the unit, {where}={text}GB (or {text}B)")
    return nbytes


def parse_amount(text: str, unit: str, where: str) -> float:
    """A number as typed, in `unit`: bytes and seconds in any unit of theirs (`1.5MiB`, `2min`), what else has a unit in
    that alone; without one it is in `unit` already.

    Args:
        unit: `B`, `s`, or any other, such as `nats`; empty: a plain number.

    Raises:
        ConfigError: no finite number, or of another unit; `where` begins the error.
    """
    match = AMOUNT.fullmatch(text.strip())
    if match is None:
        if text.strip().lstrip("+-").lower() == "nan":
            raise ConfigError(f"{where}: {text!r} is no number: nothing is less, more or equal to it")
        example = {"B": "; write a number with a unit: 512MiB, 5GB", "s": ", nor one with a unit: 90s, 2min, 3h, 1d"}
        raise ConfigError(f"{where}: {text!r} is no number{example.get(unit, '')}")
    given = (match[2] or "").strip()
    sizes = {"B": BYTES.get(given.upper()), "s": SECONDS.get(given)}
    size = sizes.get(unit, 1 if given.lower() in ("", unit.lower()) else None)
    if size is None:
        allowed = {"B": "KB, MB, GB, KiB, MiB, GiB, …", "s": ", ".join(filter(None, SECONDS))}.get(unit, unit)
        raise ConfigError(f"{where}: {given!r} is no unit of it (allowed: {allowed or 'none'})")
    number = float(match[1]) * size
    if math.isinf(number):
        raise ConfigError(f"{where}: {match[1]} is more than a number can be, which is 1.8e308: all would be within it")
    return number


def show_bytes(nbytes: float) -> str:
    """1536 → '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def decimal(nbytes: float) -> str:
    """As sizes are typed: 320000000 → `320MB`."""
    size, unit = next(((s, u) for u, s in reversed(BYTES.items()) if u in DECIMAL and nbytes >= s), (1, "B"))
    return f"{nbytes / size:.3g}{unit}"


def show_seconds(seconds: float) -> str:
    """For people: `0.42 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 9.95:
        return f"{seconds:.2g} s" if seconds < 0.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def show_progress(what: str, done: float, total: float, unit: str, rate: float) -> str:
    """How far something is: `scoring a.txt: 2,048 of 8,160 tokens · 4,243/s · 1.4 s left`."""
    if unit == "B":
        parts = [f"{show_bytes(done)} of {show_bytes(total)}", f"{show_bytes(rate)}/s"]
    else:
        speed = f"{rate:,.0f}/s" if rate >= 10 else f"{1 / rate:.2g} s each" if 0 < rate < 0.95 else f"{rate:.2g}/s"
        parts = [f"{done:,.0f} of {total:,.0f} {unit}", speed]
    if rate > 0:
        parts.append(f"{show_seconds(max(0.0, total - done) / rate)} left")
    return f"{what}: {' · '.join(parts)}" if what else " · ".join(parts)
