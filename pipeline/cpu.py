"""What this machine's CPUs are and can do, as far as the operating system says."""

import re
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


@cache
def instructions() -> frozenset[str]:
    """Names of instruction sets as Linux spells them: `avx2`, `avx512f`; `asimd` on ARM. Elsewhere none is known."""
    lines = _said("flags|Features")
    return frozenset.intersection(*(frozenset(line.split()) for line in lines)) if lines else frozenset()


@cache
def model() -> str:
    """What the machine's CPUs call themselves; empty where that is not known."""
    return next(iter(_said("model name|CPU part")), "")


@cache
def family() -> str:
    """Maker and family, which share caches and ports: `AuthenticAMD 26`, `0x41 0xd0c` on ARM; empty if not known."""
    maker = next(iter(_said("vendor_id|CPU implementer")), "")
    number = next(iter(_said("cpu family|CPU part")), "")
    return f"{maker} {number}".strip()


@cache
def numbers() -> str:
    """Family, model and stepping of an x86 CPU, `6/207/2`: hypervisors hide names, and leave these. Else empty."""
    found = [next(iter(_said(name)), "") for name in ("cpu family", "model", "stepping")]
    return "/".join(found) if all(found) else ""


def _said(name: str) -> list[str]:
    """What all CPUs say of `name`, a pattern."""
    try:
        said = CPUINFO.read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return [line.strip() for line in re.findall(rf"^(?:{name})\s*:(.*)$", said, re.MULTILINE)]
