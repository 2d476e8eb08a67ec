"""A command that is forked is a command that is started: what it says, how it ends, where it is, and that it ends."""

import os
from pathlib import Path

import psutil
import pytest

from tests.cli import warm
from tests.cli.run import MAIN, ROOT, Said, end, pipeline, start

SOURCE = ROOT / "plugins/models/gpt_oss/tiny"
CLASS = (
    "from dataclasses import dataclass\nfrom {} import {} as Ours\n\n\n@dataclass(frozen=True)\nclass Own(Ours): ...\n"
)
OWN = {  # a method and a stage of the user's own
    "mine/plugins/quant/own.py": CLASS.format("plugins.quant.blockwise", "Blockwise"),
    "mine/quant/own.yaml": (ROOT / "conf/quant/mxfp4.yaml").read_text().replace("blockwise.Blockwise", "own.Own"),
    "mine/stages/own.py": CLASS.format("stages.decode", "Decode"),
    "mine/stages/own.yaml": (ROOT / "conf/stages/decode.yaml")
    .read_text()
    .replace("decode", "own")
    .replace("Decode", "Own"),
}


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("plan", *MAIN, "model.source=${oc.env:WHERE}"), 0),
        ((*MAIN, "model.source=here/nothing"), 4),
        (("gc", "--delet"), 2),
        (("--help",), 0),
        (("plan", *MAIN[:1], "--config-dir=mine", "quant=own", "stages=[load,decode,own,quantize,export]"), 0),
    ],
)
@pytest.mark.brief(when=lambda args: args[0] in ("plan", "gc"))
def test_it_says_what_a_started_one_says(tmp_path: Path, args: tuple[str, ...], code: int) -> None:
    env = {"WHERE": str(SOURCE)}
    for name, content in OWN.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert warm.serves(tmp_path, {**os.environ, **env})
    forked, started = pipeline(*args, cwd=tmp_path, env=env), end(start(*args, cwd=tmp_path, env=env))
    assert (forked.code, forked.err) == (started.code, started.err)
    lines = [[line for line in said.out.splitlines() if not line.startswith("time ")] for said in (forked, started)]
    assert len(lines[0]) > 10 or code
    kept = [[line for line in said if "peak memory" not in line and "dask.memory" not in line] for said in lines]
    assert kept[0] == kept[1]
    assert forked.code == code


@pytest.mark.parametrize("name", ["PYTHONPATH", "LC_ALL", "LD_PRELOAD"])
def test_what_python_reads_as_it_starts_is_for_a_started_one(name: str) -> None:
    assert not warm.serves("/", {**os.environ, name: "other"})


def test_modules_that_are_not_ours_are_for_a_started_one(tmp_path: Path) -> None:
    assert warm.serves(tmp_path, os.environ)
    assert warm.serves(ROOT, os.environ)
    (tmp_path / "stages").mkdir()
    assert not warm.serves(os.fsencode(tmp_path), os.environ)


def test_one_that_hangs_is_killed_and_the_next_is_served(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"still running after 0.01 s.*'--help'"):
        pipeline("--help", cwd=tmp_path, timeout_s=0.01)
    assert pipeline("gc", cwd=tmp_path).code == 0
    servers = [p for p in psutil.Process().children() if "tests.cli.warm" in p.cmdline()]
    assert [p.children() for p in servers] in ([[]], [[], []])


def test_jax_is_there_for_commands_that_run_a_model_as_those_of_tests_do(tmp_path: Path) -> None:
    quick = warm._quick()
    text = ("+model=gpt_oss", "flow=generate", "sampling.max_tokens=2")
    for args in (
        ("+model=gpt_oss",),
        text,
        ("-m", *text),
        ("evaluate", "DIR"),
        ("+model=llama", "stages=[load,evaluate]"),
    ):
        assert warm.runs_a_model(args, quick)
        assert not warm.runs_a_model(args, {**quick, "JAX_ENABLE_X64": "1"})
        assert not warm.runs_a_model(args, {**quick, "XLA_FLAGS": ""})
    for args in (
        ("plan", *text),
        ("--help",),
        (*MAIN, "flow=convert"),
        ("convert", "DIR"),
        (MAIN[0], "stages=[load,export]"),
    ):
        assert not warm.runs_a_model(args, quick)
    for n in range(2):
        (tmp_path / str(n)).mkdir()
    forked, started = (how(*text, cwd=tmp_path / str(n)) for n, how in enumerate((pipeline, _started)))
    assert forked.code == started.code == 0, forked.err
    assert _text(forked.out) == _text(started.out)


def _started(*args: str, cwd: Path) -> Said:
    return end(start(*args, cwd=cwd))


def _text(out: str) -> list[str]:
    """What was generated."""
    return [line for line in out.splitlines() if "state of the Union" in line]
