"""Commands from a process that has imported what they all import: it forks one for each.

Imports are half of what a short command takes, and tests run hundreds. What is forked is a process of its own like any
other (folder, variables, streams, session, exit code) and goes through `pipeline/__main__.py` from the top; only the
modules are there, and what other people's parsers have found out about a grammar: nothing of ours has been called. No
framework is among them; for commands that run a model there is a second one, which has imported JAX too, and like them
started nothing in it. How Python itself starts is what `tests.cli.run.start` is for.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NoReturn

import psutil

from pipeline import huge_pages

ROOT = Path(__file__).parents[2]
IMPORTED = (
    "pipeline.__main__", "dask.threaded", "psutil", "rich.progress", "rich.table", "safetensors", "pipeline.engine",
    "pipeline.reporting.manifest", "pipeline.running.graph", "plugins.formats.hub.files", "plugins.quant.blockwise",
    "stages.decode", "stages.evaluate", "stages.export", "stages.export_work", "stages.generate", "stages.load",
    "stages.quantize", "stages.shard", "hydra._internal.core_plugins.basic_launcher",
    "hydra._internal.core_plugins.basic_sweeper", "hydra._internal.core_plugins.file_config_source",
    "plugins.engine.options", "plugins.formats.hub.preview", "plugins.formats.npy.container",
    "plugins.formats.orbax.container", "plugins.formats.orbax.pytree", "plugins.formats.safetensors.plain",
    *(f"plugins.formats.{name}.dialect" for name in ("bitsandbytes", "compressed_tensors", "gpt_oss", "modelopt")),
    "plugins.formats.gguf.model", "plugins.formats.safetensors.hugging_face", "plugins.engine.engine",
    *(f"plugins.models.{name}.family" for name in ("cnn", "gemma", "gpt_oss", "llama", "mlp", "qwen")),
    "plugins.tokenizers.auto", "plugins.tokenizers.loaded", "antlr4.LL1Analyzer", "encodings.ascii",
    "importlib.readers",
    "omegaconf._impl", "orjson", "dask.task_spec", "rich._unicode_data.unicode17-0-0", "hydra._internal.logging_config",
    *(f"hydra._internal.core_plugins.{name}" for name in (
        "bash_completion", "fish_completion", "importlib_resources_config_source", "structured_config_source",
        "zsh_completion",
    )),
    *(f"pipeline.config.{name}" for name in ("explain", "grammar", "jobs", "model_types")), "pipeline.events",
    *(f"pipeline.planning.{name}" for name in ("model_choice", "obstacles")),
    *(f"pipeline.records.{name}" for name in (
        "gains", "index", "lines", "points", "registry", "rows", "schemas", "sweeps", "system", "tries", "typed",
    )),
    *(f"pipeline.reporting.{name}" for name in (
        "clocks", "html.place", "mesh", "progress", "tables", "trace", "writing",
    )),
    *(f"pipeline.running.{name}" for name in (
        "attempt", "description", "exports", "lane", "member", "peak", "progress", "runner", "tasks", "traced", "why",
    )),
    *(f"plugins.formats.{name}.dialect" for name in ("awq", "fp8", "gptq")), "plugins.formats.hub.remote",
    *(f"plugins.kernels.{name}" for name in (
        "cast.reference", "dequantize.reference", "fastest.sizes", "pallas.scheme", "quantize.declines",
        "quantize.mxfp4", "quantize.native", "quantize.numpy", "quantize.reference.block", "quantize.structs",
    )),
)  # fmt: skip
MODELS = (
    "plugins.engine.start", "plugins.engine.session", "plugins.engine.generate", "plugins.engine.score",
    "plugins.models.device", "plugins.models.gpt_oss.model", "plugins.models.llama.model",
    *(f"plugins.kernels.{op}.{name}" for op in ("attention", "matmul", "moe", "rope") for name in ("native", "xla")),
    "plugins.kernels.embed.xla", "plugins.kernels.rms_norm.xla", "plugins.kernels.softmax.xla",
    *(f"plugins.kernels.{op}.declines" for op in ("attention", "matmul", "moe")), "plugins.kernels.rms_norm.native",
    *(f"plugins.kernels.{op}.reference" for op in (
        "attention", "embed", "matmul", "moe", "rms_norm", "rope", "softmax",
    )),
    "plugins.engine.loader", "plugins.kernels.cast.numpy", "plugins.kernels.dequantize.numpy",
    "plugins.kernels.fastest.table", "plugins.models.gpt_oss.parameters", "plugins.tokenizers.huggingface",
    "plugins.train.trainer", "tokenizers.implementations", "jax.experimental.multihost_utils",
    "jaxlib.mlir.dialects.mhlo",
    "jaxlib.mlir.dialects.builtin", "fastjsonschema",
)  # fmt: skip
"""What runs of models import, too."""
TYPED = ("a=b", "+a.b=1", "++a.b=-1.5e-3", "~a", "a/b=c_d-e", "a=[b,c]", "a={b: c, d: [1, true]}", "a=b,c", "a='b c'",
         "a=null", "a=/b/c.d", "a=${b.c}", "a=${b:c}/d")  # fmt: skip
"""Overrides of every kind, as Hydra's grammar has them."""
REFERRING = ("${a}", "${a.b_c}", "${.a}", "${..a.b}", "${a:b,c}", "${a:${b.c}}", "${a:${b},${c.d},e}/f", "a-${b} c",
             "${a.b:C,}", "${a:'b c',1}")  # fmt: skip
