"""What figures are held against: limits are measured by doing all the work, and ours is not taken for others'."""

import subprocess
import sys

import numpy as np
import pytest

from pipeline.bench.others import Others
from plugins.bench import machine
from plugins.kernels.native import library
from tests.cases.native import instruction_set, needs_compiler

pytestmark = needs_compiler


@pytest.fixture(params=library.ISAS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    return library.ISAS.index(instruction_set(request.param, monkeypatch))


def test_reading_reads_every_word(isa: int) -> None:
    call = machine.limits().wm_limit_read
    for at in range(1024):
        x = np.zeros(1024, np.uint64)
        x[at] = at + 1
        assert call(isa, x.ctypes.data, x.nbytes) == at + 1, at


def test_multiplying_and_adding_is_done_and_counted(isa: int) -> None:
    """One chain is x → x / 2 + 1 / 2, whose distance from 1 halves: after two rounds a quarter of what it was."""
    call, chains = machine.limits().wm_limit_multiply_add, 12
    result, lanes = np.zeros(1, np.float32), 4 << isa
    assert call(isa, 2, 0.5, result.ctypes.data) == 2 * 2 * chains * lanes
    assert result[0] == sum(lanes * (1 + (chain / 2 - 1) / 4) for chain in range(chains))


def test_children_are_not_others():
    spin = "import time\nwhile time.process_time() < 0.3: pass"
    with Others() as seen:
        subprocess.run([sys.executable, "-c", spin], check=True)
    assert seen.cpu_s >= 0.3
    assert seen.seconds > 0


def test_the_machine_says_what_it_is():
    told = machine.describe()
    assert told["cpu"]
    assert told["isa"] in library.ISAS
    assert told["packages"]["numpy"] == np.__version__
    assert told["cpu"] in machine.headline(told)
