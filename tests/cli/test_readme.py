"""Every command in README.md and docs/ runs, in order, and prints what the page says it prints.

```sh blocks are run by bash in an empty folder; a ```text block after one is its stdout, where a line `…` stands for
any lines, and times and rates are not compared. ```python blocks are run there too. `make` is only asked whether it
knows the target: running it here would run these tests inside themselves. A reader has a model, `my-llama`,
and a text, `my-text.txt`. Where README.md says what is printed, its command is typed; elsewhere lines that are commands
of ours and nothing else are forked (tests/cli/warm.py), and programs compile quickly.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.cases import model_runs, my_llama, pages
from tests.cli import warm
from tests.cli.run import ROOT, Said

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
HOME = "/home/you/weightmill"  # where the README's reader is
DOCS = ROOT / "docs"
HOW_TO = sorted(page.relative_to(ROOT).as_posix() for page in (DOCS / "howto").glob("*.md"))
# One reader goes through these, one after the other: later pages read what earlier ones wrote.
GUIDE = (
    "README.md", "docs/plan.md", "docs/sources.md", "docs/quantization.md", "docs/exports.md", "docs/sweeps.md",
    "docs/running.md", "docs/training.md", "docs/devices.md", "docs/memory.md", "docs/records.md", "docs/backends.md",
    "docs/extending.md", "docs/bench.md",
)  # fmt: skip
# Their commands are those of tests of their own (tests/unit/bench, tests/cli/test_flows.py and its like), once more.
AGAIN = ("docs/quantization.md", "docs/sweeps.md", "docs/running.md", "docs/bench.md")
ELSEWHERE = tuple(f"docs/{page}" for page in pages.NOTEBOOKS.values())  # run by tests of their own


def blocks(page: str) -> list[tuple[str, str, str | None]]:
    """Language, content and (of a shell block) what it prints, for every block that is run."""
    found = [(m[1], m[2]) for m in BLOCK.finditer((ROOT / page).read_text(encoding="utf-8"))]
    after = [*found[1:], ("", "")]
    return [
        (kind, text, following if next_kind == "text" else None)
        for (kind, text), (next_kind, following) in zip(found, after, strict=False)
        if kind in ("sh", "python")
    ]


def stable(text: str) -> list[str]:
    """Lines without what depends on the machine, or on the width of what does."""
    text = re.sub(r"\d+(\.\d+)? ([KMGT]iB|B)/s", "RATE", text)
    text = re.sub(r"\b\d+(\.\d+)? s\b", "TIME", text)
    text = re.sub(r"\d+(\.\d+)? tokens/s", "RATE", text)
    lines = (" ".join(re.sub(r"[━─┏┓┗┛┡┩╇┳┻┌┐└┘┬┴┼├┤╈]", "", line).split()) for line in text.splitlines())
    return [line for line in lines if line]


def same(said: str, expected: str) -> bool:
    pattern = "".join(".*\n" if line == "…" else re.escape(line) + "\n" for line in stable(expected))
    pattern = pattern.replace(".*\n", "(?:.*\n)*?")
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in stable(said))) is not None


Follow = Callable[[str], int]
NEEDS_A_SHELL = re.compile(r"""[|&;<>$`~*?#"\\{}!]""")


def ours(script: str) -> list[list[str]]:
    """What follows `weightmill` in each line; nothing where a line says anything that a shell has to understand."""
    lines = script.strip().splitlines()
    plain = [line.startswith("weightmill ") and not NEEDS_A_SHELL.search(re.sub("'[^']*'", "", line)) for line in lines]
    return [shlex.split(line)[1:] for line in lines] if all(plain) else []


@pytest.fixture
def follow(tmp_path: Path) -> Follow:
    """Runs a page as its reader would; how many of its blocks said what they print."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    slowly = {**os.environ, "PATH": path, "COLUMNS": "80"}
    quickly = {**slowly, **model_runs.quick_environment()}
    my_llama.write(tmp_path)

    def typed(kind: str, text: str, env: dict[str, str]) -> Said:
        script = re.sub(r"^make ", f"make --no-print-directory -n -C '{ROOT}' ", text, flags=re.M)
        command = ["bash", "-euo", "pipefail", "-c", script] if kind == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def run(page: str) -> int:
        compared = 0
        for kind, text, expected in blocks(page):
            shown = page == "README.md" and expected is not None
            env = slowly if shown else quickly
            forked = ours(text) if kind == "sh" and not shown else []
            each = [Said(*warm.run(words, tmp_path, env, 600)) for words in forked] or [typed(kind, text, env)]
            for done in each:
                assert done.code == 0, f"{page}: {text}\n{done.err}\n{done.out}"
            if expected is not None:
                said = "".join(done.out for done in each).replace(str(tmp_path), HOME)
                assert same(said, expected), f"{page}: {text}\nthe page says:\n{expected}\nit prints:\n{said}"
                compared += 1
        return compared

    return run


def test_the_readme_and_the_guide_run_and_say_what_they_say(follow: Follow, thorough: bool) -> None:
    """One test, because later commands read what earlier ones wrote."""
    compared = sum(follow(page) for page in GUIDE if thorough or page not in AGAIN)
    assert compared >= (10 if thorough else 8)


@pytest.mark.parametrize("page", HOW_TO)
@pytest.mark.brief("docs/howto/int4_for_vllm.md", "docs/howto/gguf.md", "docs/howto/cluster.md")
def test_a_how_to_runs_from_nothing(page: str, follow: Follow) -> None:
    assert any(kind == "sh" for kind, _, _ in blocks(page))
    follow(page)


def test_no_page_with_commands_is_left_out() -> None:
    every = {page.relative_to(ROOT).as_posix() for page in DOCS.rglob("*.md")}
    assert {page for page in every if blocks(page)} <= {*GUIDE, *HOW_TO, *ELSEWHERE}
    assert all(pages.BLOCK.search((ROOT / page).read_text(encoding="utf-8")) for page in ELSEWHERE)


def test_what_make_can_do_is_what_make_help_says() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (help .*)$", makefile, re.M)
    done = subprocess.run(["make", "-C", str(ROOT), "help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(phony.split()) == set(re.findall(r"^([\w-]+)  +\S", done.stdout, re.M))
    for verb in phony.split():
        asked = subprocess.run(["make", "-n", "-C", str(ROOT), verb], capture_output=True, text=True, check=False)
        assert asked.returncode == 0, asked.stderr


def test_hooks_before_a_commit_are_the_quick_half_of_check() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    verbs = [hook["entry"].removeprefix("make ") for hook in hooks]
    (needed,) = re.findall(r"^check: \S+ (.*?)  ##", (ROOT / "Makefile").read_text(), re.M)
    assert verbs == needed.split()
    assert all(hook["language"] == "system" for hook in hooks), "nothing is downloaded"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("weightmill runs 'kl<0.01' --limit 2\nweightmill gc\n", [["runs", "kl<0.01", "--limit", "2"], ["gc"]]),
        ("weightmill runs kl<0.01\n", []),
        ("weightmill gc\nls\n", []),
        ("A=1 weightmill gc\n", []),
    ],
)
def test_what_needs_a_shell_has_one(script: str, expected: list[list[str]]) -> None:
    assert ours(script) == expected


@pytest.mark.parametrize(
    ("said", "expected", "equal"),
    [
        ("a\nb\n", "a\nb", True),
        ("a\nb\n", "a\nc", False),
        ("a\nb\nc\n", "a", False),
        ("a\nb\nc\n", "…\nc", True),
        ("a\nb\nc\n", "…\nb\n…", True),
        ("a\nb\nc\n", "…\nd\n…", False),
        ("┏━┓\n│ x │ 0.12 s │ 1.0 GiB/s │\n", "│ x │   3.4 s │ 17.3 MiB/s │", True),
        ("│ x │ 18.85 dB │\n", "│ x │ 18.86 dB │", False),
        ("4.9 MiB\n", "4.8 MiB", False),
    ],
)
def test_the_comparison_itself(said: str, expected: str, equal: bool) -> None:
    assert same(said, expected) is equal
