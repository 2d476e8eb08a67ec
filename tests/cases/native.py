"""What tests of native kernels need of a machine, and the number formats that they go through."""

import itertools
import shutil

import pytest

from pipeline.tensors.scheme import ELEMENT_BITS, SCALE_DTYPES, Scheme
from plugins.kernels.native import compiler, library

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, compiler.COMPILERS)), reason="no C++ compiler")


def kinds() -> list[Scheme]:
    """Every element with every scale, zero point and second-level scale that it may have, in blocks of 32."""
    found = []
    for element, scale in itertools.product(ELEMENT_BITS, SCALE_DTYPES):
        if scale == "e8m0" and element.startswith("uint"):
            continue
        zeros = ("int", "min_f16") if element.startswith("uint") else (None,)
        seconds = {"e8m0": (None,), "dynamic8": ("dynamic8",)}.get(scale, (None, "f32", "inverse_f32"))
        found += [Scheme(element, 32, scale, zero=z, second=s) for z, s in itertools.product(zeros, seconds)]
    return found


BEST = "best"
"""Whatever the machine has, extensions too, which no name of an instruction set brings along."""


def instruction_set(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """`name`, forced, or `BEST`; skips the test where the machine lacks it."""
    if name == BEST:
        monkeypatch.delenv(library.ISA, raising=False)
    elif library.ISAS.index(name) > library.core().wm_isa():
        pytest.skip(f"this machine has no {name}")
    else:
        monkeypatch.setenv(library.ISA, name)
    return name
