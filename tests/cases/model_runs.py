"""A folder to a model that runs, by the way that the pipeline takes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.api import compose_run
from pipeline.config import kernels
from pipeline.config.resolve import OWN_PACKAGES, Resolver
from pipeline.config.spine import RunConfig
from pipeline.planning.memory import plan_run
from pipeline.stage import Checkpoint
from plugins.engine.engine import Engine

CONF = Path(__file__).parents[2] / "conf"
STRUCTS = sorted(p.stem for p in (CONF / "quant").glob("*.yaml") if "quant.structs" in p.read_text())  # of ggml
QUANTIZING = sorted(
    {p.stem for p in (CONF / "quant").glob("*.yaml")} - {"none", "keep", "auto", *STRUCTS}
)  # options of quant= that do, in blocks with scales beside them
STAGES = "stages=[load,decode,quantize]"
_LOOPS: dict[str, bool | int] = {"xla_cpu_use_fusion_emitters": False}
QUICKLY = {**(_LOOPS if version("jax").startswith("0.10.") else {}), "xla_cpu_parallel_codegen_split_count": 1}
"""What XLA does beside leaving out most optimizations. It makes loops without a pass of MLIR over each of them, which
takes most of the time that is left (JAX 0.11 has no such option), and programs in one piece: every core has tests to
run, and pieces take more."""
KEEP = "[{match: '*', to: keep}]"


@cache
def engine(of: str = "xla") -> Engine:
    """conf/engine/jax.yaml with an option of `kernels`, in float32."""
    options = {"kernels": of, "tokenizer": "auto", "mesh": "single", "engine": "jax"}
    node = OmegaConf.create({group: OmegaConf.load(CONF / group / f"{name}.yaml") for group, name in options.items()})
    node.engine.activations, node.engine.activations_scales = None, "dynamic"
    nodes, problems = kernels.nodes(OmegaConf.to_container(node.kernels), OWN_PACKAGES)
    assert not problems, problems
    OmegaConf.update(node, "kernels", nodes, merge=False)
    OmegaConf.resolve(node)
    resolver = Resolver()
    built = resolver.build(OmegaConf.to_container(node.engine), "engine")
    assert not resolver.problems, resolver.problems
    return replace(built, dtype="f32")


_COMPOSED: dict[
    tuple[bytes, tuple[str, ...]], RunConfig
] = {}  # by config.json, which says the model, and what is typed


def _composed(source: Path, *overrides: str) -> RunConfig:
    """`compose_run`, which takes longer than most of what is done with its result; the source is replaced in that."""
    key = ((source / "config.json").read_bytes(), overrides)
    if key not in _COMPOSED:
        _COMPOSED[key] = compose_run([f"model.source={source}", *overrides])
    run = _COMPOSED[key]
    return replace(run, stages={**run.stages, "load": replace(run.stages["load"], source=str(source))})


def checkpoint(source: Path, *overrides: str, quant: str = "none", rules: str = KEEP) -> Checkpoint:
    """What the main job quantizes and would write, of the folder `source`."""
    run = _composed(source, f"quant={quant}", f"model.rules={rules}", STAGES, *overrides)
    plan = plan_run(run, source / "none")
    assert not plan.problems, plan.problems
    found = list(plan.nodes.values())[-1].result
    assert isinstance(found, Checkpoint)
    return found


def load(source: Path, *overrides: str, quant: str = "none", rules: str = KEEP, **options: Any) -> Any:
    """A `plugins.engine.runtime.Runtime`; `options` are the engine's."""
    return replace(engine(), **options).load(checkpoint(source, *overrides, quant=quant, rules=rules)).runtime


@contextmanager
def quick_compilation(quick: bool = True) -> Iterator[None]:
    """XLA does without most of its optimizations: programs that run a few times compile in a quarter of the time.

    Args:
        quick: False: it does all of them, where others say otherwise.
    """
    import jax

    _by_quick_means()
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", quick)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


@cache
def _by_quick_means() -> None:
    """`QUICKLY` where most optimizations are disabled: options that JAX has for one program at a time, or for a
    process."""
    import jax
    from jax._src import compiler

    real = compiler.get_compile_options

    def options(*args: Any, env_options_overrides: Any = None, **more: Any) -> Any:
        if jax.config.values["jax_disable_most_optimizations"]:
            env_options_overrides = {**(env_options_overrides or {}), **QUICKLY}
        return real(*args, env_options_overrides=env_options_overrides, **more)

    compiler.get_compile_options = options


def quick_environment() -> dict[str, str]:
    """The same for a process that is started with these variables."""
    flags = " ".join(f"--{name}={str(value).lower()}" for name, value in QUICKLY.items())
    return {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}
