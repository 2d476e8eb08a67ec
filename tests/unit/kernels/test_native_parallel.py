"""How native kernels share work (src/parallel.h), by a program of its own (tests/cases/parallel.cc): under the
sanitizer that finds races, where the compiler has it."""

import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from plugins.kernels.native import build, compiler
from tests.cases.native import needs_compiler

pytestmark = needs_compiler

SOURCE = Path(__file__).parents[2] / "cases" / "parallel.cc"


class Program(NamedTuple):
    file: Path
    sanitized: bool


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """XLA's threads are not known to the sanitizer of threads, which has to see all of them: so a program."""
    made = tmp_path_factory.mktemp("parallel") / "parallel"
    command = [*compiler.command(), "-std=c++17", "-O1", "-I", str(build.SOURCES), "-o", str(made), str(SOURCE)]
    for sanitizer in (["-fsanitize=thread", "-g1"], []):
        if subprocess.run([*command, *sanitizer, "-pthread"], capture_output=True).returncode == 0:
            ran = _ran(made, 1, 1, 1)
            if "unexpected memory mapping" not in ran.stderr:  # of a kernel that the sanitizer does not know
                return Program(made, bool(sanitizer))
    raise AssertionError("it does not compile")


def _ran(
    file: Path,
    callers: int,
    threads: int,
    pieces: int,
    *,
    comes: bool = True,
    turns: bool = False,
    pause_us: int = 0,
    planted: bool = False,
) -> "subprocess.CompletedProcess[str]":
    given = map(str, (callers, threads, pieces, int(comes), int(turns), pause_us, int(planted)))
    return subprocess.run([str(file), *given], capture_output=True, text=True, timeout=60)


def counted(program: Program, callers: int, threads: int, pieces: int, **how: Any) -> tuple[int, int]:
    """Pieces that were not done once; and how often, in one call, a piece had another thread than the one before it."""
    ran = _ran(program.file, callers, threads, pieces, **how)
    assert ran.returncode == 0, ran.stderr[-4000:]
    wrong, changes = map(int, ran.stdout.split())
    return wrong, changes


@pytest.mark.parametrize(("callers", "threads", "pieces"), [(1, 2, 1), (3, 3, 7), (3, 2, 100), (2, 5, 64)])
@pytest.mark.parametrize("turns", [False, True])
def test_every_piece_is_done_once(program: Program, callers: int, threads: int, pieces: int, turns: bool) -> None:
    assert counted(program, callers, threads, pieces, turns=turns)[0] == 0


@pytest.mark.parametrize("turns", [False, True])
def test_the_caller_does_what_nobody_comes_for(program: Program, turns: bool) -> None:
    assert counted(program, 1, 4, 50, comes=False, turns=turns) == (0, 0)


def test_threads_of_a_step_keep_to_neighbours(program: Program) -> None:
    """However late a helper comes: what is left is halved each time that somebody has nothing to do."""
    wrong, changes = counted(program, 1, 2, 64, pause_us=500)
    assert wrong == 0
    assert changes <= 12


def test_a_race_would_be_found(program: Program) -> None:
    if not program.sanitized:
        pytest.skip("no sanitizer of threads here")
    assert "data race" in _ran(program.file, 1, 3, 100, pause_us=500, planted=True).stderr
