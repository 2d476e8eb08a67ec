"""stdout and stderr that are closed, full, left by their reader or know only ASCII: the work is done all the same."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.run import MAIN, command, pipeline


def unread(*args: str, cwd: Path) -> tuple[int, str]:
    """`python -m pipeline ARGS…` with a stdout that nobody reads from the beginning, as `| head` is at the end."""
    reading, writing = os.pipe()
    os.close(reading)
    said = pipeline(*args, cwd=cwd, stdout=writing)
    os.close(writing)
    assert "Traceback" not in said.err
    return said.code, said.err


def shell(redirected: str, *args: str, cwd: Path, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """`python -m pipeline ARGS… REDIRECTED`, and what it said on stderr."""
    done = subprocess.run(
        ["bash", "-c", f'"$@" {redirected}', "-", *command(*args)], cwd=cwd,
        env={**os.environ, **(env or {})}, stderr=subprocess.PIPE, text=True, check=False, stdin=subprocess.DEVNULL,
        errors="surrogateescape",
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def whole(run: Path) -> bool:
    outputs = json.loads((run / "manifest.json").read_bytes())["outputs"]
    return all(Path(o["path"]).stat().st_size == o["nbytes"] for o in outputs) and len(outputs) > 1


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a complete run; making it again does nothing but print."""
    cwd = tmp_path_factory.mktemp("streams")
    assert unread(*MAIN, "paths.run=run", cwd=cwd) == (141, "")
    assert whole(cwd / "run")
    return cwd


@pytest.mark.parametrize("args", [["plan", *MAIN], ["graph", *MAIN], ["--help"], [*MAIN, "paths.run=run"]], ids=str)
@pytest.mark.brief(when=lambda args: args[0] not in ("plan", "graph"))
def test_a_reader_that_left(args: list[str], run: Path) -> None:
    code, said = unread(*args, cwd=run)
    assert code == 141
    assert "error" not in said


def test_a_sweep_whose_reader_left_does_all_jobs(run: Path) -> None:
    code, said = unread("-m", MAIN[0], "quant=mxfp4,none", "paths.outputs=swept", cwd=run)
    assert code == 141, said
    assert "failed" not in said
    jobs = [p.parent for p in (run / "swept").glob("*/manifest.json")]
    assert len(jobs) == 2
    assert all(map(whole, jobs))
    assert len(list((run / "swept").glob("sweep-*/sweep.csv"))) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_below_stdout(run: Path) -> None:
    code, said = shell(">/dev/full", *MAIN, "paths.run=full", cwd=run)
    assert code == 5
    assert said.startswith("error: standard output: No space left on device")
    assert whole(run / "full")
    code, said = shell(">/dev/full", "plan", MAIN[0], "quant=mxfp4", "export=nothing", cwd=run)
    assert code == 2  # what is wrong with the work counts more


@pytest.mark.parametrize("redirected", [">&-", ">/dev/null 2>&-", ">&- 2>&- <&-", ">/dev/null 2>/dev/full"])
@pytest.mark.brief(">&-", ">/dev/null 2>/dev/full")
def test_streams_that_are_closed(redirected: str, run: Path) -> None:
    code, said = shell(redirected, *MAIN, "paths.run=closed", "overwrite=true", cwd=run)
    assert code == 0, said
    assert said == ""
    assert whole(run / "closed")


@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=lambda env: " ".join(map("=".join, env.items())),
)
@pytest.mark.brief("PYTHONIOENCODING=ascii")
def test_terminals_without_our_characters(env: dict[str, str], run: Path) -> None:
    code, said = shell(">printed", *MAIN, "paths.run=ascii", "overwrite=true", cwd=run, env=env)
    assert code == 0, said
    printed = (run / "printed").read_bytes()
    assert rb"\u2192" in printed  # →
    assert max(printed) < (0x80 if "latin-1" not in env.values() else 0x100)
    assert whole(run / "ascii")


def test_a_folder_whose_name_is_no_text(run: Path) -> None:
    """A byte that is no UTF-8 comes back from the records as it was, and reaches the terminal as an escape."""
    folder = os.fsencode(run) + b"/caf\xe9"
    os.mkdir(folder)
    said = pipeline(*MAIN, "paths.run=out", cwd=folder)
    assert said.code == 0, said.err
    assert said.out.splitlines()[-1].endswith(r"caf\udce9/out")
    with open(folder + b"/out/manifest.json", "rb") as file:
        record = json.loads(file.read())
    assert record["run"] == os.fsdecode(folder + b"/out")
    assert all(os.path.getsize(o["path"]) == o["nbytes"] for o in record["outputs"])
