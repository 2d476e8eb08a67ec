"""Conditions on runs, names of runs, and the order that they are put in."""

import re
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, SourceError
from pipeline.records import tags
from pipeline.records.query import ordered
from pipeline.records.registry import all_runs, find
from tests.cases.many_runs import make_run, make_tree


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    make_tree(tmp_path / "outputs", 8, points=5)
    return tmp_path / "outputs"


def test_conditions(outputs: Path) -> None:
    def names(*words: str) -> set[int]:
        return {int(run.name.rpartition("=")[2]) for run in find(outputs, words)}

    runs = all_runs(outputs)
    kl = {int(r.name.rpartition("=")[2]): r.metrics["KL"].value for r in runs}
    assert names("quant=mxfp4") == {0, 5}
    assert names("quant!=mxfp4") == set(range(8)) - {0, 5}
    assert names("quant=int*") == {1, 2, 6, 7}
    assert names("kl<0.05") == names("KL<0.05") == {i for i, v in kl.items() if v < 0.05}
    assert names("kl<0.05", "kl>=0.02") == {i for i, v in kl.items() if 0.02 <= v < 0.05}
    assert names("seed>=6") == {6, 7}
    assert names("optimizer.rate=0.002") == names("train.optimizer.rate=0.002") == {1}
    assert names("optimizer.name=adamw") == set(range(8))
    assert names("size>3MB") == names("size > 3e6") == set(range(1, 8))
    assert names("top-1<100%", "kl<inf", "seconds<.5h") == set(range(8))
    for i, said in enumerate(("true", "false")):
        with (outputs / f"gpt_oss-{('mxfp4', 'int8')[i]}-seed={i}" / "config.yaml").open("a") as file:
            file.write(f"trace: {said}\n")
    assert names("trace=True") == names("trace=TRUE") == names("trace=true") == {0}
    assert names("trace=False") == {1}
    assert names("trace!=False") == set(range(8)) - {1}
    assert names("started<2026-10") == set(range(8))
    assert names("started>2026-09-21") == names("started=2000-01-01") == set()
    assert names("age>1h") == set(range(8))
    assert names("seconds<2min") == set(range(8))
    tags.say(outputs / "gpt_oss-mxfp4-seed=0", ["best", "b:c"])
    assert names("tag=best") == names("tag=b:c") == {0}
    assert names("tag!=best") == set(range(1, 8))
    assert names("*seed=3", "quant=mxfp4") == set()
    assert names("gpt_oss-mxfp4-seed=0") == {0}  # a name, whatever signs are in it
    assert find(outputs, ["seed=5"])[0].name.endswith("seed=5")


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("perplexty<3", "did you mean 'perplexity'"),
        ("quantt=int8", "did you mean 'quant'"),
        ("optimizer.rat=1", "optimizer.rat"),
        ("state=complet", "did you mean 'complete'"),
        ("kl<abc", "'abc' is no number"),
        ("quant<3", "words are = or != only"),
        ("started>soon", "is no date"),
        ("size<many", "write a number with a unit"),
        ("seconds<3x", "'x' is no unit of it (allowed: ms, s, min"),
        ("seconds<soon", "90s, 2min"),
        ("kl<nan", "nothing is less, more or equal to it"),
        ("kl<1e400", "more than a number can be"),
        ("kl<1%", "'%' is no unit of it (allowed: nats)"),
        ("setting_1=3", "is any of"),
        ("gpt_oss-mxfp4-seed=00", "there is a run 'gpt_oss-mxfp4-seed=0'"),
    ],
)
def test_conditions_that_say_nothing(outputs: Path, word: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        find(outputs, [word])


def test_names_that_there_are_not(outputs: Path) -> None:
    with pytest.raises(SourceError, match="gpt_oss-mxfp4-seed=0"):
        find(outputs, ["gpt_oss/mxfp4/seed"])
    for word in ("\0", "x" * 5000, "~nobody/x", "../..", "[", "\udcff"):
        with pytest.raises((SourceError, ConfigError)):
            find(outputs, [word])


def test_the_best_come_first(outputs: Path) -> None:
    runs = all_runs(outputs)
    values = [run.metrics["perplexity"].value for run in ordered(runs, "perplexity")]
    assert values == sorted(values)
    tops = [run.metrics["top-1"].value for run in ordered(runs, "top-1")]
    assert tops == sorted(tops, reverse=True)
    assert [r.metrics["top-1"].value for r in ordered(runs, "top_1", reverse=True)] == sorted(tops)
    make_run(outputs / "without", 70, state="interrupted")
    assert (
        ordered(all_runs(outputs), "kl")[-1].name
        == ordered(all_runs(outputs), "kl", reverse=True)[-1].name
        == "without"
    )
    assert [r.name for r in ordered(runs, "name")] == sorted(r.name for r in runs)