"""Texts of YAML files that refer to others, as OmegaConf's has them."""
OF_JAX = ("JAX_", "XLA_", "OMP_")
"""Variables that JAX reads as it is imported, or threads that come with it."""
COMPUTES = ("full", "evaluate", "generate", "parity", "sensitivity", "distill", "finetune", "train", "teacher")
"""Flows and stages that run models."""
AT_START = ("PYTHON", "LC_", "LANG", "LD_", "GLIBC_", "MALLOC_", "WEIGHTMILL_CONFIG_DIR")
"""Variables that are read before the first line of ours, or as it is imported."""


def serves(cwd: str | bytes | Path, environment: Mapping[str, str]) -> bool:
    """Whether a fork would do what a process that is started there with these does.

    Python looks for modules in the current folder first, which may hold another tree of ours.
    """
    here = Path(os.fsdecode(cwd))
    other = here.resolve() != ROOT and any((here / name).exists() for name in ("pipeline", "stages", "plugins"))
    return sys.platform == "linux" and not other and _at_start(environment) == BEGUN_WITH


def _at_start(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(AT_START)}


BEGUN_WITH = _at_start(os.environ)


def _of_jax(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(OF_JAX)}


def _quick() -> dict[str, str]:
    """Variables of most commands. Imported by those who ask, not by the server: it has modules of the product only."""
    from tests.cases.model_runs import quick_environment

    return {**os.environ, **quick_environment()}


def runs_a_model(args: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a command imports JAX, as far as can be told by what is typed; and as the commands of tests do."""
    chosen = [a.partition("=")[2] for a in args if a.startswith(("flow=", "stages="))]
    computes = not chosen or any(name in one for one in chosen for name in COMPUTES)
    alike = _of_jax(environment) == _of_jax(_quick())
    return alike and computes and huge_pages.runs(args) and args[0] != "convert"


def run(
    args: list[str], cwd: str | bytes | Path, environment: Mapping[str, str], timeout_s: float
) -> tuple[int, str, str]:
    """The exit code of `python -m pipeline ARGS…`, and what it wrote to stdout and stderr.

    Raises:
        AssertionError: it took too long, and was killed with all it started.
    """
    asked = {"args": args, "cwd": os.fsdecode(cwd), "environment": dict(environment)}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        server = _server(models=runs_a_model(args, environment))
        socket.send_fds(server, [json.dumps(asked).encode()], [out.fileno(), err.fileno()])
        pid = int(server.recv(64))
        try:
            server.settimeout(timeout_s)
            code = int(server.recv(64))
        except BaseException as why:
            from tests.cli.run import kill_tree

            with suppress(psutil.NoSuchProcess):
                kill_tree(pid)
            server.settimeout(None)
            server.recv(64)  # that it is dead
            if isinstance(why, TimeoutError):
                raise AssertionError(f"still running after {timeout_s} s: {args}") from None
            raise
        finally:
            server.settimeout(None)
        said = []
        for stream in (out, err):
            stream.seek(0)
            said.append(stream.read().decode())
    return code, said[0], said[1]


@cache
def _server(*, models: bool) -> socket.socket:
    """Ours of the two ends to a server, which is started by the first who asks."""
    environment = {name: value for name, value in _quick().items() if not name.startswith(AT_START)}
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cli.warm", str(its.fileno()), *["models"][: int(models)]],
        cwd=ROOT, env={**environment, **BEGUN_WITH}, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    its.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(asked: socket.socket) -> list[str]:
    """Fork a process for each request; returns in these only, with what was typed."""
    while True:
        message, streams, _, _ = socket.recv_fds(asked, 1 << 20, 2)
        if not message:
            os._exit(0)
        if (pid := os.fork()) == 0:
            asked.close()
            wanted = json.loads(message)
            os.setsid()
            for number, stream in enumerate(streams, 1):
                os.dup2(stream, number)
                os.close(stream)
            os.chdir(wanted["cwd"])
            os.environ.clear()
            os.environ.update(wanted["environment"])
            sys.path[0] = os.getcwd()
            args: list[str] = wanted["args"]
            _look_in_the_folder_of(args)
            return args
        for stream in streams:
            os.close(stream)
        asked.send(str(pid).encode())
        asked.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _look_in_the_folder_of(args: list[str]) -> None:
    """Packages look in the user's own folder as they are imported, which those here are: they look there now."""
    from pipeline.config import extend

    for at, arg in enumerate(args):
        name, _, value = arg.partition("=")
        if name in ("--config-dir", "-cd") and Path(folder := value or "".join(args[at + 1 : at + 2])).is_dir():
            extend.use(folder)


def _learn_grammars() -> None:
    """Parse what is parsed by every command. ANTLR finds out what may come next as it meets it and remembers that, once
    for all parsers of a grammar: a tenth of what a short command takes."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import grammar_parser

    OverridesParser.create().parse_overrides([*TYPED])
    for text in REFERRING:
        grammar_parser.parse(text)


def _main(fd: int, *, models: bool) -> NoReturn:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in (*IMPORTED, *MODELS) if models else IMPORTED:
        importlib.import_module(name)
    _learn_grammars()
    del sys.modules["pipeline.__main__"]  # which each command runs from the top
    gc.collect()
    gc.freeze()
    sys.argv = ["", *_serve(socket.socket(fileno=fd))]
    runpy.run_module("pipeline", run_name="__main__", alter_sys=True)
    sys.exit(0)


if __name__ == "__main__":
    _main(int(sys.argv[1]), models="models" in sys.argv[2:])
