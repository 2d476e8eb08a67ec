"""Who is compared, in what, and what is counted: tables that agree with each other, and the arithmetic of a row."""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.backends import backends_of
from pipeline.tensors.scheme import MXFP4
from pipeline.tensors.spec import TensorSpec
from plugins.bench import checkpoints, engine
from plugins.bench.contenders import Contender, Task, Turn, ours, run, work
from plugins.bench.peers import PEERS, SOURCES, parse
from tests.cases import two_layers

TASK = Task(prompt=8, new=4, threads=2, repeats=2)


def param(name: str, shape: tuple[int, ...], axes: tuple[str, ...], packed: bool = False, stack: bool = False):
    spec = TensorSpec(shape, "BF16", MXFP4 if packed else None)
    return SimpleNamespace(names=(name,), spec=spec, axes=axes, stack=stack)


def test_every_contender_reads_a_form_that_is_made():
    for model, (_, _, table) in engine.CASES.items():
        for name, contender in table.items():
            assert contender.form in checkpoints.MODELS[model].forms, (model, name)
            assert contender.who in ("ours", "transformers", *PEERS)
    for model in checkpoints.MODELS.values():
        for form in model.forms.values():
            assert form.of in ("", *model.forms)


def test_a_backend_that_is_not_there_does_not_contend(monkeypatch):
    monkeypatch.setattr(engine, "backends_of", lambda op: ["native", "xla"])
    assert not [n for n in engine.contenders("gpt-oss-20b", None) if "native_int" in n]
    monkeypatch.setattr(engine, "backends_of", lambda op: ["native", "native_int8", "xla"])
    assert list(engine.contenders("gpt-oss-20b", ["native_int"])) == ["Q8_0, native_int8"]
    assert "native" in backends_of("matmul")


def test_what_a_token_reads_and_multiplies():
    experts, hidden = 8, 64
    dense = param("q", (32, hidden), ("heads", "embed"))
    stack = param("experts", (experts, 32, hidden), ("experts", "mlp", "embed"), packed=True)
    embedding = param("model.embed_tokens.weight", (100, hidden), ("vocab", "embed"))
    head = param("lm_head.weight", (100, hidden), ("vocab", "embed"))
    config = {"num_experts_per_tok": 2}
    read, ops = work(config, [embedding, dense, stack, head])
    chosen = 2 * 32 * hidden
    assert read == 2 * 32 * hidden + chosen * 17 / 32 + 2 * 100 * hidden  # 16 bytes of codes and one scale for 32
    assert ops == 2 * (32 * hidden + chosen)
    tied, _ = work(config, [embedding, dense])
    assert tied == 2 * 32 * hidden + 2 * 100 * hidden
    matrices = param("experts", (experts, 32, hidden), ("mlp", "embed"), stack=True)
    assert work(config, [head, matrices])[1] == 2 * chosen


def test_llama_bench_is_understood():
    log = "loading [x]\n"
    rows = [
        {"n_prompt": 8, "n_gen": 0, "samples_ns": [2_000_000_000, 3_000_000_000], "build_commit": "abc"},
        {"n_prompt": 0, "n_gen": 4, "samples_ns": [500_000_000], "build_commit": "abc"},
    ]
    found = parse(log + json.dumps(rows, indent=2))
    assert found == {"prefill": [2.0, 3.0], "decode": [0.5]}


def test_a_row_is_the_median_of_all_turns():
    turns = [Turn([1.0, 2.0], [4.0, 8.0], [1.0]), Turn([4.0], [2.0], [3.0], others=1.0)]
    row = engine.row("m", "n", Contender("ours", "f"), TASK, turns, read=10.0, ops=20.0)
    assert row["prefill_rate"] == 8 / 2.0
    assert row["decode_rate"] == 4 / 4.0
    assert row["best_decode_rate"] == 4 / 2.0
    assert row["cpu_ms"] == 1e3 * 2.0 / 4
    assert row["others"] == 0.5
    json.dumps(row)


def test_contenders_take_turns(monkeypatch):
    order = []

    def turn(contender, source, task):
        order.append(contender.form)
        return (
            Turn([1.0], [1.0], read=float(len(contender.form)), ops=1.0)
            if contender.who == "ours"
            else Turn([1.0], [1.0])
        )

    table = {"we": Contender("ours", "abc"), "they": Contender("llama.cpp", "abc GGUF"), "more": Contender("ours", "d")}
    monkeypatch.setattr(engine, "turn", turn)
    monkeypatch.setattr(engine, "contenders", lambda model, only: table)
    args = argparse.Namespace(repeats=1, rounds=2, programs="null", only=None)
    rows = engine.bench("SmolLM2-135M", {c.form: Path() for c in table.values()}, 2, args)
    assert order == ["abc", "abc GGUF", "d"] * 2
    assert [row["read"] for row in rows] == [3.0, 3.0, 1.0], "a peer reads what we read of the same form"


def test_a_program_that_fails_says_why():
    with pytest.raises(SystemExit, match="cannot open"):
        run(["sh", "-c", "echo cannot open; exit 3"], 1)
    said, peak = run([sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"], 1)
    assert said == "1\n"
    assert peak > 0


def test_ours(tmp_path):
    turn = ours(two_layers.folder(), ("kernels=xla",), replace(TASK, repeats=1))
    assert [len(turn.prefill), len(turn.decode), len(turn.cpu)] == [1, 1, 1]
    assert turn.compile > 0
    assert min(turn.read, turn.ops) > 0


def test_the_peers_are_pinned():
    lines = [line for line in SOURCES.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == len(PEERS)
    for line, peer in zip(lines, PEERS.values(), strict=True):
        assert line.split("==")[0].replace("-", "_") == peer.package
        assert "--hash=sha256:" in line
