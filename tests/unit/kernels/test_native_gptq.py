"""gptq in C++ with every instruction set: NumPy's bits, whatever the sizes."""

import numpy as np
import pytest

from pipeline.ops import Kernel
from pipeline.testing.memory import same
from plugins.kernels.gptq.cases import FORMATS, call
from tests.cases.native import needs_compiler

pytestmark = [needs_compiler, pytest.mark.usefixtures("isa")]


@pytest.mark.brief(each=("isa", "name"))
@pytest.mark.parametrize("rows", [1, 31, 70], ids="{} rows".format)
@pytest.mark.parametrize("name", FORMATS)
def test_bits_are_numpy_s(name: str, rows: int) -> None:
    """Of columns that are no multiple of those that are brought up to date together, first as they lie."""
    scheme, recipe = FORMATS[name]
    rng = np.random.default_rng(rows)
    for ordered in (False, True):
        case = call(rng, scheme, rows, 192 + rows % 3 * 192, ordered, **recipe)
        found, want = (Kernel("gptq", (name,))(*case.args, **case.options) for name in ("native", "numpy"))
        assert same(found, want), case.options
