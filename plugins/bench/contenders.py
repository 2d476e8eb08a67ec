"""One contender, once: a model loaded, a prompt read, new tokens made. Each runs in a process of its own.

`answer` is what runs there for Weightmill and for transformers, and tells with its last line; llama.cpp and
ik_llama.cpp bring a program of their own. All do the same: tokens at random, a prompt from nothing, and apart from it
new tokens from nothing (greedy), after one text of each to warm up and to compile.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.bench.others import Others
from plugins.bench.peers import PEERS, ROOT, parse


@dataclass(frozen=True)
class Contender:
    """Who reads which form of a model, and how.

    Attributes:
        who: `ours`, `transformers`, or a name of `PEERS`.
        form: of the model, see `plugins.bench.checkpoints`.
        settings: overrides of ours; torch's dtype.
    """

    who: str
    form: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """What is asked of every contender.

    Attributes:
        prompt, new: tokens.
        repeats: texts in one process, after one to warm up.
        programs: where compiled programs of ours are kept; `null`: nowhere.
    """

    prompt: int
    new: int
    threads: int
    repeats: int
    programs: str = "null"


@dataclass
class Turn:
    """What one process took; seconds, a list over its texts.

    Attributes:
        cpu: seconds of all cores a text of new tokens; empty for peers, whose threads spin while they wait.
        read: bytes of the weights that a new token reads.
        ops: float32 operations that a token of the prompt takes, attention's own left out.
        outside: seconds of a step of decoding in which none of our handlers ran.
        calls: of handlers in such a step.
        peak: largest resident bytes.
        others: cores that other processes took meanwhile.
    """

    prefill: list[float]
    decode: list[float]
    cpu: list[float] = field(default_factory=list)
    load: float = 0.0
    compile: float = 0.0
    read: float = 0.0
    ops: float = 0.0
    outside: float = 0.0
    calls: float = 0.0
    peak: int = 0
    others: float = 0.0


def turn(contender: Contender, source: Path, task: Task) -> Turn:
    """Run it in a process that has `task.threads` cores.

    Raises:
        SystemExit: it failed, with what it said.
    """
    if contender.who in PEERS:
        command = PEERS[contender.who].command(source, task.prompt, task.new, task.threads, task.repeats)
    else:
        job = json.dumps({"contender": asdict(contender), "source": str(source), "task": asdict(task)})
        command = [sys.executable, "-c", "from plugins.bench.contenders import answer; answer()", job]
    with Others() as others:
        output, peak = run(command, task.threads)
    told: dict[str, Any] = parse(output) if contender.who in PEERS else json.loads(output.splitlines()[-1])
    found = Turn(**told)
    found.peak, found.others = peak, others.cores
    return found


def run(command: Sequence[object], threads: int, **variables: str) -> tuple[str, int]:
    """What a program says that has `threads` cores, and its largest resident bytes.

    Args:
        variables: of its environment, beside this one's.

    Raises:
        SystemExit: it failed, with what it said.
    """
    words = [str(word) for word in command]
    some = sorted(os.sched_getaffinity(0))[-threads:]
    env = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}  # compile anew
    env |= variables
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, some)  # which a child has from the thread that starts it
    try:
        child = subprocess.Popen(  # noqa: S603  this interpreter, or a program that `make peers` built
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=env
        )
    finally:
        os.sched_setaffinity(0, own)
    assert child.stdout is not None
    with child.stdout:
        output = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(words)}\n{output}")
    return output, used.ru_maxrss << 10


def ours(source: Path, settings: Sequence[str], task: Task) -> Turn:
    import pipeline
    from plugins.bench.outside import outside
    from plugins.engine.generate import generate
    from plugins.engine.load import parameters
    from plugins.engine.options import Sampling

    start = time.perf_counter()
    model = pipeline.load_model(source, overrides=[f"engine.programs={task.programs}", *settings])
    load_s = time.perf_counter() - start
    runtime = model.runtime
    ids = tokens(runtime.vocab, task.prompt)
    times, text = range(task.repeats + 1), Sampling(max_tokens=task.new + 1)
    prefill = [generate(runtime, [ids], Sampling(max_tokens=1))[1].prefill for _ in times]
    decode: list[float] = []
    cpu: list[float] = []
    for _ in times:
        began = time.process_time()
        decode.append(generate(runtime, [ids[:1]], text)[1].decode)
        cpu.append(time.process_time() - began)
    outside_s, calls = outside(
        lambda: generate(runtime, [ids[:1]], Sampling(max_tokens=task.new + 1))[1].decode, task.new
    )
    read, ops = work(runtime.config, list(parameters(runtime._model(runtime._leaves))))
    return Turn(prefill[1:], decode[1:], cpu[1:], load_s, runtime.compile_s, read, ops, outside_s, calls)


def work(config: Any, parameters: Sequence[Any]) -> tuple[float, float]:
    """Bytes of the weights that a new token reads, and operations that a token of a prompt takes.

    Of experts those that are chosen; of an embedding one row, unless it is the output matrix as well. Of a prompt only
    the last token has logits.
    """
    read = ops = 0.0
    vocabularies = [p.names[0] for p in parameters if p.axes[0] == "vocab"]
    for p in parameters:
        many = p.stack or p.axes[0] == "experts"
        chosen = config["num_experts_per_tok"] / p.spec.shape[0] if many else 1.0
        if p.axes[0] != "vocab":
            ops += 2 * p.spec.size * chosen * (len(p.spec.shape) > 1)
        if p.axes[0] != "vocab" or p.names[0] == "lm_head.weight" or len(vocabularies) == 1:
            read += p.spec.nbytes * chosen
    return read, ops


def tokens(vocab: int, count: int) -> list[int]:
    import numpy as np

    found: list[int] = np.random.default_rng(0).integers(vocab, size=count).tolist()
    return found


def transformers(source: Path, settings: Sequence[str], task: Task) -> Turn:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(task.threads)
    start = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, settings[0]))
    load_s = time.perf_counter() - start
    ids = torch.tensor([tokens(model.config.vocab_size, task.prompt)])

    def text(prompt: int, new: int) -> float:
        start, part = time.perf_counter(), ids[:, :prompt]
        model.generate(
            part, attention_mask=torch.ones_like(part), do_sample=False, max_new_tokens=new, min_new_tokens=new,
            pad_token_id=0, eos_token_id=[],
        )  # fmt: skip
        return time.perf_counter() - start

    text(task.prompt, 1)
    prefill = [text(task.prompt, 1) for _ in range(task.repeats)]
    text(1, task.new)
    decode, cpu = [], []
    for _ in range(task.repeats):
        began = time.process_time()
        decode.append(text(1, task.new))
        cpu.append(time.process_time() - began)
    return Turn(prefill, decode, cpu, load_s)


CALLS: dict[str, Callable[[Path, Sequence[str], Task], Turn]] = {"ours": ours, "transformers": transformers}


def answer() -> None:
    """The contender, source and task of the command line, as JSON."""
    job = json.loads(sys.argv[1])
    contender, task = Contender(**job["contender"]), Task(**job["task"])
    print("\n" + json.dumps(asdict(CALLS[contender.who](Path(job["source"]), contender.settings, task))))
