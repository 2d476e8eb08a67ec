"""What tests of native kernels need of a machine, and the number formats that they go through."""

import itertools
import shutil

import pytest

from pipeline.tensors.scheme import ELEMENT_BITS, SCALE_DTYPES, Scheme
from plugins.kernels.native import compiler

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
