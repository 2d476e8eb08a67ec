"""quantize_by_outputs in C++ with every instruction set: NumPy's bits, whatever the sizes."""

import numpy as np
import pytest

from pipeline.ops import Kernel
from pipeline.testing.memory import same
from plugins.kernels.quantize_by_outputs.cases import FORMATS, call
from tests.cases.native import needs_compiler

pytestmark = [needs_compiler, pytest.mark.usefixtures("isa")]


@pytest.mark.brief(each=("isa", "name"))
@pytest.mark.parametrize("rows", [1, 31, 70], ids="{} rows".format)
@pytest.mark.parametrize("name", FORMATS)
def test_bits_are_numpy_s(name: str, rows: int) -> None:
    """Of rows that fill no strip, and of several strips."""
    scheme, recipe = FORMATS[name]
    case = call(np.random.default_rng(rows), scheme, rows, 192 + rows % 3 * 192, **recipe)
    found, want = (Kernel("quantize_by_outputs", (b,))(*case.args, **case.options) for b in ("native", "numpy"))
    assert same(found, want)


def test_bits_of_rows_that_are_longer_than_a_strip() -> None:
    scheme, recipe = FORMATS["int3 a row"]
    case = call(np.random.default_rng(0), scheme, 3, 1096, **recipe)
    found, want = (Kernel("quantize_by_outputs", (b,))(*case.args, **case.options) for b in ("native", "numpy"))
    assert same(found, want)
