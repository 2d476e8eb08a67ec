"""How native kernels come to be there: which compiler, what becomes of one that will not do, and who compiles what."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import psutil
import pytest

from pipeline import backends
from pipeline.errors import StageError, StorageError, Unsupported
from pipeline.running import text_stream
from plugins.kernels.native import build, compiler, library
from tests.cases.native import needs_compiler

pytestmark = needs_compiler

BEST = 1
CODE = '#include "answer.h"\nextern "C" int answer() { return ANSWER; }\n'


def forget() -> None:
    compiler.command.cache_clear()
    library.missing.cache_clear()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder without libraries, two small units to fill it, and nothing remembered of compilers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build, "SOURCES", tmp_path / "src")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/answer.h").write_text("#define ANSWER 42\n")
    (tmp_path / "src/one.cc").write_text(CODE)
    (tmp_path / "src/two.cc").write_text("int two() { return 2; }\n")
    (tmp_path / "src/core.cc").write_text("")
    monkeypatch.setattr(library, "isa", lambda: BEST)
    forget()
    yield tmp_path
    forget()


def place(unit: str) -> Path:
    return build._place(unit, None if unit == "core" else BEST)


def script(path: Path, text: str) -> str:
    """A compiler."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def prepared(*names: str) -> list[str]:
    said: list[str] = []
    backends.prepare(names or ["native", "xla"], said.append)
    return said


def test_a_run_compiles_what_is_not_there_once(here: Path) -> None:
    assert library.missing() is None  # a compiler is there: it will be
    assert not build.folder().exists()
    assert prepared() == ["compiling the native kernels, once: one, two"]
    made = {p.name: p.stat().st_mtime_ns for p in build.folder().glob("*.so")}
    assert [name.partition("-")[0] for name in sorted(made)] == ["core", "one", "two"]
    assert prepared() == []
    assert {p.name: p.stat().st_mtime_ns for p in build.folder().glob("*.so")} == made
    assert build.library("one", BEST).name in made


def test_a_changed_source_is_another_library_of_those_that_include_it(here: Path) -> None:
    before = {unit: place(unit) for unit in build.units()}
    (here / "src/answer.h").write_text("#define ANSWER 43\n")
    assert place("one") != before["one"]
    assert place("two") == before["two"]


def test_flags_instruction_sets_compilers_and_the_headers_of_jaxlib_count(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [place("one"), build._place("one", BEST + 1), build._place("one", None)]
    monkeypatch.setenv(build.SANITIZE, "undefined")
    places.append(place("one"))
    monkeypatch.setenv("CXX", script(here / "c++", "exit 1"))
    forget()
    places.append(place("one"))
    script(here / "c++", "exit 22")
    places.append(place("one"))
    (here / "src/one.cc").write_text('#include "xla/ffi/api/ffi.h"\n')
    assert [str(p) for p in build._include(build._sources("one"))] == [jax.ffi.include_dir()]
    places.append(place("one"))
    (here / "include/xla").mkdir(parents=True)
    (here / "include/xla/x.h").write_text("// another version\n")
    monkeypatch.setattr(build, "_include", lambda unit: [here / "include"])
    places.append(place("one"))
    assert len({*places}) == len(places)


def test_without_a_compiler_it_is_said_once_and_left_to_others(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(here))
    why = "no C++ compiler: neither CXX is set nor c++, g++, clang++ on the path"
    assert prepared() == [f"no native kernels: {why}"]
    assert library.missing() == why
    with pytest.raises(Unsupported, match="neither CXX is set"):
        build.library("one", BEST)
    monkeypatch.setenv("CXX", "nosuch++ -O1")
    forget()
    assert library.missing() == "no C++ compiler: CXX='nosuch++ -O1' is not there"


def test_without_a_compiler_what_another_one_made_will_do(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared()
    monkeypatch.setenv("PATH", str(here))
    forget()
    assert library.missing() is None
    assert build.library("one", BEST).exists()
    (here / "src/answer.h").write_text("#define ANSWER 43\n")  # but not of other sources
    forget()
    assert "no C++ compiler" in str(library.missing())


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("echo 'x.cc: note: so\nx.cc:1: error: it is broken' >&2; exit 1", "x.cc:1: error: it is broken"),
        ("exit 3", "exit code 3"),
        ("exit 0", "it wrote nothing"),
        ('while [ "$1" != -o ]; do shift; done; echo no library > "$2"', "cannot be loaded"),
    ],
)
def test_a_compiler_that_does_not_compile_is_left_out_with_its_reason(
    here: Path, monkeypatch: pytest.MonkeyPatch, does: str, why: str
) -> None:
    monkeypatch.setenv("CXX", script(here / "broken", f"echo x >> {here}/tries; {does}"))
    assert library.missing() is None  # nothing was tried
    [said] = prepared()
    assert said.startswith(f"no native kernels: {here}/broken does not compile the native kernels: ")
    assert why in said
    assert not [*build.folder().glob("*.so"), *build.folder().glob(".compiling-*")]
    library.missing.cache_clear()
    assert why in str(library.missing())  # for whoever only plans
    assert prepared() == [said]
    monkeypatch.setattr(build, "QUICK_S", 0)
    assert prepared() == [said]
    assert (here / "tries").read_text().split() == ["x", "x"]  # again where it is quick, and else not every time
    with pytest.raises(StageError, match="does not compile the native kernels"):
        build.library("one", BEST)
    monkeypatch.setattr(build, "RETRY_S", -1)
    monkeypatch.delenv("CXX")
    forget()
    assert prepared() == ["compiling the native kernels, once: one, two"]
    assert library.missing() is None


