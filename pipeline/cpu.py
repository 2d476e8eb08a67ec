"""What this machine's CPUs can do, as far as the operating system says."""

import re
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


@cache
def instructions() -> frozenset[str]:
    """Names of instruction sets as Linux spells them: `avx2`, `avx512f`; `asimd` on ARM. Elsewhere none is known."""
    try:
        said = CPUINFO.read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    lines = re.findall(r"^(?:flags|Features)\s*:(.*)$", said, re.MULTILINE)
    return frozenset.intersection(*(frozenset(line.split()) for line in lines)) if lines else frozenset()
