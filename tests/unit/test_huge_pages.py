"""Huge pages for runs: who has them, and that their process has them where the machine does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import huge_pages
from pipeline.config.verbs import APART, SHORT, STOPS
from tests.cli.run import end, start

RUN = ["+model=gpt_oss", "quant=mxfp4"]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    file = tmp_path / "enabled"
    file.write_text("always [madvise] never\n")
    monkeypatch.setattr(huge_pages, "GIVEN", file)
    monkeypatch.setattr(huge_pages, "libc", lambda: (2, 36))
    return file


@pytest.mark.parametrize(
    ("words", "wanted"),
    [(RUN, True), (["-m", *RUN], True), (["--config-dir", "mine", *RUN], True), ([], False), (["--help"], False)]
    + [([verb, *RUN], False) for verb in (*STOPS, *APART)]
    + [([verb, "DIR"], True) for verb in SHORT if verb != "convert"]
    + [(["convert", "--help"], False), (["--version"], False)]
    + [
        (["convert", "DIR", *more], False)
        for more in ([], ["--to", "gguf", "--quant", "q8_0"], ["quant=int4", "--out", "A"])
    ]
    + [
        (
            [
                "flow=convert",
                *RUN,
                "model.source=A",
                "stages.quantize.measure=false",
                "paths.run=B",
                "progress=false",
                "dask.memory=1GiB",
            ],
            False,
        )
    ]
    + [(["convert", "DIR", more], True) for more in ("quant=auto", "calibrate=gptq", "+experiment=a", "stages=[load]")]
    + [(["convert", "DIR", "--quant", "auto"], True), (["flow=convert", *RUN, "kernels=numpy"], True)],
)
def test_runs_want_them(machine: Path, words: list[str], wanted: bool) -> None:
    assert huge_pages.wanted(words, {}) == wanted


def test_whoever_set_glibc_is_left_alone(machine: Path) -> None:
    assert not huge_pages.wanted(RUN, {"GLIBC_TUNABLES": ""})


@pytest.mark.parametrize("said", ["[always] madvise never\n", "always madvise [never]\n", None])
def test_systems_that_have_or_give_none(machine: Path, said: str | None) -> None:
    machine.write_text(said) if said else machine.unlink()
    assert not huge_pages.wanted(RUN, {})


@pytest.mark.parametrize("version", [(2, 34), ()])
def test_libraries_that_cannot(machine: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...]) -> None:
    monkeypatch.setattr(huge_pages, "libc", lambda: version)
    assert not huge_pages.wanted(RUN, {})


@pytest.mark.skipif(not huge_pages.wanted(RUN, {}), reason="this machine has none to give")
def test_a_run_has_them_from_its_beginning(tmp_path: Path) -> None:
    """A folder that cannot be one lets it end soon; until then it is seen what it was started with."""
    process = start(*RUN, "flow=evaluate", "quant=no_such", f"paths.run={tmp_path}")
    seen = b""
    while process.poll() is None and huge_pages.TUNABLE.encode() not in seen:
        seen = Path(f"/proc/{process.pid}/environ").read_bytes()
    said = end(process)
    assert huge_pages.TUNABLE.encode() in seen
    assert said.code == 2
    assert "no_such" in said.err  # its words came along


def test_the_words_of_a_command_come_along(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: began.append(words))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "-m", "pipeline", *RUN])
    monkeypatch.delenv(huge_pages.NAME, raising=False)
    monkeypatch.setenv(huge_pages.NAME, "")
    huge_pages.begin_anew(RUN)
    assert not began
    monkeypatch.delenv(huge_pages.NAME)
    huge_pages.begin_anew(RUN)
    assert began == [[sys.executable, "-X", "dev", "-m", "pipeline", *RUN]]
    assert os.environ[huge_pages.NAME] == huge_pages.TUNABLE
    monkeypatch.delenv(huge_pages.NAME)


def test_a_program_that_was_started_for_something_else_stays(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "execv", lambda program, words: pytest.fail("it begins anew"))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "another", "3"])
    monkeypatch.delenv(huge_pages.NAME, raising=False)
    huge_pages.begin_anew(RUN)


def test_next_to_nothing_is_imported_before_a_run_begins_anew() -> None:
    """What is, is imported twice."""
    code = "import sys, weightmill.__main__, pipeline.huge_pages\n"
    code += (
        "print({'dataclasses', 'inspect', 'json', 'hashlib', 'shutil', 'xxhash', 'numpy', 'hydra'} & {*sys.modules})"
    )
    root = Path(huge_pages.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