def test_an_error_shows_what_the_compiler_said(here: Path) -> None:
    (here / "src/one.cc").write_text("int one() { return nothing; }\n")
    with pytest.raises(StageError, match=r"(?s)does not compile the native kernels: .*one.cc:1:.*\n.*nothing"):
        build.library("one", BEST)
    [compiling, said] = prepared()
    assert compiling == "compiling the native kernels, once: one, two"
    assert "one.cc: In function" in said
    assert "one.cc: In function" in str(library.missing())


def test_a_compiler_that_hangs_is_ended_with_all_it_started(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "MOST_S", 0.3)
    monkeypatch.setenv("CXX", script(here / "hangs", f"sleep 1000 & echo $! >> {here}/started; wait"))
    assert "not done after 0.3 s" in prepared()[-1]
    for pid in map(int, (here / "started").read_text().split()):
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)


def test_a_folder_that_will_not_do_is_known_before(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as m:
        m.setattr(build.os, "statvfs", lambda path: os.statvfs_result((0,) * 8 + (os.ST_NOEXEC, 255)))
        assert prepared() == [f"no native kernels: {library.missing()}"]
        assert "which is mounted noexec" in str(library.missing())
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert "/proc/nowhere/weightmill/native" in prepared()[-1]
    assert "/proc/nowhere/weightmill/native" in str(library.missing())
    with pytest.raises(StorageError, match="the native kernels cannot be kept there"):
        build.library("one", BEST)


def test_a_library_that_was_cut_short_is_made_again(here: Path) -> None:
    build.library("core")
    file, whole = place("one"), build.library("two", BEST)
    file.write_bytes(whole.read_bytes()[:100])
    assert f"{file.name} cannot be loaded" in str(library.missing())
    assert prepared() == ["compiling the native kernels, once: one"]
    assert len(file.read_bytes()) > 100
    assert library.missing() is None


COMPILE = """
import sys
from pathlib import Path
from plugins.kernels.native import build, library
build.SOURCES = Path(sys.argv[1])
library.isa = lambda: 1
library.prepare(print)
print(library.missing())
"""


def process(here: Path, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", COMPILE, str(here / "src")]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, start_new_session=True, **options)


def test_of_two_processes_one_compiles_and_one_waits(here: Path) -> None:
    real = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    env = {**os.environ, "CXX": script(here / "slow", f'echo x >> {here}/calls; sleep 0.5; exec {real} "$@"')}
    both = [process(here, env=env) for _ in range(2)]
    said = sorted(p.communicate(timeout=60)[0].splitlines() for p in both)
    compiling, waiting = "compiling the native kernels, once: one, two", "waiting for another process, which compiles"
    assert [lines[-1] for lines in said] == ["None", "None"]
    lines = [line for each in said for line in each]
    assert lines.count(compiling) == 1
    assert f"{waiting} the native kernels" in lines
    assert len((here / "calls").read_text().split()) == 3  # units, each once


def test_what_few_runs_need_is_compiled_when_it_is_called(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "SELDOM", ("two",))
    assert prepared() == ["compiling the native kernels, once: one"]
    assert prepared() == []
    assert library.missing() is None  # it will be there
    said: list[str] = []
    with text_stream.to(said.append, said.append):
        assert build.library("two", BEST).exists()
        build.library("two", BEST)
    assert said == ["compiling the native kernels, once: two\n"]


def test_a_backend_that_is_named_has_what_it_alone_needs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(build.SOURCES / "one.cc", build.SOURCES / "rounded.cc")
    monkeypatch.setattr(library, "SELDOM", ("rounded",))
    assert prepared() == ["compiling the native kernels, once: one, two"]
    assert prepared("native", "native_int16") == []
    assert prepared("native", "native_int8") == ["compiling the native kernels, once: rounded"]


def test_units_that_few_runs_need_are_units() -> None:
    assert {*library.SELDOM} < {*build.units()}


def test_what_a_killed_process_left_is_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = f'while [ "$1" != -o ]; do shift; done; echo half > "$2"; echo $$ > {here}/pid; exec sleep 1000'
    killed = process(here, env={**os.environ, "CXX": script(here / "slow", half)})
    while not (here / "pid").exists() or not (here / "pid").read_text().strip():
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    os.killpg(os.getpgid(int((here / "pid").read_text())), signal.SIGKILL)
    assert [*build.folder().glob(".compiling-*")]
    # The system may take a while to take its lock from who was killed.
    assert prepared()[-1] == "compiling the native kernels, once: one, two"
    assert library.missing() is None
    assert not [*build.folder().glob(".compiling-*")]


def test_a_cache_folder_that_may_not_be_looked_into_has_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ("n" * 300)))  # refused to root too, as a private folder is not
    assert not build.is_there("core")
