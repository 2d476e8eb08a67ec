"""The C++ compiles without a warning: with Clang, and for ARM, where compilers for them are there. With this machine's
own test_native_fuzz.py compiles it so, for sanitizers."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.errors import StageError
from plugins.kernels.native import build, compiler, library
from tests.cases.native import needs_compiler

STRICT = (
    "-O0",
    "-c",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-parameter",
)  # ARM has one instruction set
ARM, QEMU = "aarch64-linux-gnu-g++", "qemu-aarch64"
# Loads the libraries that it is given, as ctypes does, and asks the one that knows for the instruction set.
LOADS = """
#include <dlfcn.h>
#include <cstdio>
int main(int n, char** files) {
  for (int i = 1; i < n; ++i) {
    void* library = dlopen(files[i], RTLD_NOW);
    if (library == nullptr) return std::printf("%s\\n", dlerror()), 1;
    if (auto* isa = (int (*)())dlsym(library, "wm_isa")) std::printf("isa %d\\n", isa());
  }
}
"""


def compiled(name: str, flags: tuple[str, ...], to: Path) -> None:
    """All units, as many at once as there are cores."""
    if shutil.which(name) is None:
        pytest.skip(f"no {name}")
    own = [f for f in build.FLAGS if f not in ("-O3", "-shared")]
    commands = {
        unit: [name, *own, *flags, *(o for i in build._include(build._sources(unit)) for o in ("-isystem", str(i))),
               "-o", str(to / f"{unit}.so"), str(build.SOURCES / f"{unit}.cc")]
        for unit in build.units()
    }  # fmt: skip
    failed = {unit: done.said[:2000] for unit, done in compiler.run(commands).items() if done.why is not None}
    assert not failed, failed


# All instruction sets in one library, as wheels bring them, and each alone; ARM has one.
SETS = ("", *(f"-DWM_ONLY={i}" for i in range(len(library.ISAS))))


@pytest.mark.parametrize(("name", "only"), [*(("clang++", only) for only in SETS), *((ARM, only) for only in SETS[:2])])
def test_there_are_no_warnings(name: str, only: str, tmp_path: Path) -> None:
    compiled(name, (*STRICT, *only.split()), tmp_path)


@needs_compiler
def test_a_warning_of_this_machine_s_compiler_is_an_error_with_sanitizers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "warned.cc").write_text("int f() { int nobody = 1; return 0; }")
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(build.SANITIZE, "address")
    with pytest.raises(StageError, match="unused variable"):
        build.library("warned")


def test_what_is_compiled_for_arm_loads_there(tmp_path: Path) -> None:
    if shutil.which(QEMU) is None:
        pytest.skip(f"no {QEMU}")
    compiled(ARM, ("-O1", "-shared"), tmp_path)
    (tmp_path / "loads.cc").write_text(LOADS)
    command = [ARM, "-o", str(tmp_path / "loads"), str(tmp_path / "loads.cc"), "-ldl"]
    assert subprocess.run(command, capture_output=True, text=True).returncode == 0
    units = [str(tmp_path / f"{unit}.so") for unit in build.units()]
    said = subprocess.run(
        [QEMU, "-L", "/usr/aarch64-linux-gnu", str(tmp_path / "loads"), *units], capture_output=True, text=True
    )
    assert (said.returncode, said.stdout) == (0, "isa 0\n"), said
